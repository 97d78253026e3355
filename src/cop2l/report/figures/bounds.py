"""Figures about certificates: bounds against test error, compression sets, bounds against iterations."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from cop2l.experiments.records import TaskRow
from cop2l.report import theme
from cop2l.report.figures.figure import BOLD, PLAIN, Figure, Key, Panel, colour_scale, lines, rate_text
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.metric import KINDS, test_errors
from cop2l.report.runs import Run, Step
from cop2l.report.task_rows import LEVEL, interval
from cop2l.text import percent

TEST = Key("test error", "ink", (2, 2))
KIND_KEYS = {name: Key(kind.label, kind.colour, kind.dash) for name, kind in KINDS.items()}
KIND_LABELS = tuple(key.label for key in KIND_KEYS.values())
STRETCH = 3.5
"""A kind that reaches so many times the claim is not drawn on one scale with it."""
MOST_POINTS = 120
FEWEST_POINTS = 3
MOST_PANELS = 12
CRITERIA = {"kl": "kl bound", "combined": "combined bound", "preference": "(|G| + errors) / n"}
"""What a trace holds under each way of early stopping."""


def bounds(groups: Sequence[Group]) -> Figure | None:
    """The certified bound against the test error, task by task."""

    def panel(group: Group, keys: Sequence[Key]) -> Panel:
        series = _series(group)
        words = ", ".join(
            f"{label} {rate_text(fmean(s.mean for s in points.values()), upwards=label in KIND_LABELS)} %"
            for label, points in series.items()
        )
        drawn = {label: points for label, points in series.items() if label in {key.label for key in keys}}
        tested = {t + 1: span for t in range(group.benchmark.tasks) if (span := interval(group.runs[0], t))}
        bands = {TEST.label: tested} if len(group.runs) == 1 else {}
        draw = partial(lines, drawn, keys, "task", "error", upwards=KIND_LABELS, bands=bands)
        return Panel(titled(group), draw, f"{group.label}, mean over tasks: {words}.")

    return _of_bounds(
        groups,
        "bounds",
        "Certified bound and test error, task by task",
        "A thick line is the claim. Every bound is an upper bound on the true error of the final model; the test error"
        " estimates it." + _spread_words([group for group in groups if _kinds([group])]),
        panel,
    )


def bounds_box(groups: Sequence[Group]) -> Figure | None:
    """The same numbers as box plots over the seeds."""

    def panel(group: Group, keys: Sequence[Key]) -> Panel:
        rows = [
            {"task": task, "series": label, "value": value}
            for label, points in _numbers(group).items()
            if label in {key.label for key in keys}
            for task, values in points.items()
            for value in values
        ]
        words = f"{group.label}: box plots over {len(group.runs)} runs."
        return Panel(titled(group), partial(_boxes, rows, keys), words)

    return _of_bounds(
        groups,
        "bounds-box",
        "Certified bound and test error, spread over seeds",
        "Boxes span the quartiles and whiskers the extremes over the seeds.",
        panel,
        mark="square",
    )


def _of_bounds(
    groups: Sequence[Group],
    name: str,
    title: str,
    words: str,
    panel: Callable[[Group, Sequence[Key]], Panel],
    mark: str = "line",
) -> Figure | None:
    """A panel for each group with bounds; all keys in every one: a picture merges the scales of its panels."""
    shown, kinds = [group for group in groups if _kinds([group])], _kinds(groups)
    if not shown or groups[0].benchmark.tasks < 2:
        return None
    off = _off_scale(shown, kinds)

    def keys(own: Sequence[Group]) -> list[Key]:
        claimed = {group.kind for group in own}
        drawn = [kind for kind in kinds if kind not in off]
        return [TEST, *(replace(KIND_KEYS[kind], width=BOLD if kind in claimed else PLAIN) for kind in drawn)]

    left_out = "; ".join(f"{KIND_KEYS[kind].label}, up to {percent(value)}" for kind, value in off.items())
    every = [TEST, *(KIND_KEYS[kind] for kind in kinds)]
    return Figure(
        name,
        title,
        words
        + " Each panel has its own scale." * (len(shown) > 1)
        + f" Not drawn, because it would stretch the scale: {left_out}." * bool(off),
        tuple(panel(group, keys([group])) for group in shown),
        tuple(replace(key, mark=mark) for key in keys(shown)),
        ("method", "task", "certified on", *(key.label for key in every)),
        tuple(row for group in shown for row in _bound_rows(group, kinds)),
    )


def _off_scale(groups: Sequence[Group], kinds: Sequence[str]) -> dict[str, float]:
    """The kinds that nobody claims and that would press the others to the floor of every panel, with their largest value."""
    off = {}
    for kind in kinds:
        largest = [(_largest(group, kind), group) for group in groups]
        present = [(value, group) for value, group in largest if value is not None]
        if all(
            group.kind != kind
            and (claim := _largest(group, group.kind)) is not None
            and value > STRETCH * claim
            for value, group in present
        ):
            off[kind] = max(value for value, _ in present)
    return off


def _largest(group: Group, kind: str | None) -> float | None:
    values = [task.bounds[kind] for run in group.runs for task in run.tasks if kind in task.bounds]
    return max(values, default=None)


COUNTED = (
    ("compression", Key("kept in the first set |I|", "orange", mark="square"), "paper"),
    ("evicted", Key("evicted, second set |J|", "ochre", mark="square"), "paper"),
    ("errors", Key("errors outside |I| and |J|", "slate", mark="square"), "paper"),
    ("picked", Key("picked |G|", "blue", mark="square"), "preference"),
    ("missed", Key("misclassified |M|", "purple", mark="square"), "preference"),
)
"""What a certificate counts, its entry of the legend, and whose account it is on."""


def compression(groups: Sequence[Group]) -> Figure | None:
    """How many examples of each task a certificate counts."""
    sets = ("compression", "evicted", "picked")
    shown = [group for group in groups if any(s.mean for name in sets for s in _counts(group, name).values())]
    if not shown or groups[0].benchmark.tasks < 2:
        return None
    keys = tuple(key for _, key, _ in COUNTED)
    panels, table = [], []
    for group in shown:
        counts = {name: _counts(group, name) for name, *_ in COUNTED}
        sizes, free = (_counts(group, name) for name in ("certified_on", "trained_freely"))
        rows = _counted_rows(counts, sizes)
        words = ", ".join(
            f"{key.label} {round(fmean(s.mean for s in counts[name].values()))}"
            for name, key, _ in COUNTED
            if counts[name]
        )
        words = f"{group.label}, mean over tasks: {words} examples."
        panels.append(Panel(titled(group), partial(_bars, rows, keys), words))
        table += [
            (
                group.label,
                str(task),
                *(_count(points.get(task)) for points in (free, sizes, *counts.values())),
            )
            for task in range(1, group.benchmark.tasks + 1)
        ]
    return Figure(
        "compression",
        "What each certificate counts",
        "Left bar of a task: the paper's formula, which pays for the two compression sets by a logarithm per"
        " example and counts the errors outside them. Right bar: the preference bound, about (|G| + |M|) / n."
        " Means over the seeds.",
        tuple(panels),
        keys,
        ("method", "task", "trained freely", "certified on", *(key.label for key in keys)),
        tuple(table),
    )


def _counted_rows(counts: dict[str, dict[int, Spread]], sizes: dict[int, Spread]) -> list[dict[str, Any]]:
    return [
        {
            "task": task,
            "account": account,
            "part": key.label,
            "order": order,
            "examples": s.mean,
            "share": f"{rate_text(s.mean / sizes[task].mean)} % of n" if sizes.get(task) else "–",
        }
        for order, (name, key, account) in enumerate(COUNTED)
        for task, s in counts[name].items()
    ]


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
                    f"{titled(group)}, task {task}",
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
        " was kept. (|G| + errors) / n is what the preference bound grows with."
        + (" Some tasks, evenly spaced; the table has all of them." if left_out else ""),
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


def _boxes(rows: Sequence[dict[str, Any]], keys: Sequence[Key]) -> dict[str, Any]:
    import altair as alt

    ground, muted = {"color": theme.colour("ground")}, {"color": theme.colour("muted")}
    made: dict[str, Any] = (
        alt.Chart({"values": rows})
        .mark_boxplot(size=9, extent="min-max", median=ground, rule=muted)
        .encode(
            x=alt.X("task:O"),
            xOffset=alt.XOffset("series:N", sort=[key.label for key in keys]),
            y=alt.Y("value:Q", title="error", axis=alt.Axis(format="~%"), scale=alt.Scale(zero=True)),
            color=alt.Color("series:N", scale=colour_scale(keys), legend=None),
        )
        .properties(height=230)
        .to_dict()
    )
    return made


def _bars(rows: Sequence[dict[str, Any]], keys: Sequence[Key]) -> dict[str, Any]:
    import altair as alt

    made: dict[str, Any] = (
        alt.Chart({"values": rows})
        .mark_bar(opacity=0.88)
        .encode(
            x=alt.X("task:O", axis=alt.Axis(labelOverlap=True), scale=alt.Scale(paddingInner=0.3)),
            xOffset=alt.XOffset("account:N", sort=["paper", "preference"]),
            y=alt.Y("examples:Q", title="examples", axis=alt.Axis(tickCount=5)),
            color=alt.Color("part:N", scale=colour_scale(keys), legend=None),
            order=alt.Order("order:Q"),
            tooltip=["task:O", "part:N", alt.Tooltip("examples:Q", format=",.1f"), "share:N"],
        )
        .properties(height=230)
        .to_dict()
    )
    return made


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


def titled(group: Group) -> str:
    """The title of a group's panel; certificates that are not valid say so."""
    return f"{group.label} – not valid" if group.not_valid else group.label


