"""Examples of several arrays as one tensor: `pack` puts the arrays side by side, `Unpacked` takes them apart for a model."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.errors import UserError

EXACT = 2**24
"""Whole numbers up to here are exact in float32."""


def pack(**arrays: Any) -> Tensor:
    """Named arrays, one row per example in each, side by side in the order of their names, in one tensor (n, numbers).

    >>> pack(mask=[[1, 0]], ids=[[7, 5]])
    tensor([[7, 5, 1, 0]])
    """
    parts = [torch.as_tensor(arrays[name]) for name in sorted(arrays)]
    if len({len(part) for part in parts}) != 1:
        raise UserError("The arrays have different numbers of examples; give one row per example in each.")
    whole = [part for part in parts if not part.is_floating_point()]
    if len(whole) == len(parts):
        return torch.cat([part.reshape(len(part), -1).long() for part in parts], 1)
    if any(part.numel() and int(part.long().abs().max()) > EXACT for part in whole):
        raise UserError(f"Whole numbers beyond {EXACT} are not exact beside real numbers; number them anew.")
    return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)


class Unpacked(nn.Module):
    """A model of several named arrays as a model of one tensor that `pack` made.

    `shapes` gives dtype and shape of one example of each array: `Unpacked(model, input_ids=(torch.long, 12))`. The model is
    called with the arrays by name; its answer is logits, or has an attribute `logits` (as those of transformers).
    """

    def __init__(self, model: nn.Module, **shapes: tuple[Any, ...]) -> None:
        super().__init__()
        self.model, self._shapes = model, dict(sorted(shapes.items()))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of packed examples."""
        columns = torch.split(x, [math.prod(shape) for _, *shape in self._shapes.values()], 1)
        parts = zip(self._shapes.items(), columns, strict=True)
        answer = self.model(
            **{name: part.reshape(len(x), *shape).to(kind) for (name, (kind, *shape)), part in parts}
        )
        logits: Tensor = getattr(answer, "logits", answer)
        return logits
