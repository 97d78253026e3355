"""The scale of the inputs, set from the prior part of the first task before learning begins.

The prior part P_1 is a function of the seed and of the number of rows alone, and nothing is certified of it. Whatever is made of
(seed, P_1) is therefore fixed, given the prior parts, before the certified examples S_1, ..., S_T are looked at: initial
parameters and options may depend on it, and every bound holds as it is (docs/theory.md, section 5, Prior split).
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify import advice
from cop2l.certify.inputs import check_finite, inputs
from cop2l.certify.presets import PRESETS, PRIOR, Choice
from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, certified_rows, sample
from cop2l.kernel.options import Options
from cop2l.kernel.samples import numbers
from cop2l.models import MODELS
from cop2l.models.scale import Scale, scale_of
from cop2l.randomness import marks

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

MOST_ROWS, MOST_VALUES = 1000, 10**7
"""More examples, or more numbers in all, are not looked at."""
LEAST_TO_SCALE = 20
"""With fewer examples there is no scale."""
SHARE: float = PRESETS[Choice.preset]["prior"]
"""The prior part of methods that have none of their own: so all see the same examples."""
ALIKE = 16
"""Columns whose factors differ by less are of like size."""
TYPICAL = 1.5
"""The deviation of a normal distribution is so many times the median distance from its middle."""


def prior_part(x: Any, y: Any, share: float, seed: int) -> Examples:
    """Examples of the first task's prior part, in the order of their second marks; not more than are looked at."""
    if len(x) != len(y):
        raise UserError(f"x has {len(x)} examples and y has {len(y)} labels; they must be as many.")
    rows = np.flatnonzero(~certified_rows(len(y), 1, Options(prior=share, seed=seed)))
    order = np.argsort(marks(seed, "prior", 1, n=len(y))[rows], kind="stable")
    labels = torch.as_tensor(numbers(y).astype(np.int64))
    return sample(inputs(x), labels, 1, seed).take(rows[order][:MOST_ROWS])


def scale_from(part: Examples) -> dict[str, list[float]] | None:
    """The shift and the factor of each column (of pictures: of each channel); None if there are too few examples.

    The shift is the median, and the factor the power of two that brings the median distance from it, among the values that are
    not the median itself, nearest to 2/3. Both are picked and not added up, so that every machine finds the same. A column that
    is constant is shifted to 0. Columns of the median 0, such as counts of words, have one factor, the median of theirs, as far
    as they are of like size: what they weigh among each other stays.
    """
    if len(part) < LEAST_TO_SCALE:
        return None
    held = part.x[: max(LEAST_TO_SCALE, MOST_VALUES // max(1, math.prod(part.x.shape[1:])))].double()
    check_finite(held)
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
    """The nearest power of two, in ratio, from 2^-50 to 2^50.

    >>> power_of_two(3), power_of_two(0.7), power_of_two(1e300)
    (4.0, 0.5, 1125899906842624.0)
    """
    fraction, exponent = math.frexp(min(max(number, 1e-30), 1e30))
    return 2.0 ** min(50, max(-50, exponent if fraction >= math.sqrt(0.5) else exponent - 1))


class Scaled(nn.Module):
    """A module of one's own behind a scale of its inputs; integers, such as token ids, reach it as they are."""

    def __init__(self, model: nn.Module, inputs: Sequence[int]) -> None:
        super().__init__()
        self.model, self.scale = model, scale_of(PRIOR, inputs)
        kind = type(model)
        own = getattr(model, "description", None) or {
            "name": None,
            "class": f"{kind.__module__}.{kind.__qualname__}",
        }
        self.description = {**own, "inputs": list(inputs), "scale": PRIOR}

    def forward(self, x: Any) -> Any:
        """What the module gives."""
        return self.model(self.scale(x) if x.is_floating_point() else x)


def scalable(model: nn.Module, inputs: Sequence[int]) -> Any:
    """The model with a scale of its inputs, which has no effect yet."""
    if isinstance(getattr(model, "scale", None), Scale):
        return model
    like, found = next(model.parameters()), model
    if type(model) in MODELS.values() and hasattr(model, "description"):
        model.scale, model.description = scale_of(PRIOR, inputs), {**model.description, "scale": PRIOR}  # type: ignore[assignment,dict-item]
    else:
        found = Scaled(model, inputs)
    return found.to(like.device, like.dtype)


def prior_scale(part: Examples, say: Callable[[str], None] = lambda _: None) -> dict[str, list[float]] | None:
    """The scale that a prior part gives; `say` is told if it has too few examples for one."""
    found = scale_from(part)
    if found is None:
        say(
            f"The inputs stay as they are: the first task sets aside {len(part)} examples, and {LEAST_TO_SCALE} are needed;"
            " scale them by constants."
        )
    return found


def scale_inputs(learner: "CoP2L", x: Any, y: Tensor) -> None:
    """Scale the inputs of a learner by the prior examples of (x, y), the task that it learns first."""
    model, chosen = learner.model, learner.options
    part = prior_part(x, y, chosen.prior, chosen.seed)
    ids = not part.x.is_floating_point() and type(model) not in MODELS.values()
    own: Any = getattr(model, "scale", None)
    if ids or (isinstance(own, Scale) and not own.limited):  # token ids, or constants that were given
        return
    constants = prior_scale(part, lambda sentence: advice.give(iter([sentence])))
    if constants is not None:
        model = scalable(model, list(part.x.shape[1:]))
        model.scale.put(**constants)
        learner.use_model(model)
