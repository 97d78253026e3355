"""What is set from the prior part of the first task, before learning begins: the scale of the inputs, and the step.

The prior part P_1 is a function of the seed and of the number of rows alone, and nothing is certified of it. Whatever is made of
(seed, P_1) is therefore fixed, given the prior parts, before the certified examples S_1, ..., S_T are looked at: initial
parameters and options may depend on it, and every bound holds as it is (docs/theory.md, section 5, Prior split).
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.inputs import check_finite, inputs, labelled, labels
from cop2l.certify.presets import PRESETS, PRIOR, options
from cop2l.certify.validation import check_task
from cop2l.errors import Advice, UserError
from cop2l.kernel.exact import Examples, certified_rows, sample
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint, numbers
from cop2l.models import MODELS
from cop2l.models.scale import Scale, scale_of
from cop2l.randomness import marks

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

MOST_ROWS, MOST_VALUES = 1000, 10**7
"""More examples, or more numbers in all, are not looked at."""
LEAST_TO_SCALE, LEAST_TO_TRY = 20, 40
"""With fewer examples nothing is set."""
STEPS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""The steps that are tried."""
JUDGED = 4
"""One example of so many judges; the others are learned from."""
SHARE: float = PRESETS["hybrid"]["prior"]
"""The prior part of methods that have none of their own: so all see the same examples."""
ALIKE = 16
"""Columns whose factors differ by less are of like size."""
TRAINED_OUT = 0.02
"""A mean loss that leaves nothing to learn."""
TYPICAL = 1.5
"""The deviation of a normal distribution is so many times the median distance from its middle."""


class Tried(NamedTuple):
    """A step, and what came of it on the examples that judge."""

    lr: float
    errors: int
    loss: float | None
    """The mean cross-entropy; None if training diverged."""


class Settled(NamedTuple):
    """What was set before learning began, or given."""

    scale: dict[str, list[float]] | None = None
    """The shift and the factor that the prior part gave."""
    lr: float | None = None
    """The step that was chosen; None: none was, and the configured one counts."""
    tried: list[list[float | None]] | None = None
    """Of each step that was tried: lr, errors, loss. None: the step was not left to the prior part."""


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


def scaled(model: nn.Module, inputs: Sequence[int], constants: dict[str, list[float]] | None) -> Any:
    """A copy of the model, with this scale of its inputs."""
    own = copy.deepcopy(model)
    if constants is None:
        return own
    own = scalable(own, inputs)
    own.scale.put(**constants)
    return own


def steps_tried(
    make: Callable[[float], Any],
    part: Examples,
    head: int | Sequence[int] | None,
    scenario: str,
    say: Callable[[str], None] = lambda _: None,
) -> list[Tried]:
    """What comes of each step, none if there are too few examples: `make(lr)` gives a learner before its first task.

    It learns three quarters of the examples as if they were the task; the last quarter judges. Nothing is drawn but what
    the learner draws from its seed. A step that makes no error and trains out is the last: no larger one would be chosen.
    """
    if len(part) < LEAST_TO_TRY:
        return []
    last = len(part) - len(part) // JUDGED
    learned, judging = part.take(np.arange(last)), part.take(np.arange(last, len(part)))
    say(f"trying up to {len(STEPS)} steps on {len(part)} examples that certify nothing")
    tried: list[Tried] = []
    for lr in STEPS:
        tried.append(_tried(make(lr), lr, learned, judging, head, scenario))
        if tried[-1].errors == 0 and tried[-1].loss is not None and tried[-1].loss <= TRAINED_OUT:
            break
    return tried


def _tried(learner: Any, lr: float, learned: Examples, judging: Examples, head: Any, scenario: str) -> Tried:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Advice)  # it speaks of the trial
        try:
            learner.learn(learned.x, learned.y, classes=head, progress=False)
        except UserError:  # diverged; if it is anything else, learning says so
            return Tried(lr, len(judging), None)
    told = 1 if scenario == "task-incremental" else None
    if hasattr(learner, "probabilities"):
        chances = learner.probabilities(judging.x, task=told)
    else:
        chances = learner.allowed(learner.logits(judging.x), told).softmax(1).cpu()
    own = chances.double()[torch.arange(len(judging)), judging.y].clamp(min=1e-12)
    loss = float(own.log().mean().abs())
    return Tried(
        lr, int((chances.argmax(1) != judging.y).sum()), round(loss, 4) if math.isfinite(loss) else None
    )


