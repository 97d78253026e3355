"""The figure of bounds against test error, task by task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from cop2l.report.certified import LEVEL, interval
from cop2l.report.figures.figure import BOLD, Figure, Key, Panel, lines, rate_text
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.metric import KINDS, kinds_in, test_errors

TEST, CLAIM = Key("test error", "ink", (2, 2)), Key("certified bound", "blue", width=BOLD)


def bounds(groups: Sequence[Group], *, every_kind: bool = False) -> Figure | None:
    """The certified bound against the test error, task by task; with every kind of bound if that is asked for."""
    shown = [
        group for group in groups if (kinds_in([group]) if every_kind else group.kind in kinds_in([group]))
    ]
    if not shown or groups[0].benchmark.tasks < 2:
        return None
    kinds = kinds_in(shown)
    bound_keys = {kind: Key(KINDS[kind].label, KINDS[kind].colour, KINDS[kind].dash) for kind in kinds}
    keys = [TEST, *bound_keys.values()] if every_kind else [TEST, CLAIM]
    every = [_series(group, bound_keys if every_kind else {str(group.kind): CLAIM}) for group in shown]
    tested = [_intervals(group) for group in shown]
    ends = [high for spans in tested for _, high in spans.values()]
    ends += [s.mean + (s.sd or 0) for series in every for points in series.values() for s in points.values()]
    panels = []
    for group, series, spans in zip(shown, every, tested, strict=True):
        words = ", ".join(
            f"{label} {rate_text(fmean(s.mean for s in points.values()), upwards=label != TEST.label)} %"
            for label, points in series.items()
        )
        claimed = KINDS[group.kind].label if group.kind in KINDS else ""
        own = [replace(key, width=BOLD) if key.label == claimed else key for key in keys]
        draw = partial(
            lines,
            series,
            own,
            ("task", "error"),
            domain=(0.0, min(1.0, max(ends))),
            upwards=[key.label for key in keys[1:]],
            bands={TEST.label: spans},
        )
        panels.append(Panel(panel_title(group), draw, f"{group.label}, mean over tasks: {words}."))
    table = [_series(group, bound_keys) for group in shown]
    return Figure(
        "all-bounds" if every_kind else "bounds",
        "Certified bound and test error, task by task",
        "A bound is an upper bound on the true error of the final model; the test error estimates it."
        + " The thick line is the certified one." * every_kind
        + _spread_words(shown),
        tuple(panels),
        tuple(keys),
        ("method", "task", TEST.label, *(key.label for key in bound_keys.values())),
        tuple(
            (
                panel_title(group),
                group.task(task),
                *(
                    rate_text(series.get(key.label, {}).get(task), upwards=key is not TEST)
                    for key in (TEST, *bound_keys.values())
                ),
            )
            for group, series in zip(shown, table, strict=True)
            for task in range(1, group.benchmark.tasks + 1)
        ),
    )


def panel_title(group: Group) -> str:
    """The title of a group's panel; certificates that are not valid say so."""
    return f"{group.label} – not valid" if group.not_valid else group.label


def _series(group: Group, bound_keys: Mapping[str, Key]) -> dict[str, dict[int, Spread]]:
    """The test error and some kinds of bounds, by label and task."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in group.runs:
        for row, error in zip(run.tasks, test_errors(run), strict=True):
            known = {bound_keys[kind].label: b for kind, b in row.bounds.items() if kind in bound_keys}
            for label, value in ({TEST.label: error} | known).items():
                found.setdefault(label, {}).setdefault(row.task, []).append(value)
    return {label: {t: spread(v) for t, v in points.items()} for label, points in found.items()}


def _intervals(group: Group) -> dict[int, tuple[float, float]]:
    """What the test of a single run leaves open, task by task; of several runs, the deviation is drawn."""
    if len(group.runs) > 1:
        return {}
    return {t + 1: span for t in range(group.benchmark.tasks) if (span := interval(group.runs[0], t))}


def _spread_words(groups: Sequence[Group]) -> str:
    most = max((len(group.runs) for group in groups), default=0)
    if most > 1:
        return f" Bands: one standard deviation over up to {most} seeds."
    return (
        f" One seed; the band around the test error is its {100 * LEVEL:g} % interval (Clopper and Pearson)."
    )
