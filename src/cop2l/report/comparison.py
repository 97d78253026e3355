"""One table per metric: methods as rows, streams as columns, mean and deviation over the seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cop2l.certify import notebook
from cop2l.errors import UserError
from cop2l.report.groups import Benchmark, Group, Spread
from cop2l.report.metric import SCALES, Metric, metric, test_errors
from cop2l.report.published import Published, Row, published
from cop2l.text import count, percent, rounded

FAR_BEHIND = 0.5
"""Less than this share of the best accuracy, or plasticity, of a stream is not to have learned."""
NEAR_GUESSING = 1.2
"""Neither is less than so many times the accuracy of a guess."""
MOST_GAINED = 0.1
DIGITS = {"%": 2, "s": 1, "x": 2, "MB": 0, "examples": 0}


@dataclass(frozen=True)
class Cell:
    """One method on one stream."""

    group: Group
    ours: Spread
    published: Published | None
    valid: bool
    learned: bool
    best: bool = False


@dataclass(frozen=True, repr=False)
class Comparison:
    """A table: `cells[row][column]` is None where a method was not run."""

    metric: Metric
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    shared: str
    """What all the columns have in common and their names therefore leave out."""

    def of(self, group: Group) -> Cell | None:
        """The cell of a group."""
        return next((cell for cell in self.filled if cell.group is group), None)

    def __repr__(self) -> str:
        methods, streams = (
            f"{n} {noun}{'s' * (n != 1)}"
            for n, noun in ((len(self.rows), "method"), (len(self.columns), "stream"))
        )
        return f"Comparison({self.metric.name}, {methods}, {streams})"

    def _repr_html_(self) -> str:
        from cop2l.report.formats import caption, cell_text, footnotes

        rows = [
            (label, *(cell_text(cell, self) for cell in row))
            for label, row in zip(self.rows, self.cells, strict=True)
        ]
        bold = [
            (r, c) for r, row in enumerate(self.cells) for c, cell in enumerate(row, 1) if cell and cell.best
        ]
        said = (notebook.sentence(words, quiet=True) for words in footnotes(self))
        made = notebook.table(rows, ("method", *self.columns), bold=bold)
        return notebook.card(caption(self, "best in bold"), made, *said)

    @property
    def filled(self) -> list[Cell]:
        """The cells that hold a number."""
        return [cell for row in self.cells for cell in row if cell]


def compare(groups: Sequence[Group], metric: Metric, beside: Sequence[Row] = ()) -> Comparison:
    """The comparison of groups in one metric, published numbers beside them; empty rows and columns are left out."""
    found: dict[tuple[str, Benchmark], Cell] = {}
    idle = {id(group) for group in unlearned(groups)}
    for group in sorted(groups, key=lambda group: group.order):
        ours = metric.over_seeds(group)
        if ours is not None:
            valid = not (metric.certified and group.not_valid)
            found[group.label, group.benchmark] = Cell(
                group, ours, published(beside, group, metric.name), valid, id(group) not in idle
            )
    labels = tuple(dict.fromkeys(label for label, _ in found))
    benchmarks = tuple(sorted({benchmark for _, benchmark in found}))
    for benchmark in benchmarks:
        for cell in _best([cell for (_, other), cell in found.items() if other == benchmark], metric):
            found[cell.group.label, benchmark] = replace(cell, best=True)
    cells = tuple(tuple(found.get((label, benchmark)) for benchmark in benchmarks) for label in labels)
    names, shared = column_names(benchmarks)
    return Comparison(metric, labels, names, cells, shared)


def comparisons(
    groups: Sequence[Group], names: Sequence[str], beside: Sequence[Row] = ()
) -> list[Comparison]:
    """One comparison per metric; a metric that no run has is left out, unless that leaves nothing."""
    made = [compare(groups, metric(name), beside) for name in names]
    filled = [comparison for comparison in made if comparison.filled]
    if not filled:
        raise UserError(f"None of these runs has {', '.join(names)}; choose another metric.")
    return filled


def column_names(benchmarks: Sequence[Benchmark]) -> tuple[tuple[str, ...], str]:
    """Short names for benchmarks: what differs between them; and what they share.

    >>> column_names([Benchmark("mnist", "class-incremental", model, 5) for model in ("mlp", "cnn")])
    (('mnist, mlp', 'mnist, cnn'), 'class-incremental, 5 tasks')
    """
    scenarios = {benchmark.scenario for benchmark in benchmarks}
    models = {benchmark.model for benchmark in benchmarks}
    tasks = {benchmark.tasks for benchmark in benchmarks}
    names = tuple(
        ", ".join(
            [benchmark.stream]
            + [benchmark.scenario] * (len(scenarios) > 1)
            + [benchmark.model] * (len(models) > 1)
            + [count(benchmark.tasks, "task")] * (len(tasks) > 1)
        )
        for benchmark in benchmarks
    )
    shared = [*scenarios] * (len(scenarios) == 1) + [*models] * (len(models) == 1)
    shared += [count(n, "task") for n in tasks] * (len(tasks) == 1)
    return names, ", ".join(shared)


def written(value: float, metric: Metric) -> str:
    """A number of this metric in its display unit; bounds are rounded upwards.

    >>> from cop2l.report.metric import METRICS
    >>> written(0.95121, METRICS["accuracy"]), written(0.05121, METRICS["kl"])
    ('95.12', '5.13')
    """
    if metric.certified and metric.unit == "%":
        return percent(value).removesuffix(" %")
    return rounded(value, DIGITS[metric.unit], SCALES[metric.unit])


def quoted(number: Published, metric: Metric) -> str:
    """A published mean and its deviation as they were printed: not rounded upwards once more."""
    return rounded(number.mean, DIGITS[metric.unit], SCALES[metric.unit]) + written_sd(number.sd, metric)


def written_sd(value: float | None, metric: Metric) -> str:
    """A deviation behind a mean; nothing if there is none."""
    return "" if value is None else f" ± {rounded(value, DIGITS[metric.unit], SCALES[metric.unit])}"


def unlearned(groups: Sequence[Group]) -> list[Group]:
    """The groups that did not learn: near guessing, or far behind in accuracy or plasticity; to be best says nothing of them."""
    return [
        group
        for group in groups
        if any(
            mean(group)
            < FAR_BEHIND * max(mean(other) for other in groups if other.benchmark == group.benchmark)
            or mean(group) <= NEAR_GUESSING * _guessing(group)
            for mean in (_mean_of("accuracy"), _mean_of("plasticity"))
        )
    ]


def _mean_of(name: str) -> Callable[[Group], float]:
    return lambda group: fmean(getattr(run, name) for run in group.runs)


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
    best = (max if metric.better == "higher" else min)(able, key=lambda cell: _worth(cell, metric))
    level = [cell for cell in able if _level(cell, best, metric)]
    displays = {written(cell.ours.mean, metric) for cell in cells}
    return level if len(level) < len(cells) and len(displays) > 1 else []


def _worth(cell: Cell, metric: Metric) -> float:
    """The number that is compared: nothing forgotten is not improved upon by a negative number."""
    return max(0.0, cell.ours.mean) if metric.name == "forgetting" else cell.ours.mean


def _level(cell: Cell, best: Cell, metric: Metric) -> bool:
    """Whether a number is displayed as the best one is, or differs from it by no more than either varies."""
    if written(cell.ours.mean, metric) == written(best.ours.mean, metric):
        return True
    noise = min(_noise(cell, metric), _noise(best, metric))
    return abs(_worth(cell, metric) - _worth(best, metric)) <= noise


def _noise(cell: Cell, metric: Metric) -> float:
    """The deviation over the seeds; of a single run what is measured varies with the test part, and nothing else does."""
    if cell.ours.sd is not None:
        return cell.ours.sd
    if metric.certified or metric.unit != "%":
        return 0.0
    run = cell.group.runs[0]
    errors = [(p, task.test_n) for p, task in zip(test_errors(run), run.tasks, strict=True)]
    return math.sqrt(sum(p * (1 - p) / n for p, n in errors if n)) / len(errors)
