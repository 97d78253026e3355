"""What looks wrong but may be meant, said in a sentence; nothing is changed by it.

A warning may come from looking at examples that certify. Alone it costs nothing: the learner does the same with and without
it. But whoever changes a setting because of it, and learns the same data again, has tried twice, and the certificate of the
second try does not pay for the choice: share delta between the tries (delta=0.025 each for two), or try on other data.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cop2l.certify.fast import Fast
from cop2l.certify.scoring import misclassified
from cop2l.errors import Advice
from cop2l.kernel.exact import Examples, certified_rows, join
from cop2l.kernel.samples import ROWS, numbers
from cop2l.kernel.verify import ALLOWED
from cop2l.streams.loading import GENERATED

HIGH = 0.25
"""A larger share of errors on what was trained on is underfitting."""
ENOUGH = 20
"""A share of fewer examples says nothing."""
ADAPTERS = ("cop2l.", "sklearn.", "avalanche.")
"""Whose lines are not the user's."""
TWICE = "changing it and learning again counts as another try (docs/inputs.md, Advice)"


def copied(task: int, x: Any, data: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Rows that repeat another, more than an auditor accepts; generated data is drawn independently, from few values."""
    if (data or {}).get("stream") in GENERATED:
        return
    keys = np.concatenate([_keys(x[start : start + ROWS]) for start in range(0, len(x), ROWS)])
    repeated = len(keys) - len(np.unique(keys))
    if repeated > ALLOWED.repeated * len(keys):
        yield (
            f"{repeated} of the {len(keys)} rows of task {task} repeat another: copies are no independent draws, no certificate "
            "holds for them, and verify, which cannot tell them from draws, confirms none; leave them out (balance=True balances "
            "classes without any)."
        )


def _keys(x: Any) -> np.ndarray:
    """A number for each row, equal for equal rows; for others with probability about 2^-64."""
    rows = numbers(x).reshape(len(x), -1)
    rows = rows.view(np.uint32 if rows.shape[1] * rows.itemsize % 4 == 0 else np.uint8)
    return np.asarray(rows @ np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64))


def again(task: int, found: str, earlier: Sequence[str]) -> Iterator[str]:
    """The same data as that of an earlier task."""
    if found in earlier:
        yield (
            f"Task {task} has the data of task {earlier.index(found) + 1} once more: what one of them learned from it the other "
            "does not pay for, and the certificate does not hold for either; give new examples."
        )


def known_twice(found: Sequence[str]) -> list[str]:
    """Why no certificate holds where tasks have the same data."""
    tasks = [number for number, one in enumerate(found, 1) if one in found[: number - 1]]
    words = "Tasks that have the data of an earlier task once more, which independent samples never have"
    return [f"{words}: {', '.join(map(str, tasks))[:200]}."] if tasks else []


def after(engine: Fast, S: Examples) -> Iterator[str]:
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
        count = 0 if held is None else len(held)
        missed = int(misclassified(engine.model, held, engine.outside).sum()) if held is not None else 0
        if count >= ENOUGH and missed > HIGH * count:
            more = "and prior_lr, more prior_epochs" if options.prior else "or more epochs"
            more += ", adam as the optimiser" * (options.optimiser != "adam")
            yield (
                f"The model misclassifies {100 * missed / count:.0f} % of the examples of {what}: it is not trained out; "
                f"try a larger lr {more}, or inputs of a scale near 1; {TWICE}."
            )


def give(sentences: Iterator[str]) -> None:
    """Warn, as from the user's line: that which called `learn`, or `fit` of an adapter."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ADAPTERS):
        level, frame = level + 1, frame.f_back
    for sentence in sentences:
        warnings.warn(sentence, Advice, stacklevel=level)
