"""Tables of methods: streams as columns for one metric, or metrics as columns for one stream."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cop2l.errors import UserError
from cop2l.report.groups import Benchmark, Group, Spread
from cop2l.report.metric import SCALES, Metric, metric, test_errors
from cop2l.report.published import Published, Row, published
from cop2l.text import count, percent, rounded_text

FAR_BEHIND = 0.5
"""Less than this share of the best accuracy, or plasticity, of a stream is not to have learned."""
NEAR_GUESSING = 1.2
"""Neither is less than so many times the accuracy of a guess."""
MOST_GAINED = 0.1
DIGITS = {"%": 2, "s": 1, "x": 2, "MB": 0, "examples": 0}


@dataclass(frozen=True)
class Cell:
    """One metric of one method on one stream."""

    group: Group
    metric: Metric
    ours: Spread
    published: Published | None
    valid: bool
    learned: bool
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table: `cells[row][column]` is None where a method was not run, or lacks the metric."""

    title: str
    shared: str
    """What all the columns have in common and their names therefore leave out."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    @property
    def filled(self) -> list[Cell]:
        """The cells that hold a number."""
        return [cell for row in self.cells for cell in row if cell]


def tables(groups: Sequence[Group], names: Sequence[str], beside: Sequence[Row] = ()) -> list[Table]:
    """Of one stream, one table with the metrics as columns; of several, a table per metric with the streams as columns.

    Published numbers stand beside ours. A metric that no run has is left out, unless that leaves nothing.
    """
    metrics = [one for name in names if _has(groups, one := metric(name))]
    if not metrics:
        raise UserError(f"None of these runs has {', '.join(names)}; choose another metric.")
    streams, shared = column_names(sorted({group.benchmark for group in groups}))
    if len(streams) == 1:
        columns = [_column(groups, one, beside) for one in metrics]
        heads = [f"{one.title}, {one.unit}".removesuffix(", examples") for one in metrics]
        return [_table(streams[0], shared, heads, columns)]
    made = []
    for one in metrics:
        benchmarks = sorted({group.benchmark for group in groups if _has([group], one)})
        streams, shared = column_names(benchmarks)
        columns = [_column([g for g in groups if g.benchmark == b], one, beside) for b in benchmarks]
        made.append(_table(f"{one.title}, {one.unit}", shared, streams, columns))
    return made


def _has(groups: Sequence[Group], metric: Metric) -> bool:
    return any(metric.over_seeds(group) for group in groups)


def _table(title: str, shared: str, heads: Sequence[str], columns: Sequence[dict[str, Cell]]) -> Table:
    found = {cell.group.label: cell.group.order for column in columns for cell in column.values()}
    labels = tuple(sorted(found, key=lambda label: found[label]))
    cells = tuple(tuple(column.get(label) for column in columns) for label in labels)
    return Table(title, shared, labels, tuple(heads), cells)


def _column(groups: Sequence[Group], metric: Metric, beside: Sequence[Row]) -> dict[str, Cell]:
    """The methods on one stream, by their labels."""
    idle = {id(group) for group in failed_groups(groups)}
    cells = [
        Cell(
            group,
            metric,
            ours,
            published(beside, group, metric.name),
            valid=not (metric.certified and group.not_valid),
            learned=id(group) not in idle,
        )
        for group in groups
        if (ours := metric.over_seeds(group))
    ]
    best = {id(cell) for cell in _best(cells, metric)}
    return {cell.group.label: replace(cell, best=id(cell) in best) for cell in cells}


def column_names(benchmarks: Sequence[Benchmark]) -> tuple[tuple[str, ...], str]:
    """Short names for benchmarks: what differs between them; and what they share.

    >>> column_names([Benchmark("mnist", "class-incremental", model, 5) for model in ("mlp", "cnn")])
    (('mnist, mlp', 'mnist, cnn'), 'class-incremental, 5 tasks')
    """
    described = [(b.scenario, b.model, count(b.tasks, "task")) for b in benchmarks]
    same = [len(set(column)) == 1 for column in zip(*described, strict=True)]
    names = tuple(
        ", ".join([b.stream, *(word for word, shared in zip(words, same, strict=True) if not shared)])
        for b, words in zip(benchmarks, described, strict=True)
    )
    common = [word for word, shared in zip(described[0], same, strict=True) if shared] if described else []
    return names, ", ".join(common)


def metric_text(value: float, metric: Metric) -> str:
    """A number of this metric in its display unit; bounds are rounded upwards.

    >>> from cop2l.report.metric import METRICS
    >>> metric_text(0.95121, METRICS["accuracy"]), metric_text(0.05121, METRICS["kl"])
    ('95.12', '5.13')
    """
    if metric.certified and metric.unit == "%":
        return percent(value).removesuffix(" %")
    return rounded_text(value, DIGITS[metric.unit], SCALES[metric.unit])


def published_text(number: Published, metric: Metric) -> str:
    """A published mean and its deviation as they were printed: not rounded upwards once more."""
    return rounded_text(number.mean, DIGITS[metric.unit], SCALES[metric.unit]) + written_sd(number.sd, metric)


def written_sd(value: float | None, metric: Metric) -> str:
    """A deviation behind a mean; nothing if there is none."""
    return "" if value is None else f" ± {rounded_text(value, DIGITS[metric.unit], SCALES[metric.unit])}"


def failed_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups on one stream that did not learn: near guessing, or far behind in accuracy or plasticity."""
    found = []
    for name in ("accuracy", "plasticity"):
        means = [fmean(getattr(run, name) for run in group.runs) for group in groups]
        found += [
            group
            for group, mean in zip(groups, means, strict=True)
            if mean < FAR_BEHIND * max(means) or mean <= NEAR_GUESSING * _guessing(group)
        ]
    return found


