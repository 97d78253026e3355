"""Tables of methods: streams as columns for one metric, or metrics as columns for one stream."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cop2l.errors import UserError
from cop2l.report.groups import Benchmark, Group, Spread
from cop2l.report.metric import Metric, test_errors
from cop2l.report.metric import metric as metric_named
from cop2l.text import count

FAR_BEHIND = 0.5
"""A method did not learn if it has less than this share of the best accuracy, or plasticity, of its stream."""
NEAR_GUESSING = 1.2
"""A method did not learn if its accuracy is below this multiple of that of a guess."""
MOST_GAINED = 0.1
"""A forgetting below minus this is never the best: tasks were learned only after their time."""


@dataclass(frozen=True)
class Cell:
    """One metric of one method on one stream."""

    group: Group
    metric: Metric
    value: Spread
    valid: bool
    learned: bool
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table: `cells[row][column]` is None if a method was not run, or does not have the metric."""

    title: str
    shared: str
    """What all columns have in common; the names of the columns leave it out."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    @property
    def filled(self) -> list[Cell]:
        """The cells that hold a number."""
        return [cell for row in self.cells for cell in row if cell]


def tables(groups: Sequence[Group], names: Sequence[str]) -> list[Table]:
    """One table with the metrics as columns if there is one stream, else a table per metric with the streams as columns.

    Metrics that no run has are left out; it is an error if none is left.
    """
    metrics = [metric for name in names if _has(groups, metric := metric_named(name))]
    if not metrics:
        raise UserError(f"None of these runs has {', '.join(names)}; choose another metric.")
    streams, shared = column_names(sorted({group.benchmark for group in groups}))
    if len(streams) == 1:
        columns = [_column(groups, metric) for metric in metrics]
        heads = [f"{metric.title}, {metric.unit}".removesuffix(", examples") for metric in metrics]
        return [_table(streams[0], shared, heads, columns)]
    result = []
    for metric in metrics:
        benchmarks = sorted({group.benchmark for group in groups if _has([group], metric)})
        streams, shared = column_names(benchmarks)
        columns = [_column([g for g in groups if g.benchmark == b], metric) for b in benchmarks]
        result.append(_table(f"{metric.title}, {metric.unit}", shared, streams, columns))
    return result


def _has(groups: Sequence[Group], metric: Metric) -> bool:
    return any(metric.over_seeds(group) for group in groups)


def _table(title: str, shared: str, heads: Sequence[str], columns: Sequence[dict[str, Cell]]) -> Table:
    orders = {cell.group.label: cell.group.order for column in columns for cell in column.values()}
    labels = tuple(sorted(orders, key=lambda label: orders[label]))
    cells = tuple(tuple(column.get(label) for column in columns) for label in labels)
    return Table(title, shared, labels, tuple(heads), cells)


def _column(groups: Sequence[Group], metric: Metric) -> dict[str, Cell]:
    """The cells of one stream and metric, by the labels of their groups."""
    failed = {id(group) for group in failed_groups(groups)}
    cells = [
        Cell(
            group,
            metric,
            value,
            valid=not (metric.certified and group.not_valid),
            learned=id(group) not in failed,
        )
        for group in groups
        if (value := metric.over_seeds(group))
    ]
    best = {id(cell) for cell in _best(cells, metric)}
    return {cell.group.label: replace(cell, best=id(cell) in best) for cell in cells}


def column_names(benchmarks: Sequence[Benchmark]) -> tuple[tuple[str, ...], str]:
    """Short names for benchmarks, from what differs between them; and what they share.

    >>> column_names([Benchmark("mnist", "class-incremental", model, 5) for model in ("mlp", "cnn")])
    (('mnist, mlp', 'mnist, cnn'), 'class-incremental, 5 tasks')
    """
    properties = [(b.scenario, b.model, count(b.tasks, "task")) for b in benchmarks]
    shared = [texts[0] for texts in zip(*properties, strict=True) if len(set(texts)) == 1]
    names = tuple(
        ", ".join([b.stream, *(text for text in texts if text not in shared)])
        for b, texts in zip(benchmarks, properties, strict=True)
    )
    return names, ", ".join(shared)


def failed_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups on one stream that did not learn: near guessing, or far behind in accuracy or plasticity."""
    failed = []
    for name in ("accuracy", "plasticity"):
        means = [fmean(getattr(run, name) for run in group.runs) for group in groups]
        failed += [
            group
            for group, mean in zip(groups, means, strict=True)
            if mean < FAR_BEHIND * max(means) or mean <= NEAR_GUESSING * _guessing(group)
        ]
    return failed


def _guessing(group: Group) -> float:
    """The accuracy of a guess; 0 if the classes are not known."""
    classes = len(group.runs[0].classes[-1]) if group.runs[0].classes else 0
    heads = group.benchmark.tasks if group.benchmark.scenario == "task-incremental" else 1
    return min(1.0, heads / classes) if classes else 0.0


def _best(cells: Sequence[Cell], metric: Metric) -> list[Cell]:
    """The best of a column and all that are level with it; none if that is the whole column."""
    able = [cell for cell in cells if cell.valid and cell.learned]
    if metric.name == "forgetting":
        able = [cell for cell in able if cell.value.mean > -MOST_GAINED]
    if metric.better == "neither" or not able:
        return []
    best = (max if metric.better == "higher" else min)(able, key=_worth)
    level = [cell for cell in able if _level(cell, best)]
    displays = {metric.text(cell.value.mean) for cell in cells}
    return level if len(level) < len(cells) and len(displays) > 1 else []


def _worth(cell: Cell) -> float:
    """The number that is compared: a negative forgetting counts as 0."""
    return max(0.0, cell.value.mean) if cell.metric.name == "forgetting" else cell.value.mean


def _level(cell: Cell, best: Cell) -> bool:
    """Whether a number looks like the best when displayed, or differs from it by no more than the noise of either."""
    if cell.metric.text(cell.value.mean) == best.metric.text(best.value.mean):
        return True
    return abs(_worth(cell) - _worth(best)) <= min(_noise(cell), _noise(best))


def _noise(cell: Cell) -> float:
    """The deviation over the seeds; for a single run the standard error on the test part, and 0 for bounds and times."""
    if cell.value.sd is not None:
        return cell.value.sd
    if cell.metric.certified or cell.metric.unit != "%":
        return 0.0
    run = cell.group.runs[0]
    errors = [(p, task.test_n) for p, task in zip(test_errors(run), run.tasks, strict=True)]
    return math.sqrt(sum(p * (1 - p) / n for p, n in errors if n)) / len(errors)
