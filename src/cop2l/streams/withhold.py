"""Withholding a part of each task from the learner, by marks that are drawn in advance."""

from typing import Any

import numpy as np

from cop2l.kernel.exact import withheld_rows
from cop2l.streams.task import Stream, Task, take_rows


def withhold(task: Task, share: float | None, seed: int) -> tuple[Task, Task | None]:
    """The part to learn, and the withheld part (None if nothing is withheld)."""
    if not share:
        return task, None
    withheld = withheld_rows(len(task.y), task.t, share, seed)
    rows = [np.flatnonzero(part) for part in (~withheld, withheld)]
    learned_part, withheld_part = (
        Task(take_rows(task.x, part), take_rows(task.y, part), task.t) for part in rows
    )
    return learned_part, withheld_part


def withhold_groups(stream: Stream, t: int, share: float | None, seed: int) -> tuple[Any, Any]:
    """The groups of the same two parts of task t; None for each part without groups."""
    if not stream.groups or not share:
        return (stream.groups[t - 1] if stream.groups else None), None
    groups = stream.groups[t - 1]
    withheld = withheld_rows(len(groups), t, share, seed)
    return groups[~withheld], groups[withheld]


def learned_rows(n: int, seed: int, holdout: float) -> np.ndarray:
    """The rows of the first task, out of n, that are not withheld: they never certify, so they may prepare inputs."""
    return np.flatnonzero(~withheld_rows(n, 1, holdout, seed)) if holdout else np.arange(n)
