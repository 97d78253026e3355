"""The figures "bounds" and "all-bounds"."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from cop2l.report.certified import LEVEL, interval
from cop2l.report.figures.figure import BOLD, NOT_VALID, Figure, Key, Panel, lines, rate_text
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.metric import KINDS, kinds_in, test_errors

TEST, CLAIM = Key("test error", "ink", (2, 2)), Key("certified bound", "blue", width=BOLD)


def bounds(groups: Sequence[Group], *, every_kind: bool = False) -> Figure | None:
    """The certified bound, or every kind of bound, and the test error, task by task."""
    shown = [
        group for group in groups if (kinds_in([group]) if every_kind else group.kind in kinds_in([group]))
    ]
    if not shown or groups[0].benchmark.tasks < 2:
        return None
    bound_keys = {
        kind: Key(KINDS[kind].label, KINDS[kind].colour, KINDS[kind].dash) for kind in kinds_in(shown)
    }
    keys = [TEST, *bound_keys.values()] if every_kind else [TEST, CLAIM]
    drawn = [_series(group, bound_keys if every_kind else {str(group.kind): CLAIM}) for group in shown]
    intervals = [_intervals(group) for group in shown]
    ends = [high for spans in intervals for _, high in spans.values()]
    ends += [s.mean + (s.sd or 0) for series in drawn for points in series.values() for s in points.values()]
    panels = [
        _panel(group, series, keys, min(1.0, max(ends)), spans)
        for group, series, spans in zip(shown, drawn, intervals, strict=True)
    ]
    table_keys = [TEST, *bound_keys.values()]
    return Figure(
        "all-bounds" if every_kind else "bounds",
        "Certified bound and test error, task by task",
        "The bound is on the true error of the final model, which the test error estimates."
        + " The thick line is the certified bound." * every_kind
        + _band_caption(shown),
        tuple(panels),
        tuple(keys),
        ("method", "task", *(key.label for key in table_keys)),
        tuple(row for group in shown for row in _rows(group, _series(group, bound_keys), table_keys)),
    )


def _panel(
    group: Group,
    series: Mapping[str, Mapping[int, Spread]],
    keys: Sequence[Key],
    largest: float,
    intervals: Mapping[int, tuple[float, float]],
) -> Panel:
    means = ", ".join(
        f"{label} {rate_text(fmean(s.mean for s in points.values()), upwards=label != TEST.label)} %"
        for label, points in series.items()
    )
    claim = KINDS[group.kind].label if group.kind in KINDS else ""
    draw = partial(
        lines,
        series,
        [replace(key, width=BOLD) if key.label == claim else key for key in keys],
        ("task", "error"),
        domain=(0.0, largest),
        upwards=[key.label for key in keys[1:]],
        bands={TEST.label: intervals},
    )
    return Panel(panel_title(group), draw, f"{group.label}, mean over tasks: {means}.")


def _rows(
    group: Group, series: Mapping[str, Mapping[int, Spread]], keys: Sequence[Key]
) -> Iterator[tuple[str, ...]]:
    for task in range(1, group.benchmark.tasks + 1):
        values = [series.get(key.label, {}).get(task) for key in keys]
        rates = [rate_text(s, upwards=key is not TEST) for key, s in zip(keys, values, strict=True)]
        yield panel_title(group), group.task(task), *rates


def panel_title(group: Group) -> str:
    """The title of the panel of a group, with "not valid" if its certificates are not."""
    return group.label + NOT_VALID * bool(group.not_valid)


def _series(group: Group, bound_keys: Mapping[str, Key]) -> dict[str, dict[int, Spread]]:
    """The test error and the bounds of the kinds in `bound_keys`, by label and task."""
    values: dict[str, dict[int, list[float]]] = {}
    for run in group.runs:
        for row, error in zip(run.tasks, test_errors(run), strict=True):
            bounds = {bound_keys[kind].label: b for kind, b in row.bounds.items() if kind in bound_keys}
            for label, value in ({TEST.label: error} | bounds).items():
                values.setdefault(label, {}).setdefault(row.task, []).append(value)
    return {label: {t: spread(v) for t, v in points.items()} for label, points in values.items()}


def _intervals(group: Group) -> dict[int, tuple[float, float]]:
    """The test interval of each task of a single run; none for several runs, whose deviation is drawn."""
    if len(group.runs) > 1:
        return {}
    return {t + 1: span for t in range(group.benchmark.tasks) if (span := interval(group.runs[0], t))}


def _band_caption(groups: Sequence[Group]) -> str:
    seeds = max((len(group.runs) for group in groups), default=0)
    if seeds > 1:
        return f" Bands: one standard deviation over up to {seeds} seeds."
    return f" The band around the test error is its {100 * LEVEL:g} % interval (Clopper and Pearson)."
