"""One table per metric: methods as rows, streams as columns, mean and deviation over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal

from cop2l.errors import UserError
from cop2l.kernel.arithmetic import percent
from cop2l.report.groups import Benchmark, Group, Spread
from cop2l.report.metric import SCALES, Metric, metric
from cop2l.report.published import Published, Row, published

DIGITS = {"%": 2, "s": 1, "x": 2, "MB": 0, "examples": 0}


@dataclass(frozen=True)
class Cell:
    """One method on one stream."""

    group: Group
    ours: Spread
    published: Published | None
    valid: bool
    best: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table: `cells[row][column]` is None where a method was not run."""

    metric: Metric
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    shared: str
    """What all the columns have in common and their names therefore leave out."""

    def of(self, group: Group) -> Cell | None:
        """The cell of a group."""
        return next((cell for cell in self.filled if cell.group is group), None)

    @property
    def filled(self) -> list[Cell]:
        """The cells that hold a number."""
        return [cell for row in self.cells for cell in row if cell]


def compare(groups: Sequence[Group], metric: Metric, beside: Sequence[Row] = ()) -> Comparison:
    """The comparison of groups in one metric, published numbers beside them; empty rows and columns are left out."""
    found: dict[tuple[str, Benchmark], Cell] = {}
    for group in sorted(groups, key=lambda group: group.order):
        ours = metric.over_seeds(group)
        if ours is not None:
            valid = not (metric.certified and group.not_valid)
            found[group.label, group.benchmark] = Cell(
                group, ours, published(beside, group, metric.name), valid
            )
    labels = tuple(dict.fromkeys(label for label, _ in found))
    benchmarks = tuple(sorted({benchmark for _, benchmark in found}))
    best = {
        benchmark: _best([c for (_, p), c in found.items() if p == benchmark], metric)
        for benchmark in benchmarks
    }
    cells = tuple(
        tuple(_marked(found.get((label, benchmark)), best[benchmark], metric) for benchmark in benchmarks)
        for label in labels
    )
    names, shared = column_names(benchmarks)
    return Comparison(metric, labels, names, benchmarks, cells, shared)


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
            + [_tasks(benchmark.tasks)] * (len(tasks) > 1)
        )
        for benchmark in benchmarks
    )
    shared = [*scenarios] * (len(scenarios) == 1) + [*models] * (len(models) == 1)
    shared += [_tasks(n) for n in tasks] * (len(tasks) == 1)
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


def rounded(value: float, digits: int, scale: str) -> str:
    """A number times the scale with so many digits, and no minus before a zero."""
    number = (Decimal(repr(float(value))) * Decimal(scale)).quantize(
        Decimal(1).scaleb(-digits), ROUND_HALF_EVEN
    )
    return f"{abs(number) if number == 0 else number}"


def _tasks(n: int) -> str:
    return f"{n} task{'s' if n != 1 else ''}"


def _best(cells: Sequence[Cell], metric: Metric) -> str | None:
    """The best number as it is displayed, so that equal displays are equally best; none where all are equal."""
    means = [cell.ours.mean for cell in cells if cell.valid]
    if (
        metric.better == "neither"
        or not means
        or len({written(cell.ours.mean, metric) for cell in cells}) < 2
    ):
        return None
    return written(max(means) if metric.better == "higher" else min(means), metric)


def _marked(cell: Cell | None, best: str | None, metric: Metric) -> Cell | None:
    if cell is None:
        return None
    return replace(cell, best=cell.valid and written(cell.ours.mean, metric) == best)
