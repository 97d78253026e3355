"""Figures about certificates: bounds against test error, bounds against iterations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from cop2l.report import theme
from cop2l.report.certified import LEVEL, interval
from cop2l.report.figures.figure import BOLD, Figure, Key, Panel, lines, rate_text
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.metric import KINDS, test_errors
from cop2l.report.runs import Run, Step
from cop2l.text import percent

TEST, CLAIM = Key("test error", "ink", (2, 2)), Key("certified bound", "blue", width=BOLD)
MOST_POINTS = 120
FEWEST_POINTS = 3
MOST_PANELS = 12
CRITERIA = {"kl": "kl bound", "combined": "combined bound", "preference": "picked or misclassified"}
"""What a trace holds under each way of early stopping."""


def bounds(groups: Sequence[Group], *, every_kind: bool = False) -> Figure | None:
    """The certified bound against the test error, task by task; with every kind of bound if that is asked for."""
    shown = [group for group in groups if (_kinds([group]) if every_kind else group.kind in _kinds([group]))]
    if not shown or groups[0].benchmark.tasks < 2:
        return None
    kinds = _kinds(shown)
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


def iterations(groups: Sequence[Group]) -> Figure | None:
    """The bound on the current task while it is learned, and the iteration that was kept."""
    shown = [group for group in groups if _traced(group)]
    if not shown:
        return None
    keys = (Key("one run", "blue"), Key("kept by early stopping", "orange", mark="dot"))
    panels, table = [], []
    most = max(3, MOST_PANELS // len(shown))
    for group in shown:
        tasks = _traced(group)
        for task in _spaced(tasks, most):
            rows = [_step_row(step, run) for run in group.runs for step in _thinned(run, task)]
            ends = [row for row in rows if row["kept"]]
            words = ", ".join(f"seed {row['seed']} at {row['iteration']}" for row in ends) or "none recorded"
            panels.append(
                Panel(
                    f"{panel_title(group)}, task {group.task(task)}",
                    partial(_curves, rows, CRITERIA.get(str(group.runs[0].settings.get("stop")), "bound")),
                    f"{group.label}, task {task}: iterations kept: {words}.",
                )
            )
        table += [row for run in group.runs for task in tasks if (row := _stop_row(group, run, task))]
    left_out = any(len(_traced(group)) > most for group in shown)
    return Figure(
        "iterations",
        "Bound against iteration, and where early stopping lands",
        "What early stopping minimises while a task is learned, one line per seed; the dot is the iteration that"
        " was kept." + (" Some tasks, evenly spaced; the table has all of them." if left_out else ""),
        tuple(panels),
        keys,
        ("method", "seed", "task", "iterations run", "kept", "minimised, there", "at the last"),
        tuple(table),
        narrow=True,
    )


def _traced(group: Group) -> list[int]:
    """The tasks whose iterations make a curve."""
    steps = Counter((step.task, run.folder) for run in group.runs for step in run.trace)
    return sorted({task for (task, _), points in steps.items() if points >= FEWEST_POINTS})


def _curves(rows: Sequence[dict[str, Any]], criterion: str) -> dict[str, Any]:
    import altair as alt

    percents = alt.Axis(format="~%", tickCount=4)
    base = alt.Chart({"values": rows}).encode(
        x=alt.X("iteration:Q", axis=alt.Axis(tickCount=4, tickMinStep=1, labelFlush=False)),
        y=alt.Y("bound:Q", title=criterion, scale=alt.Scale(zero=True, nice=4), axis=percents),
    )
    curve = base.mark_line(strokeWidth=1.5, color=theme.colour("blue"), opacity=0.75).encode(detail="seed:O")
    kept = base.transform_filter("datum.kept").mark_point(
        filled=True, size=70, opacity=1, color=theme.colour("orange")
    )
    tooltip = [
        "seed:O",
        "iteration:Q",
        alt.Tooltip("shown:N", title=criterion),
        "picked:Q",
        "errors:Q",
        "kept:N",
    ]
    cover = base.mark_point(size=120, opacity=0, filled=True).encode(tooltip=tooltip)
    made: dict[str, Any] = alt.layer(curve, kept, cover).properties(height=150).to_dict()
    return made


def panel_title(group: Group) -> str:
    """The title of a group's panel; certificates that are not valid say so."""
    return f"{group.label} – not valid" if group.not_valid else group.label


def _kinds(groups: Sequence[Group]) -> list[str]:
    present = {kind for g in groups for run in g.runs for task in run.tasks for kind in task.bounds}
    return [kind for kind in KINDS if kind in present]


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


def _thinned(run: Run, task: int) -> list[Step]:
    """A curve of about MOST_POINTS points at most, which passes through the kept iteration and the last."""
    steps = [step for step in run.trace if step.task == task]
    every = max(1, -(-len(steps) // MOST_POINTS))
    kept = run.tasks[task - 1].iterations
    return [s for i, s in enumerate(steps) if i % every == 0 or i == len(steps) - 1 or s.iteration == kept]


def _step_row(step: Step, run: Run) -> dict[str, Any]:
    kept = step.iteration == run.tasks[step.task - 1].iterations
    return vars(step) | {"shown": percent(step.bound), "seed": run.seed, "kept": kept}


def _stop_row(group: Group, run: Run, task: int) -> tuple[str, ...] | None:
    steps = {step.iteration: step.bound for step in run.trace if step.task == task}
    if not steps:
        return None
    kept, last = run.tasks[task - 1].iterations, max(steps)
    ends = ("–", "–") if kept is None else (str(kept), rate_text(steps.get(kept), upwards=True))
    return (
        group.label,
        str(run.seed),
        group.task(task),
        str(last),
        *ends,
        rate_text(steps[last], upwards=True),
    )


def _spaced(values: Sequence[int], most: int) -> list[int]:
    """At most so many values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
