"""The figures "matrix", "progress", "plasticity", "classes" and "against"."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cop2l.errors import UserError
from cop2l.metrics import average_accuracy, forgetting
from cop2l.report import theme
from cop2l.report.figures.figure import (
    NOT_VALID,
    Figure,
    Key,
    Panel,
    colour_scale,
    lines,
    rate_text,
    series_keys,
    widen_domain,
)
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.metric import Metric

MOST_NUMBERED = 10
"""In longer rows the cells have no numbers."""
SHADES = (0.0, 0.5, 0.8, 0.9, 1.0)
"""The accuracies in the legend of a heat map."""


def matrix(groups: Sequence[Group]) -> Figure | None:
    """The accuracy on every task after every task, as a heat map; None for one task."""
    if groups[0].benchmark.tasks < 2:
        return None
    panels, table = [], []
    for group in groups:
        rows = [
            {"after task": s, "task": t, **_cell(spread(run.matrix[s - 1][t - 1] for run in group.runs))}
            for s in range(1, group.benchmark.tasks + 1)
            for t in range(1, s + 1)
        ]
        numbered = group.benchmark.tasks <= MOST_NUMBERED
        height = 200 if numbered else 260
        chart = partial(_heat_map, rows, "task", "after task", numbered=numbered, height=height)
        final = rate_text(spread(run.accuracy for run in group.runs))
        description = (
            f"{group.label}: accuracy on each task after each task; average after the last {final} %."
        )
        panels.append(Panel(group.label, chart, description))
        table += [
            (group.label, group.task(row["after task"]), group.task(row["task"]), row["accuracy"])
            for row in rows
        ]
    return Figure(
        "matrix",
        "Accuracy on every task after every task",
        "Each row is the accuracy after one more task; a column that falls shows what is forgotten."
        + " Means over the seeds." * _several_seeds(groups),
        tuple(panels),
        _shade_keys(),
        ("method", "after task", "task", "accuracy, %"),
        tuple(table),
        narrow=True,
    )


def progress(groups: Sequence[Group]) -> Figure | None:
    """Average accuracy and forgetting after each task."""
    keys = series_keys([group.label for group in groups])
    measured: tuple[tuple[str, str, Callable[..., float | None]], ...] = (
        ("average accuracy on the tasks seen", "accuracy", average_accuracy),
        ("forgetting", "forgetting", forgetting),
    )
    panels, tables = [], []
    for title, short, measure in measured:
        series = {group.label: _over_time(group, measure) for group in groups}
        tables.append(series)
        ends = ", ".join(
            f"{label} {rate_text(points[max(points)])} %" for label, points in series.items() if points
        )
        if any(len(points) > 1 for points in series.values()):
            chart = partial(lines, series, keys, ("after task", short))
            panels.append(Panel(title.capitalize(), chart, f"{title} after the last task: {ends}."))
    if not panels:
        return None
    return Figure(
        "progress",
        "Accuracy and forgetting as tasks arrive",
        "Over the tasks seen so far, on their test parts."
        + " Bands: one standard deviation over the seeds." * _several_seeds(groups),
        tuple(panels),
        keys,
        ("method", "after task", *(f"{title}, %" for title, *_ in measured)),
        tuple(
            (g.label, g.task(s), *(rate_text(series[g.label].get(s)) for series in tables))
            for g in groups
            for s in range(1, g.benchmark.tasks + 1)
        ),
    )


def plasticity(groups: Sequence[Group]) -> Figure | None:
    """Plasticity against forgetting, one dot per run."""
    shown = [group for group in groups if all(run.forgetting is not None for run in group.runs)]
    if not shown:
        return None
    keys = series_keys([group.label for group in shown], mark="dot")
    rows = [
        {"method": group.label, "seed": run.seed, "forgetting": run.forgetting, "plasticity": run.plasticity}
        for group in shown
        for run in group.runs
    ]
    table = tuple(
        (
            group.label,
            rate_text(spread(run.plasticity for run in group.runs)),
            rate_text(spread(run.forgetting for run in group.runs if run.forgetting is not None)),
        )
        for group in shown
    )
    description = "; ".join(f"{label}: plasticity {p} %, forgetting {f} %" for label, p, f in table)
    return Figure(
        "plasticity",
        "Plasticity against forgetting",
        "Plasticity is the accuracy on a task right after it was learned. Up and to the left is better. One dot per run.",
        (Panel("", partial(_dots, rows, keys), f"{description}."),),
        keys,
        ("method", "plasticity, %", "forgetting, %"),
        table,
    )


def classes(groups: Sequence[Group]) -> Figure | None:
    """Accuracy of every class after every task."""
    shown = [group for group in groups if all(all(run.classes) and run.classes for run in group.runs)]
    if not shown:
        return None
    panels, table = [], []
    for group in shown:
        class_names = group.runs[0].class_names
        rows = [
            {"after task": s, "class": class_names[c] if c < len(class_names) else c, **_cell(value)}
            for s in range(1, group.benchmark.tasks + 1)
            for c, value in _class_spreads(group, s - 1).items()
        ]
        number = len({row["class"] for row in rows})
        height = min(420, 18 * number + 20)
        chart = partial(_heat_map, rows, "after task", "class", numbered=False, height=height)
        description = (
            f"{group.label}: accuracy of {number} classes after each of {group.benchmark.tasks} tasks."
        )
        panels.append(Panel(group.label, chart, description))
        table += [
            (group.label, group.task(row["after task"]), str(row["class"]), row["accuracy"]) for row in rows
        ]
    return Figure(
        "classes",
        "Accuracy of each class as tasks arrive",
        "On the test part, for the classes seen so far." + " Means over the seeds." * _several_seeds(groups),
        tuple(panels),
        _shade_keys(),
        ("method", "after task", "class", "accuracy, %"),
        tuple(table),
        narrow=True,
    )


def against(groups: Sequence[Group], key: str, metric: Metric) -> Figure | None:
    """A metric against a setting that was varied, such as the memory."""
    series: dict[str, dict[Any, Spread]] = {}
    for group in groups:
        value = group.runs[0].settings.get(key)
        number = metric.over_seeds(group)
        if number is not None and isinstance(value, int | float):
            label = group.label_without(key) + NOT_VALID * bool(metric.certified and group.not_valid)
            series.setdefault(label, {})[value] = number
    if len({value for points in series.values() for value in points}) < 2:
        return None
    if metric.unit != "%":
        raise UserError(f"{metric.name} is not a rate; choose accuracy, forgetting, plasticity or a bound.")
    keys = series_keys(list(series))
    description = "; ".join(
        f"{label} up to {rate_text(max(p.values()), upwards=metric.certified)} %"
        for label, p in series.items()
    )
    bounds = [*series] if metric.certified else []
    chart = partial(lines, series, keys, (key, metric.title), upwards=bounds)
    return Figure(
        f"against-{key}",
        f"{metric.title.capitalize()} against {key}",
        "Bands: one standard deviation over the seeds." if _several_seeds(groups) else "One seed.",
        (Panel("", chart, f"{description}."),),
        keys,
        ("method", key, f"{metric.title}, %"),
        tuple(
            (label, str(v), rate_text(s, upwards=metric.certified))
            for label, points in series.items()
            for v, s in sorted(points.items())
        ),
    )


def _dots(rows: Sequence[dict[str, Any]], keys: Sequence[Key]) -> dict[str, Any]:
    import altair as alt

    axis = alt.Axis(format="~%", tickCount=5, grid=True)
    scales = {
        name: alt.Scale(domain=widen_domain([row[name] for row in rows]), nice=5)
        for name in ("forgetting", "plasticity")
    }
    chart: dict[str, Any] = (
        alt.Chart({"values": rows})
        .mark_point(filled=True, size=90, opacity=0.85)
        .encode(
            x=alt.X("forgetting:Q", axis=axis, scale=scales["forgetting"]),
            y=alt.Y("plasticity:Q", axis=axis, scale=scales["plasticity"]),
            color=alt.Color("method:N", scale=colour_scale(keys), legend=None),
            tooltip=[
                "method:N",
                "seed:O",
                alt.Tooltip("forgetting:Q", format=".2%"),
                alt.Tooltip("plasticity:Q", format=".2%"),
            ],
        )
        .properties(height=260)
        .to_dict()
    )
    return chart


def _several_seeds(groups: Sequence[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def _over_time(group: Group, measure: Callable[..., float | None]) -> dict[int, Spread]:
    points = {}
    for s in range(1, group.benchmark.tasks + 1):
        values = [value for run in group.runs if (value := measure(run.matrix[:s])) is not None]
        if values:
            points[s] = spread(values)
    return points


def _class_spreads(group: Group, index: int) -> dict[int, Spread]:
    common = set.intersection(*(set(run.classes[index]) for run in group.runs))
    return {c: spread(run.classes[index][c] for run in group.runs) for c in sorted(common)}


def _cell(value: Spread) -> dict[str, Any]:
    return {"value": value.mean, "accuracy": rate_text(value), "short": f"{100 * value.mean:.0f}"}


def _heat_map(
    rows: Sequence[dict[str, Any]], x: str, y: str, *, numbered: bool, height: int
) -> dict[str, Any]:
    """A heat map in one colour; its opacity is the accuracy, so it reads on light and on dark ground."""
    import altair as alt

    base = alt.Chart({"values": list(rows)}).encode(
        x=alt.X(f"{x}:O", sort=None, axis=alt.Axis(labelOverlap=True, ticks=False, domain=False)),
        y=alt.Y(f"{y}:O", sort=None, axis=alt.Axis(labelOverlap=True, labelLimit=110)),
        tooltip=[f"{x}:O", f"{y}:O", alt.Tooltip("accuracy:N", title="accuracy, %")],
    )
    shade = alt.Scale(type="pow", exponent=2, domain=[0, 1], range=[0.05, 0.95])
    cells = base.mark_rect(color=theme.colour("accent"), stroke=theme.colour("ground"), strokeWidth=1).encode(
        opacity=alt.Opacity("value:Q", scale=shade, legend=None)
    )
    if not numbered:
        return alt.layer(cells).properties(height=height).to_dict()
    numbers = base.mark_text(fontSize=11).encode(
        text="short:N",
        color=alt.condition(
            "datum.value > 0.85", alt.value(theme.colour("ground")), alt.value(theme.colour("ink"))
        ),
    )
    return alt.layer(cells, numbers).properties(height=height).to_dict()


def _shade_keys() -> tuple[Key, ...]:
    return tuple(Key(f"{100 * a:.0f} %", "accent", mark="square", opacity=0.05 + 0.9 * a**2) for a in SHADES)