def _kinds(groups: Sequence[Group]) -> list[str]:
    present = {kind for g in groups for run in g.runs for task in run.tasks for kind in task.bounds}
    return [kind for kind in KINDS if kind in present]


def _values(group: Group, of: Callable[[Run, TaskRow], float | None]) -> dict[int, list[float]]:
    """A number of every run that has it, by task."""
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for row in run.tasks:
            if (value := of(run, row)) is not None:
                found.setdefault(row.task, []).append(value)
    return found


def _numbers(group: Group) -> dict[str, dict[int, list[float]]]:
    """Test errors and bounds, by label and task."""
    numbers = {TEST.label: _values(group, lambda run, row: test_errors(run)[row.task - 1])}
    for kind in _kinds([group]):
        numbers[KIND_KEYS[kind].label] = _values(group, lambda _, row, kind=kind: row.bounds.get(kind))  # type: ignore[misc]
    return numbers


def _series(group: Group) -> dict[str, dict[int, Spread]]:
    return {label: {t: spread(v) for t, v in points.items()} for label, points in _numbers(group).items()}


def _bound_rows(group: Group, kinds: Sequence[str]) -> list[tuple[str, ...]]:
    series, sizes = _series(group), _counts(group, "certified_on")
    labels = [TEST.label, *(KIND_KEYS[kind].label for kind in kinds)]
    return [
        (
            titled(group),
            str(task),
            _count(sizes.get(task)),
            *(rate_text(series.get(label, {}).get(task), upwards=label in KIND_LABELS) for label in labels),
        )
        for task in range(1, group.benchmark.tasks + 1)
    ]


def _counts(group: Group, name: str) -> dict[int, Spread]:
    return {t: spread(v) for t, v in _values(group, lambda _, row: getattr(row, name)).items()}


def _count(value: Spread | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:.0f}" + (f" ± {value.sd:.0f}" if value.sd else "")


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
    return (group.label, str(run.seed), str(task), str(last), *ends, rate_text(steps[last], upwards=True))


def _spaced(values: Sequence[int], most: int) -> list[int]:
    """At most so many values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
