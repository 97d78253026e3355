"""Warns of what looks wrong but may be intended; a warning changes nothing.

A warning may depend on examples that certify. This alone costs nothing: the learner does the same with and without it. But
whoever changes a setting because of it and learns the same data again has made two attempts, and the second certificate does not
pay for the choice. Share delta between the attempts (delta=0.025 each for two), or make the second one on other data.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from cop2l.errors import Advice
from cop2l.kernel.exact import Examples, score
from cop2l.kernel.samples import ROWS
from cop2l.learner.engine import Engine

HIGH = 0.25
"""More than this share of errors on the training examples is underfitting."""
ENOUGH = 20
"""Shares of fewer examples are not judged."""
ADAPTERS = ("cop2l.", "sklearn.", "avalanche.")
"""Modules whose lines are not the user's."""
TWICE = "changing it and learning again counts as another attempt (docs/data.md, Several settings on the same data)"
TRAINED_BEFORE = (
    "Another learner of this process trained this model: if it learned this data, no bound holds. Build a new model for each "
    "learner."
)
OTHER_WEIGHTS = (
    "The weights of the model are not those of its seed: if they were trained on this data, no bound holds, and `verify` cannot "
    "tell unless they were committed to."
)


def one_class(task: int, head: Sequence[int], y: Tensor, scenario: str) -> Iterator[str]:
    """Warn of a task on which a constant answer makes no error."""
    if scenario == "task-incremental" and len(head) == 1:
        yield f"Task {task} has one class, so that the model cannot err on it: a bound on its error says nothing."
    elif scenario == "domain-incremental" and len(head) > 1 and bool((y == y[0]).all()):
        yield (
            f"All {len(y)} examples of task {task} are of one class of {len(head)}, so a bound on its error says little; where"
            " the data is sorted by class, shuffle it before it is split into tasks."
        )


def underfitting(engine: Engine, S: Examples) -> Iterator[str]:
    """Warn of many errors on the examples of the newest task.

    Picks are the examples that the model finds hardest, so that many errors on them alone are no sign of underfitting. The
    whole task is scored, unless it has few errors even if all its picks are wrong.
    """
    rows = np.arange(len(S))[:ROWS]
    kept = [event for event in engine.trace if event["least"]][-1]
    if len(rows) < ENOUGH or kept["errors"] + kept["picked"] <= HIGH * len(rows):
        return
    share = score(engine.model, S.take(rows), engine.masked_classes)[1].mean()
    if share > HIGH:
        adam = ", adam as the optimiser" * (engine.options.optimiser != "adam")
        yield (
            f"The model misclassifies {100 * share:.0f} % of the examples of task {len(engine.sets)}: it underfits; "
            f"try another lr or more epochs{adam}, or inputs of a scale near 1; {TWICE}."
        )


def warn_user(sentences: Iterable[str]) -> None:
    """Warn; the warning names the line of the user that called `learn`, or `fit` of an adapter."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ADAPTERS):
        level, frame = level + 1, frame.f_back
    for sentence in sentences:
        warnings.warn(sentence, Advice, stacklevel=level)
