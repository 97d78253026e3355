"""Setting aside a part of each task, by marks drawn in advance: the learner never sees it."""

from typing import Any

import numpy as np
import torch

from cop2l.randomness import marks
from cop2l.streams.task import Task


def withhold(task: Task, share: float | None, seed: int) -> tuple[Task, Task | None]:
    """The part to learn, and the part withheld (None if nothing is)."""
    if not share:
        return task, None
    withheld = marks(seed, "holdout", task.t, n=len(task.y)) < np.uint64(share * 2.0**64)
    learned, rest = (Task(_rows(task.x, part), _rows(task.y, part), task.t) for part in (~withheld, withheld))
    return learned, rest


def _rows(values: Any, part: np.ndarray) -> Any:
    return values[torch.from_numpy(part) if isinstance(values, torch.Tensor) else part]