def step_from(tried: Sequence[Tried], part: Examples) -> float | None:
    """The smallest step that trains out; None if none learns anything.

    It does if it has at most sqrt(e + 1) more errors than the least number e, and a loss of at most 0.02 or twice the least: on
    an easy first task all steps have few errors, and only the loss shows which ones are too small for what comes later. Larger
    steps may train as well and then diverge on a task that is larger or harder.
    """
    known = [one for one in tried if one.loss is not None]
    least = min((one.errors for one in known), default=0)
    good = [one for one in known if one.errors <= least + math.sqrt(least + 1)]
    lowest = min((one.loss or 0 for one in good), default=0)
    if lowest >= math.log(max(2, len(np.unique(part.y)))):
        return None  # no better than guessing
    return next((one.lr for one in good if (one.loss or 0) <= max(TRAINED_OUT, 2 * lowest)), None)


def settled(
    scale: bool,
    lr: bool,
    part: Examples,
    make: Callable[[dict[str, list[float]] | None, float], Any],
    head: int | Sequence[int] | None,
    scenario: str,
    say: Callable[[str], None] = lambda _: None,
) -> Settled:
    """The scale, and then the step on inputs of that scale, where they are wanted; `make(scale, lr)` gives a new learner."""
    few = "the first task sets aside {} examples, and {} are needed; {}."
    constants = scale_from(part) if scale else None
    if scale and constants is None:
        say(
            "The inputs stay as they are: " + few.format(len(part), LEAST_TO_SCALE, "scale them by constants")
        )
    if not lr:
        return Settled(constants)
    tried = steps_tried(lambda step: make(constants, step), part, head, scenario, say)
    found = step_from(tried, part)
    if found is not None:
        say(f"lr={found:g}: the smallest of the {len(tried)} steps tried that trains out")
    elif tried:
        say("No step that was tried learned anything: lr stays as it is by default; give it yourself.")
    else:
        say("lr stays as it is by default: " + few.format(len(part), LEAST_TO_TRY, "give it yourself"))
    return Settled(constants, found, [list(one) for one in tried])


def from_prior(
    cls: "type[CoP2L]",
    /,
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    scale: str | None = PRIOR,
    lr: str | float = PRIOR,
    classes: Sequence[int] | None = None,
    say: Callable[[str], None] = lambda _: None,
    **given: Any,
) -> "CoP2L":
    """A learner with a copy of the model; the examples that `learn(x, y)` will set aside decide the inputs' scale and lr.

    No other example is looked at, and these are not certified. `given` is what CoP2L takes, with a prior part, such as
    prior=0.05; with scale=None or a number for lr only the other is decided. `say` is told what was found.
    """
    stated = {name: value for name, value in given.items() if name not in ("claim", "shares", "groups")}
    chosen = options(**{name: stated[name] for name in ("preset", "prior", "seed") if name in stated})
    if not chosen.prior:
        raise UserError("Nothing is set aside to set scale or lr from; give prior=0.05, say.")
    x, y = labelled(x, y)
    part = prior_part(x, labels(y), chosen.prior, chosen.seed)
    shape = list(part.x.shape[1:])
    ids = not part.x.is_floating_point() and type(model) not in MODELS.values()
    own: Any = getattr(model, "scale", None)
    fixed = ids or (isinstance(own, Scale) and not own.limited)

    def make(constants: dict[str, list[float]] | None, step: float) -> "CoP2L":
        return cls(scaled(model, shape, constants), **(stated | {"lr": step}))

    scenario, head = stated.get("scenario", "class-incremental"), None
    if lr == PRIOR and len(part) >= LEAST_TO_TRY:
        head = check_task(make(None, STEPS[0]), part.x, part.y, classes)[2]
    found = settled(scale == PRIOR and not fixed, lr == PRIOR, part, make, classes, scenario, say)
    step: Any = {} if lr == PRIOR and found.lr is None else {"lr": found.lr if lr == PRIOR else lr}
    tried = {} if found.tried is None else {"data": {**(given.get("data") or {}), "tried": found.tried}}
    learner = cls(scaled(model, shape, found.scale), **(given | step | tried))
    learner.state.first = _print(part), head
    return learner


def check_first(learner: "CoP2L", x: Any, y: Tensor, head: tuple[int, ...]) -> None:
    """Refuse a first task whose prior part did not give scale and step: they could depend on certified examples."""
    if learner.tasks_seen or learner.state.first is None:
        return
    (seen, told), chosen = learner.state.first, learner.options
    same = told in (None, head) or learner.scenario != "task-incremental"
    if not same or seen != _print(prior_part(x, y, chosen.prior, chosen.seed)):
        raise UserError(
            "The first task is not the one that CoP2L.from_prior was given; learn the same examples first, in the same order,"
            " with the same classes."
        )


def _print(part: Examples) -> str:
    return fingerprint(len(part), blocks_of(part.x, part.y))