def _guessing(group: Group) -> float:
    """The accuracy of a guess; 0 where the classes are not known."""
    classes = len(group.runs[0].classes[-1]) if group.runs[0].classes else 0
    heads = group.benchmark.tasks if group.benchmark.scenario == "task-incremental" else 1
    return min(1.0, heads / classes) if classes else 0.0


def _best(cells: Sequence[Cell], metric: Metric) -> list[Cell]:
    """The best of a column and all that are level with it; none where that is all there are."""
    able = [cell for cell in cells if cell.valid and cell.learned]
    if metric.name == "forgetting":  # far below zero, tasks were learned only after their time
        able = [cell for cell in able if cell.ours.mean > -MOST_GAINED]
    if metric.better == "neither" or not able:
        return []
    best = (max if metric.better == "higher" else min)(able, key=_worth)
    level = [cell for cell in able if _level(cell, best)]
    displays = {metric_text(cell.ours.mean, metric) for cell in cells}
    return level if len(level) < len(cells) and len(displays) > 1 else []


def _worth(cell: Cell) -> float:
    """The number that is compared: nothing forgotten is not improved upon by a negative number."""
    return max(0.0, cell.ours.mean) if cell.metric.name == "forgetting" else cell.ours.mean


def _level(cell: Cell, best: Cell) -> bool:
    """Whether a number is displayed as the best one is, or differs from it by no more than either varies."""
    if metric_text(cell.ours.mean, cell.metric) == metric_text(best.ours.mean, best.metric):
        return True
    return abs(_worth(cell) - _worth(best)) <= min(_noise(cell), _noise(best))


def _noise(cell: Cell) -> float:
    """The deviation over the seeds; of a single run what is measured varies with the test part, and nothing else does."""
    if cell.ours.sd is not None:
        return cell.ours.sd
    if cell.metric.certified or cell.metric.unit != "%":
        return 0.0
    run = cell.group.runs[0]
    errors = [(p, task.test_n) for p, task in zip(test_errors(run), run.tasks, strict=True)]
    return math.sqrt(sum(p * (1 - p) / n for p, n in errors if n)) / len(errors)
