"""The claims of a group of runs, and what the test part measured."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cop2l.bounds import clopper_pearson
from cop2l.certificates.families import Claim, Measured, claims
from cop2l.report.groups import Group
from cop2l.report.metric import METRICS, bounds_of, test_errors
from cop2l.report.runs import Run

LEVEL = 0.95
"""The level of the interval around each test error, each task by itself."""


class TaskRow(NamedTuple):
    """One task: the largest bound over the runs, their mean test error, and the span of their test intervals."""

    task: int
    at_most: float
    measured: float
    interval: tuple[float, float] | None
    certified_on: str
    picked: str


class Result(NamedTuple):
    """The largest bound of a group, and what it bounds."""

    at_most: float
    about: str


def certifies(group: Group) -> bool:
    """Whether all certificates of a group are valid and have the same delta."""
    deltas = {run.delta for run in group.runs}
    return not group.not_valid and len(deltas) == 1 and None not in deltas


def task_rows(group: Group) -> list[TaskRow]:
    """A row for each task; none unless every run bounds every task."""
    bounds = [values for run in group.runs if (values := bounds_of(run, "bound"))]
    if not certifies(group) or len(bounds) < len(group.runs):
        return []
    rows = []
    for t in range(group.benchmark.tasks):
        spans = [span for run in group.runs if (span := interval(run, t))]
        tasks = [run.tasks[t] for run in group.runs]
        rows.append(
            TaskRow(
                t + 1,
                max(values[t] for values in bounds),
                fmean(test_errors(run)[t] for run in group.runs),
                (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None,
                _span([task.certified_on for task in tasks]),
                _span([task.picked for task in tasks]),
            )
        )
    return rows


def interval(run: Run, t: int) -> tuple[float, float] | None:
    """Clopper and Pearson's interval around a test error; None if the number of test examples is not known."""
    n = run.tasks[t].test_n
    return clopper_pearson(round(test_errors(run)[t] * n), n, LEVEL) if n else None


def result(group: Group) -> Result | None:
    """The claim of a group about the error; None if there is none, or if it is not valid."""
    if rows := task_rows(group):
        return Result(max(row.at_most for row in rows), "error" + " on every task" * (len(rows) > 1))
    averages = [average for run in group.runs if (average := METRICS["average"].of(run)) is not None]
    if not certifies(group) or len(averages) < len(group.runs):
        return None
    return Result(max(averages), f"error on average over the {group.benchmark.tasks} tasks")


def certifying_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups whose claim is below 100 %; on a stream where CoP2L has one, only CoP2L's.

    The choice is by method: a choice by bound would void the claim.
    """
    able = [group for group in groups if (claim := result(group)) and claim.at_most < 1]
    by_cop2l = {group.benchmark for group in able if group.method == "cop2l"}
    return [group for group in able if group.method == "cop2l" or group.benchmark not in by_cop2l]


def families(group: Group) -> list[Claim]:
    """The claims beside the bound of each task: the largest bounds over the runs, with the means of what was measured.

    None if the runs claim different things, or if a certificate is not valid.
    """
    subjects = [[(s["family"], s["task"], s["subject"]) for s in run.claims] for run in group.runs]
    if not certifies(group) or any(subject != subjects[0] for subject in subjects):
        return []
    largest = [
        {**statements[0], "value": max(s["value"] for s in statements)}
        for statements in zip(*(run.claims for run in group.runs), strict=True)
    ]
    return claims(largest, _mean([_measured(run) for run in group.runs]))


def _measured(run: Run) -> Measured:
    """The numbers that the test part measured for a run."""
    heads = [
        {s["subject"] for s in run.claims if (s["family"], s["task"]) == ("classes", task.task)}
        for task in run.tasks
    ]
    in_one_task = {c for head in heads for c in head if sum(c in classes for classes in heads) == 1}
    return Measured(
        [task.certified_on or 0 for task in run.tasks],
        test_errors(run),
        [run.matrix[t][t] - final for t, final in enumerate(run.matrix[-1])],
        [task.test_groups for task in run.tasks],
        {c: 1 - accuracy for c, accuracy in run.classes[-1].items() if c in in_one_task},
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
    numbers = sorted({number for number in counts if number is not None})
    if not numbers:
        return "–"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
