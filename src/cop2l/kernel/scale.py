"""The scale of the inputs: constants that are part of a model, which then takes raw inputs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel.exact import Examples, certified_rows
from cop2l.kernel.options import PRIOR, Options, UserError
from cop2l.randomness import marks

MOST_ROWS, MOST_VALUES, LEAST_TO_SCALE = 1000, 10**7, 20
"""More examples, or more numbers in all, are not looked at; with fewer examples nothing is set."""
ALIKE = 16
"""Columns whose factors differ by less are of like size."""
TYPICAL = 1.5
"""The deviation of a normal distribution is so many times the median distance from its middle."""

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
    if given == PRIOR:
        return Scale(torch.zeros(own), torch.ones(own), inputs, limited=True)
    pair = [part if isinstance(part, list) else [part] for part in given] if isinstance(given, list) else []
    if not (len(pair) == 2 and len(pair[0]) == len(pair[1]) in (1, own) and all(map(_constants, pair)) and all(pair[1])):
        raise UserError(
            f"The scale of the inputs is {given!r:.80}; give 'prior', or a shift and a factor that is not 0, such as "
            f"[127.5, 0.0078125]{f': numbers, or two lists of {own}' * (own > 1)}."
        )
    shift, factor = (torch.tensor(values, dtype=torch.float32) for values in pair)
    return Scale(shift, factor, inputs, limited=False)


def _constants(values: list[Any]) -> bool:
    return all(type(value) in (int, float) and math.isfinite(value) and abs(value) <= MOST for value in values)


def prior_rows(n: int, share: float, seed: int) -> np.ndarray:
    """Rows of the first task's prior part, in the order of their second marks; not more than are looked at."""
    rows = np.flatnonzero(~certified_rows(n, 1, Options(prior=share, seed=seed)))
    return np.asarray(rows[np.argsort(marks(seed, "prior", 1, n=n)[rows], kind="stable")][:MOST_ROWS])


def scale_from(part: Examples) -> dict[str, list[float]] | None:
    """The shift and the factor of each column (of pictures: of each channel); None if there are too few examples.

    The shift is the median, and the factor the power of two that brings the median distance from it, among the values that are
    not the median itself, nearest to 2/3. Both are picked and not added up, so that every machine finds the same. A column that
    is constant is shifted to 0. Columns of the median 0, such as counts of words, have one factor, the median of theirs, as far
    as they are of like size: what they weigh among each other stays.
    """
    if len(part) < LEAST_TO_SCALE:
        return None
    held = part.x[: max(LEAST_TO_SCALE, MOST_VALUES // max(1, math.prod(part.x.shape[1:])))].cpu().double()
    if not held.isfinite().all():
        raise UserError("x contains values that are not finite; replace or remove them before learning.")
    x = held.numpy()
    groups = x.shape[1] if x.ndim in (2, 4) else 1
    columns = np.moveaxis(x, 1, 0).reshape(groups, -1) if x.ndim in (2, 4) else x.reshape(1, -1)
    middle = np.sort(columns, axis=1)[:, (columns.shape[1] - 1) // 2]
    factor = np.zeros(groups)
    for number, (values, centre) in enumerate(zip(columns, middle, strict=True)):
        away = np.abs(values - centre)
        away = np.sort(away[away > 0])
        typical = away[(len(away) - 1) // 2] if len(away) else abs(centre)
        factor[number] = power_of_two(1 / (TYPICAL * typical)) if typical else 0
    sparse = (middle == 0) & (factor > 0)
    usual = np.sort(factor[sparse])[(sparse.sum() - 1) // 2] if sparse.any() else 1.0
    factor[(factor == 0) | (sparse & (factor >= usual / ALIKE) & (factor <= usual * ALIKE))] = usual
    middle = np.clip(middle, -(2.0**53), 2.0**53)
    return {"shift": middle.tolist(), "factor": factor.tolist()}


def power_of_two(number: float) -> float:
    """The nearest power of two, in ratio, from 2^-50 to 2^50."""
    fraction, exponent = math.frexp(min(max(number, 1e-30), 1e30))
    return 2.0 ** min(50, max(-50, exponent if fraction >= math.sqrt(0.5) else exponent - 1))
