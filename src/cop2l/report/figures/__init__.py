"""The figures by name: functions from the groups of one stream to a Figure, or to None if it is empty."""

from collections.abc import Callable, Sequence

from cop2l.report.figures import bounds, learning
from cop2l.report.figures.figure import Figure
from cop2l.report.groups import Group

FIGURES: dict[str, Callable[[Sequence[Group]], Figure | None]] = {
    "bounds": bounds.bounds,
    "bounds-box": bounds.bounds_box,
    "progress": learning.progress,
    "matrix": learning.matrix,
    "compression": bounds.compression,
    "iterations": bounds.iterations,
    "classes": learning.classes,
    "classes-by-task": learning.classes_by_task,
    "plasticity": learning.plasticity,
}
