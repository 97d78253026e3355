"""What looks wrong but may be meant, said in a sentence; nothing is changed by it.

A warning may come from looking at examples that certify. Alone it costs nothing: the learner does the same with and without
it. But whoever changes a setting because of it, and learns the same data again, has tried twice, and the certificate of the
second try does not pay for the choice: share delta between the tries (delta=0.025 each for two), or try on other data.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from cop2l.certify.fast import FastLearner
from cop2l.certify.scoring import misclassified
from cop2l.errors import Advice
from cop2l.kernel.exact import Examples, certified_rows, join
from cop2l.kernel.samples import ROWS

HIGH = 0.25
"""A larger share of errors on what was trained on is underfitting."""
ENOUGH = 20
"""A share of fewer examples says nothing."""
ADAPTERS = ("cop2l.", "sklearn.", "avalanche.")
"""Whose lines are not the user's."""
TWICE = "changing it and learning again counts as another attempt (docs/data.md, Several settings on the same data)"


def one_class(task: int, head: Sequence[int], y: Tensor, scenario: str) -> Iterator[str]:
    """A task on which a model that answers always the same makes no error."""
    if scenario == "task-incremental" and len(head) == 1:
        yield f"Task {task} has one class, so that the model cannot err on it: a bound on its error says nothing."
    elif scenario == "domain-incremental" and len(head) > 1 and bool((y == y[0]).all()):
        yield (
            f"All {len(y)} examples of task {task} are of one class of {len(head)}, so a bound on its error says little; where"
            " the data is sorted by class, shuffle it before it is split into tasks."
        )


def underfitting(engine: FastLearner, S: Examples) -> Iterator[str]:
    """Underfitting: many errors on what was just trained on, or on what was replayed.

    What was picked is what the model finds hardest, so that many errors there are no sign: the whole task is looked at, unless
    it has few errors even if all that was picked is wrong.
    """
    task, options = len(engine.sets), engine.options
    free = np.flatnonzero(~certified_rows(len(S), task, options))
    rows = free if len(free) else np.arange(len(S))
    rows, kept = rows[:ROWS], next(step for step in engine.trace if step["kept"])
    parts = dict[str, Examples | None]()
    if len(free) or kept["errors"] + kept["picked"] > HIGH * len(rows):
        parts[f"task {task}{' that it was trained on' * bool(len(free))}"] = S.take(rows)
    parts["earlier tasks that it replays"] = join(engine.prior[: task - 1])
    for what, held in parts.items():
        if held is None or len(held) < ENOUGH:
            continue
        count, missed = len(held), int(misclassified(engine.model, held, engine.masked_classes).sum())
        if missed > HIGH * count:
            more = "and prior_lr, more prior_epochs" if options.prior else "or more epochs"
            more += ", adam as the optimiser" * (options.optimiser != "adam")
            yield (
                f"The model misclassifies {100 * missed / count:.0f} % of the examples of {what}: it underfits; "
                f"try a larger lr {more}, or inputs of a scale near 1; {TWICE}."
            )


def warn_user(sentences: Iterable[str]) -> None:
    """Warn, as from the user's line: that which called `learn`, or `fit` of an adapter."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ADAPTERS):
        level, frame = level + 1, frame.f_back
    for sentence in sentences:
        warnings.warn(sentence, Advice, stacklevel=level)
