"""A fingerprint of labelled data: equal data, equal text, whatever holds it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cop2l.kernel import samples
from cop2l.streams.task import Task


def fingerprint(x: Any, y: Any) -> str:
    """The fingerprint of a whole array, as certificates state it; it is read in blocks."""
    return samples.fingerprint(len(x), samples.blocks_of(x, y))


def fingerprint_of_tasks(tasks: Sequence[Task]) -> str:
    """The fingerprint of the examples of all tasks, one after the other."""
    return fingerprint(np.concatenate([t.x for t in tasks]), np.concatenate([t.y for t in tasks]))
