"""What the runs of a group claim beside the bound of each task: averages, forgetting, classes and groups."""

from collections.abc import Sequence
from statistics import fmean

from cop2l.certify.families import Claim, Measured, claims
from cop2l.report.groups import Group
from cop2l.report.metric import test_errors
from cop2l.report.runs import Run
from cop2l.text import confidence


def of_group(group: Group) -> tuple[str, list[Claim]] | None:
    """Who claims it, and the claims: the largest bounds over the runs, beside what was measured on average.

    None where nothing is claimed, or not the same by all, or where it is not valid.
    """
    about = [[(s["family"], s["task"], s["subject"]) for s in run.claims] for run in group.runs]
    if not about[0] or group.not_valid or any(other != about[0] for other in about):
        return None
    largest = [
        {**same[0], "value": max(s["value"] for s in same)}
        for same in zip(*(run.claims for run in group.runs), strict=True)
    ]
    deltas = {run.delta for run in group.runs}
    if len(deltas) > 1 or (delta := deltas.pop()) is None:
        return None
    several = len(group.runs) > 1
    who = f"Each of the {len(group.runs)} runs by itself" if several else "The run"
    likely = f"with probability at least {confidence(delta)} over the draw of its data"
    more = " The bounds are the largest over the runs; what was measured is their mean." if several else ""
    return f"{who} claims all of this at once, {likely}.{more}", claims(
        largest, _mean([measured(run) for run in group.runs])
    )


def measured(run: Run) -> Measured:
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
