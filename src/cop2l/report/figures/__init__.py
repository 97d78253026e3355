"""The figures by name: functions from the groups of one stream to a Figure, or to None if it is empty."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from cop2l.errors import UserError, unknown
from cop2l.report.comparison import column_names
from cop2l.report.figures import bounds, learning
from cop2l.report.figures.figure import Figure
from cop2l.report.groups import Group
from cop2l.report.metric import metric as metric_named

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


def draw(
    name: str, groups: Sequence[Group], *, key: str | None = None, metric: str = "accuracy"
) -> list[Figure]:
    """One figure per stream; `key` and `metric` are for the figure "against"."""
    if name not in (*FIGURES, "against"):
        raise unknown("figure", name, (*FIGURES, "against"))
    if name == "against" and not key:
        raise UserError("Say what was varied with --key, for example --key memory.")
    if not groups:
        raise UserError("None of these runs is finished; finish one, then draw.")
    drawn = []
    places = list(dict.fromkeys(group.place for group in groups))
    for place, title in zip(places, column_names(places)[0], strict=True):
        own = [group for group in groups if group.place == place]
        figure = (
            learning.against(own, key, metric_named(metric))
            if name == "against" and key
            else FIGURES[name](own)
        )
        if figure:
            drawn.append(
                replace(figure, title=f"{figure.title}: {title}" if len(places) > 1 else figure.title)
            )
    if not drawn:
        raise UserError(f"These runs hold nothing that the figure {name!r} could show; choose another one.")
    return drawn
