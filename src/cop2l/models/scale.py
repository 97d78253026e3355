"""The scale of the inputs: constants that are part of a model, which then takes raw inputs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.errors import UserError

LIMIT = 10.0
"""Values that constants from the prior part bring beyond it are outliers, and are held there."""
MOST = 2.0**53


class Scale(nn.Module):
    """(x - shift) * factor, one constant for all inputs, for each column of flat ones, or for each channel of pictures.

    Nothing of it is trained.
    """

    shift: Tensor
    factor: Tensor

    def __init__(self, shift: Tensor, factor: Tensor, inputs: Sequence[int], limited: bool) -> None:
        super().__init__()
        self.limited = limited
        for name, values in (("shift", shift), ("factor", factor)):
            self.register_buffer(name, values.view(-1, *[1] * (len(inputs) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """The inputs on their new scale."""
        scaled = (x - self.shift) * self.factor
        return scaled.clamp(-LIMIT, LIMIT) if self.limited else scaled

    def put(self, shift: Sequence[float], factor: Sequence[float]) -> None:
        """Take these constants."""
        for own, values in ((self.shift, shift), (self.factor, factor)):
            own.copy_(torch.tensor(values, dtype=torch.float64).view_as(own))


def scale_of(given: Any, inputs: Sequence[int]) -> Scale:
    """The layer for `prior`, without effect until its constants are put in, or for a shift and a factor, numbers or lists."""
    own = inputs[0] if len(inputs) in (1, 3) else 1
    if given == "prior":
        return Scale(torch.zeros(own), torch.ones(own), inputs, limited=True)
    pair = [part if isinstance(part, list) else [part] for part in given] if isinstance(given, list) else []
    if not (
        len(pair) == 2
        and len(pair[0]) == len(pair[1]) in (1, own)
        and all(map(_constants, pair))
        and all(pair[1])
    ):
        raise UserError(
            f"The scale of the inputs is {given!r:.80}; give 'prior', or a shift and a factor that is not 0, such as "
            f"[127.5, 0.0078125]{f': numbers, or two lists of {own}' * (own > 1)}."
        )
    shift, factor = (torch.tensor(values, dtype=torch.float32) for values in pair)
    return Scale(shift, factor, inputs, limited=False)


def _constants(values: list[Any]) -> bool:
    return all(
        type(value) in (int, float) and math.isfinite(value) and abs(value) <= MOST for value in values
    )
