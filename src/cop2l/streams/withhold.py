"""Setting aside a part of each task, by marks drawn in advance: the learner never sees it."""

from typing import Any

import numpy as np

from cop2l.kernel.exact import certified_rows, withheld_rows
from cop2l.kernel.options import Options
from cop2l.streams.task import Stream, Task, take_rows


def withhold(task: Task, share: float | None, seed: int) -> tuple[Task, Task | None]:
    """The part to learn, and the part withheld (None if nothing is)."""
    if not share:
        return task, None
    withheld = withheld_rows(len(task.y), task.t, share, seed)
    rows = [np.flatnonzero(part) for part in (~withheld, withheld)]
    learned, rest = (Task(take_rows(task.x, part), take_rows(task.y, part), task.t) for part in rows)
    return learned, rest


def withhold_groups(stream: Stream, t: int, share: float | None, seed: int) -> tuple[Any, Any]:
    """The groups of the same two parts of task t; None where there are none."""
    if not stream.groups or not share:
        return (stream.groups[t - 1] if stream.groups else None), None
    groups = stream.groups[t - 1]
    withheld = withheld_rows(len(groups), t, share, seed)
    return groups[~withheld], groups[withheld]


def prior_rows(rows: int, share: float, seed: int, held: float) -> np.ndarray:
    """Which of the first task's rows are in its prior part, after a share of them was withheld."""
    learned = np.flatnonzero(~withheld_rows(rows, 1, held, seed)) if held else np.arange(rows)
    return np.asarray(learned[~certified_rows(len(learned), 1, Options(prior=share, seed=seed))])
