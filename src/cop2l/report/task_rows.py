"""What a group certifies of each task, beside what its test part measured and how far that can be trusted."""

from statistics import fmean
from typing import NamedTuple

from cop2l.bounds import clopper_pearson
from cop2l.report.groups import Group
from cop2l.report.metric import bounds_of, test_errors
from cop2l.report.runs import Run

LEVEL = 0.95
"""Of the interval around each test error, by itself."""


class TaskRow(NamedTuple):
    """One task: the largest bound over the runs, their mean test error, and the interval of what their tests leave open."""

    task: int
    at_most: float
    measured: float
    interval: tuple[float, float] | None
    certified_on: str
    picked: str


def task_rows(group: Group) -> list[TaskRow]:
    """A row for each task; none unless every run bounds every task."""
    bounds = [own for run in group.runs if (own := bounds_of(run, "bound"))]
    if len(bounds) < len(group.runs):
        return []
    return [
        TaskRow(
            t + 1,
            max(own[t] for own in bounds),
            fmean(test_errors(run)[t] for run in group.runs),
            _together([interval(run, t) for run in group.runs]),
            _span([run.tasks[t].certified_on for run in group.runs]),
            _span([run.tasks[t].picked for run in group.runs]),
        )
        for t in range(group.benchmark.tasks)
    ]


def interval(run: Run, t: int) -> tuple[float, float] | None:
    """Clopper and Pearson's interval around a test error; None where it is not known of how many examples that is."""
    n = run.tasks[t].test_n
    return clopper_pearson(round(test_errors(run)[t] * n), n, LEVEL) if n else None


def _together(intervals: list[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [one for one in intervals if one]
    if len(known) < len(intervals):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _span(counts: list[int | None]) -> str:
    known = sorted({number for number in counts if number is not None})
    return "–" if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
