"""Models of several arrays: `pack` joins the arrays to one tensor, `Unpacked` splits it again for the model."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.errors import UserError

EXACT = 2**24
"""All whole numbers up to this one are exact in float32."""


def pack(**arrays: Any) -> Tensor:
    """Join named arrays of n rows, one row per example, into one tensor (n, numbers), in the order of their names.

    >>> pack(mask=[[1, 0]], ids=[[7, 5]])
    tensor([[7, 5, 1, 0]])
    """
    parts = [torch.as_tensor(arrays[name]) for name in sorted(arrays)]
    if len({len(part) for part in parts}) != 1:
        raise UserError(
            "The arrays have different numbers of rows; give pack arrays with one row per example."
        )
    integers = [part for part in parts if not part.is_floating_point()]
    if len(integers) == len(parts):
        return torch.cat([part.reshape(len(part), -1).long() for part in parts], 1)
    if any(part.numel() and int(part.long().abs().max()) > EXACT for part in integers):
        raise UserError(
            f"Whole numbers beyond {EXACT} are not exact beside real numbers; renumber them from 0."
        )
    return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)


class Unpacked(nn.Module):
    """A model that takes a tensor of `pack` and calls `model` with the arrays by name.

    `shapes` gives the dtype and the shape of one example of each array: `Unpacked(model, input_ids=(torch.long, 12))`.
    The model returns logits, or an object with the attribute `logits` (as models of transformers do).
    """

    def __init__(self, model: nn.Module, **shapes: tuple[Any, ...]) -> None:
        super().__init__()
        self.model, self._shapes = model, dict(sorted(shapes.items()))

    def forward(self, x: Tensor) -> Tensor:
        columns = torch.split(x, [math.prod(shape) for _, *shape in self._shapes.values()], 1)
        parts = zip(self._shapes.items(), columns, strict=True)
        output = self.model(
            **{name: part.reshape(len(x), *shape).to(kind) for (name, (kind, *shape)), part in parts}
        )
        logits: Tensor = getattr(output, "logits", output)
        return logits
