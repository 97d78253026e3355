"""The figures by name: functions from the groups of one stream to a Figure, or to None if there is nothing to draw."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cop2l.errors import UserError, unknown
from cop2l.report.comparison import column_names
from cop2l.report.figures import bounds, learning
from cop2l.report.figures.figure import Figure
from cop2l.report.groups import Group, by_benchmark
from cop2l.report.metric import metric as metric_named
from cop2l.report.runs import Run

FIGURES: dict[str, Callable[[Sequence[Group]], Figure | None]] = {
    "bounds": bounds.bounds,
    "all-bounds": partial(bounds.bounds, every_kind=True),
    "progress": learning.progress,
    "matrix": learning.matrix,
    "classes": learning.classes,
    "plasticity": learning.plasticity,
}


def draw(
    name: str,
    runs: Sequence[Run],
    over: Sequence[str] = ("seed",),
    *,
    key: str | None = None,
    metric: str = "accuracy",
) -> list[Figure]:
    """Draw one figure per stream; `key` and `metric` are for the figure "against"."""
    if name == "against":
        if not key:
            raise UserError(
                "The figure 'against' needs --key; name a varied setting, for example --key memory."
            )
        figure_of: Callable[[Sequence[Group]], Figure | None]
        figure_of = partial(learning.against, key=key, metric=metric_named(metric))
    elif name in FIGURES:
        figure_of = FIGURES[name]
    else:
        raise unknown("figure", name, (*FIGURES, "against"))
    streams = by_benchmark(runs, over)
    names, _ = column_names([groups[0].benchmark for groups in streams])
    figures = [
        replace(figure, title=f"{figure.title}: {stream}") if len(streams) > 1 else figure
        for groups, stream in zip(streams, names, strict=True)
        if (figure := figure_of(groups))
    ]
    if not figures:
        raise UserError(f"These runs have nothing to show in the figure {name!r}; choose another one.")
    return figures
