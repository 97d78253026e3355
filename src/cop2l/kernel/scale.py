"""The scale of the inputs: constants in a model, which then takes raw inputs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel.exact import Examples
from cop2l.kernel.options import UserError
from cop2l.randomness import marks

MAX_ROWS, MAX_VALUES, MIN_ROWS = 1000, 10**7, 20
"""The scale is computed from at most this many examples and numbers; with fewer than MIN_ROWS examples it is not computed."""
SIMILAR_SIZE = 16
"""Columns are of similar size if their factors differ by at most this ratio."""
DEVIATION_OVER_MEDIAN_DISTANCE = 1.5
"""Of a normal distribution: the standard deviation over the median distance from the mean."""

FITTED = "fitted"
"""The scale whose constants are fitted to examples of the first task that do not certify."""
LIMIT = 10.0
"""Scaled values are clipped to this, if the constants come from examples: larger ones are outliers."""
MAX_CONSTANT = 2.0**53


class Scale(nn.Module):
    """(x - shift) * factor, with one constant for all inputs, one per column, or one per channel; none is trained."""

    shift: Tensor
    factor: Tensor

    def __init__(self, shift: Tensor, factor: Tensor, inputs: Sequence[int], limited: bool) -> None:
        super().__init__()
        self.limited = limited
        for name, values in (("shift", shift), ("factor", factor)):
            self.register_buffer(name, values.view(-1, *[1] * (len(inputs) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - self.shift) * self.factor
        return scaled.clamp(-LIMIT, LIMIT) if self.limited else scaled

    def set_constants(self, shift: Sequence[float], factor: Sequence[float]) -> None:
        for buffer, values in ((self.shift, shift), (self.factor, factor)):
            buffer.copy_(torch.tensor(values, dtype=torch.float64).view_as(buffer))


def scale_layer(scale: Any, inputs: Sequence[int]) -> Scale:
    """The layer for `fitted`, without effect until its constants are set, or for a shift and a factor (numbers or lists)."""
    size = inputs[0] if len(inputs) in (1, 3) else 1
    if scale == FITTED:
        return Scale(torch.zeros(size), torch.ones(size), inputs, limited=True)
    pair = [part if isinstance(part, list) else [part] for part in scale] if isinstance(scale, list) else []
    if not (len(pair) == 2 and len(pair[0]) == len(pair[1]) in (1, size) and all(map(_are_constants, pair)) and all(pair[1])):
        raise UserError(
            f"The scale of the inputs is {scale!r:.80}; give 'fitted', or a shift and a factor that is not 0, such as "
            f"[127.5, 0.0078125]{f': numbers, or two lists of {size}' * (size > 1)}."
        )
    shift, factor = (torch.tensor(values, dtype=torch.float32) for values in pair)
    return Scale(shift, factor, inputs, limited=False)


def _are_constants(values: list[Any]) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) and abs(value) <= MAX_CONSTANT for value in values)


def fit_scale(part: Examples, seed: int) -> dict[str, list[float]] | None:
    """The shift and the factor of each column (of pictures: of each channel); None if there are too few examples.

    At most MAX_ROWS of the examples are used, in the order of marks.

    The shift is the median. The factor is the power of two that brings the median distance from it, among the values other than
    the median, nearest to 2/3. A constant column is shifted to 0. Columns with the median 0, such as counts of words, get the
    median of their factors if their sizes are similar, so that their relative weights stay. No sums are used, because machines
    round sums differently.
    """
    if len(part) < MIN_ROWS:
        return None
    part = part.take(np.argsort(marks(seed, "scale", 1, n=len(part)), kind="stable")[:MAX_ROWS])
    rows = part.x[: max(MIN_ROWS, MAX_VALUES // max(1, math.prod(part.x.shape[1:])))].cpu().double()
    if not rows.isfinite().all():
        raise UserError("x contains values that are not finite; replace or remove them before learning.")
    x = rows.numpy()
    count = x.shape[1] if x.ndim in (2, 4) else 1
    columns = np.moveaxis(x, 1, 0).reshape(count, -1) if x.ndim in (2, 4) else x.reshape(1, -1)
    medians = np.sort(columns, axis=1)[:, (columns.shape[1] - 1) // 2]
    factors = np.zeros(count)
    for number, (values, median) in enumerate(zip(columns, medians, strict=True)):
        distances = np.abs(values - median)
        distances = np.sort(distances[distances > 0])
        distance = distances[(len(distances) - 1) // 2] if len(distances) else abs(median)
        factors[number] = power_of_two(1 / (DEVIATION_OVER_MEDIAN_DISTANCE * distance)) if distance else 0
    sparse = (medians == 0) & (factors > 0)
    common = np.sort(factors[sparse])[(sparse.sum() - 1) // 2] if sparse.any() else 1.0
    factors[(factors == 0) | (sparse & (factors >= common / SIMILAR_SIZE) & (factors <= common * SIMILAR_SIZE))] = common
    return {"shift": np.clip(medians, -MAX_CONSTANT, MAX_CONSTANT).tolist(), "factor": factors.tolist()}


def power_of_two(number: float) -> float:
    """The nearest power of two, in ratio, from 2^-50 to 2^50."""
    fraction, exponent = math.frexp(min(max(number, 1e-30), 1e30))
    return 2.0 ** min(50, max(-50, exponent if fraction >= math.sqrt(0.5) else exponent - 1))
