"""What a group of runs certifies, beside what its test part measured."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cop2l.bounds import clopper_pearson
from cop2l.certify.families import Claim, Measured, claims
from cop2l.report.groups import Group
from cop2l.report.metric import METRICS, bounds_of, test_errors
from cop2l.report.runs import Run

OURS = "cop2l"
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


class Result(NamedTuple):
    """What all the runs of a group certify, the largest of their bounds, and what it is about."""

    at_most: float
    about: str


def certifies(group: Group) -> bool:
    """Whether nothing is known against the certificates of a group, and all are issued at one delta."""
    deltas = {run.delta for run in group.runs}
    return not group.not_valid and len(deltas) == 1 and None not in deltas


def task_rows(group: Group) -> list[TaskRow]:
    """A row for each task; none unless every run bounds every task."""
    bounds = [own for run in group.runs if (own := bounds_of(run, "bound"))]
    if not certifies(group) or len(bounds) < len(group.runs):
        return []
    rows = []
    for t in range(group.benchmark.tasks):
        spans = [span for run in group.runs if (span := interval(run, t))]
        tasks = [run.tasks[t] for run in group.runs]
        rows.append(
            TaskRow(
                t + 1,
                max(own[t] for own in bounds),
                fmean(test_errors(run)[t] for run in group.runs),
                (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None,
                _span([task.certified_on for task in tasks]),
                _span([task.picked for task in tasks]),
            )
        )
    return rows


def interval(run: Run, t: int) -> tuple[float, float] | None:
    """Clopper and Pearson's interval around a test error; None where it is not known of how many examples that is."""
    n = run.tasks[t].test_n
    return clopper_pearson(round(test_errors(run)[t] * n), n, LEVEL) if n else None


def result(group: Group) -> Result | None:
    """What the runs of a group certify of the error; None if nothing, or if it is not valid."""
    if rows := task_rows(group):
        return Result(max(row.at_most for row in rows), "error" + " on every task" * (len(rows) > 1))
    averages = [METRICS["average"].of(run) for run in group.runs]
    known = [average for average in averages if average is not None]
    if not certifies(group) or len(known) < len(averages):
        return None
    return Result(max(known), f"error on average over the {group.benchmark.tasks} tasks")


def certifying_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups that certify something, on each stream CoP2L's if there are such: chosen by method, not by bound."""
    able = [group for group in groups if (found := result(group)) and found.at_most < 1]
    ours = {group.benchmark for group in able if group.method == OURS}
    return [group for group in able if group.method == OURS or group.benchmark not in ours]


def families(group: Group) -> list[Claim]:
    """What is claimed beside the bound of each task: the largest bounds over the runs, beside what was measured on average.

    Nothing where not all the runs claim the same, or where it is not valid.
    """
    about = [[(s["family"], s["task"], s["subject"]) for s in run.claims] for run in group.runs]
    if not certifies(group) or any(other != about[0] for other in about):
        return []
    largest = [
        {**same[0], "value": max(s["value"] for s in same)}
        for same in zip(*(run.claims for run in group.runs), strict=True)
    ]
    return claims(largest, _mean([_measured(run) for run in group.runs]))


def _measured(run: Run) -> Measured:
    """What the test part says of a run."""
    heads = [
        {s["subject"] for s in run.claims if (s["family"], s["task"]) == ("classes", task.task)}
        for task in run.tasks
    ]
    once = {c for head in heads for c in head if sum(c in other for other in heads) == 1}
    return Measured(
        [task.certified_on or 0 for task in run.tasks],
        test_errors(run),
        [run.matrix[t][t] - now for t, now in enumerate(run.matrix[-1])],
        [task.test_groups for task in run.tasks],
        {c: 1 - accuracy for c, accuracy in run.classes[-1].items() if c in once},
    )


def _mean(runs: Sequence[Measured]) -> Measured:
    first = runs[0]
    return Measured(
        first.sizes,
        [fmean(rates) for rates in zip(*(run.errors for run in runs), strict=True)],
        [fmean(falls) for falls in zip(*(run.falls for run in runs), strict=True)],
        [
            {name: fmean(run.groups[t][name] for run in runs) for name in first.groups[t]}
            for t in range(len(first.groups))
        ],
        {c: fmean(run.classes[c] for run in runs) for c in first.classes},
    )


def _span(counts: Sequence[int | None]) -> str:
    known = sorted({number for number in counts if number is not None})
    return "–" if not known else str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
