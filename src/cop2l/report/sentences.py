"""What the page says about certificates, in words that claim no more than the theorem."""

from collections.abc import Sequence
from typing import NamedTuple

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Group
from cop2l.report.metric import KINDS, METRICS, bounds_of
from cop2l.report.runs import Run
from cop2l.text import P_VALUE, above_claim, confidence, count, listing, nothing_picked, p_value

SAYS = (
    (
        "It is about one run whose settings, claim and δ were fixed before its data were looked at. With probability"
        " at least 1 − δ over the draw of all the tasks' training samples (and of the marks that decide what stays in"
        " the buffer), the true error of the final model is at most the bound, for all tasks at once."
    ),
    (
        "The true error on a task is the probability that the model errs on a new example from the distribution that"
        " the task's sample was drawn from."
    ),
    (
        "It is computed from the training sample alone. The test part is used for nothing but the test errors shown"
        " beside it."
    ),
    (
        "One kind of bound is named as the claim in advance. The others are shown for information: taking the smallest"
        " of them afterwards would cost a union over them."
    ),
)

DOES_NOT_SAY = (
    (
        "That this model's true error is below the bound with probability 1 − δ. The probability is over samples that"
        " might have been drawn; for the sample that was drawn, the bound holds or it does not."
    ),
    "Anything about another distribution: later drift, tasks not learned yet, other data, attacks.",
    (
        "Anything about single examples, nor about classes or groups unless it lists them. Else the accuracy of a class is"
        " a measurement on the test part."
    ),
    (
        "Anything about the mean over seeds, or about the best of several runs. Each run's certificate holds by itself;"
        " choosing a run by its certificate costs a union over the runs."
    ),
    (
        "That the bound is the best to be had. A hold-out set is the honest alternative, so its bound is shown wherever"
        " it was measured; where it is smaller, it is the tighter certificate."
    ),
)

MOST_LISTED = 10
VERDICTS = (
    ("0", "valid"),
    ("1", "not valid"),
    ("2", "cannot tell, for instance because the data are missing"),
    ("3", "the check could not be made"),
)


def claim(group: Group) -> str | None:
    """What the runs of a group certify, in one sentence; None if they certify nothing."""
    per_run = [values for run in group.runs if (values := bounds_of(run, "bound"))]
    if not group.kind or group.not_valid or len(per_run) != len(group.runs):
        return None
    largest = [max(values) for values in zip(*per_run, strict=True)]
    deltas = {run.delta for run in group.runs}
    delta = deltas.pop() if len(deltas) == 1 else None
    if delta is None:
        return None
    several = len(group.runs) > 1
    who = f"Each of the {len(group.runs)} runs certifies" if several else "The run certifies"
    tasks = "task 1" if len(largest) == 1 else f"tasks 1 to {len(largest)}, all at once"
    shown = largest if len(largest) <= MOST_LISTED else [min(largest), max(largest)]
    rates = [rate_text(value, upwards=True) for value in shown]
    listed = listing(rates) if shown is largest else f"{rates[0]} to {rates[1]}"
    largest_words = " (for each task, the largest over the runs)" if several else ""
    return unbroken(
        f"{who} by the bound “{group.kind}”, with probability at least {confidence(delta)} over the draw of its"
        f" data, a true error of at most {listed} %{largest_words} on {tasks}."
    )


def context(group: Group) -> str | None:
    """The claim of a group beside the paper's formula and a hold-out; None if it claims nothing but a hold-out."""
    return " ".join(s for s in (against_paper(group), against_holdout(group)) if s) or None


def against_holdout(group: Group) -> str | None:
    """Whether a hold-out would have been the tighter certificate, said openly."""
    if not group.kind or group.kind == "holdout":
        return None
    ours, held = METRICS["bound"].over_seeds(group), METRICS["holdout"].over_seeds(group)
    if ours is None:
        return None
    if held is None:
        return "No hold-out was measured beside it; holdout=0.1 in the configuration adds one."
    better = "looser" if ours.mean > held.mean else "tighter"
    return unbroken(
        f"On average over tasks it is {better} than the hold-out bound of the same runs:"
        f" {rate_text(ours, upwards=True)} % against {rate_text(held, upwards=True)} %."
    )


def against_paper(group: Group) -> str | None:
    """The claimed bound beside the paper's formula on the same run."""
    ours, paper = METRICS["bound"].over_seeds(group), METRICS["kl"].over_seeds(group)
    if group.kind in (None, "kl") or ours is None or paper is None:
        return None
    times = f"{paper.mean / ours.mean:.1f} times as much"
    return unbroken(
        f"The paper's formula gives {rate_text(paper, upwards=True)} % for the same runs, {times}."
    )


def unpicked(group: Group) -> str | None:
    """That the runs of a group that picked nothing are hold-out certificates."""
    said = []
    for run in group.runs:
        counts = [(task.n, task.picked) for task in run.tasks if task.picked is not None]
        if run.kind and run.kind != "holdout" and counts:
            said.append(nothing_picked(sum(n or 0 for n, _ in counts), sum(p or 0 for _, p in counts)))
    found = [sentence for sentence in said if sentence]
    if not found:
        return None
    who = f"{len(found)} of {len(group.runs)} runs" if len(group.runs) > 1 else "one run"
    return f"{group.label} on {group.benchmark.stream}, {who}: {found[0][0].lower()}{found[0][1:]}"


class Above(NamedTuple):
    """A task whose test error is above its claim."""

    run: Run
    task: int
    p: float
    """The probability of so many test errors, or more, if the true error were the claim."""
    sentence: str


def above(run: Run) -> list[Above]:
    """The tasks of a run whose test error is above its claim."""
    found = []
    for task in run.tasks:
        if run.kind not in task.bounds or task.test_error is None or task.test_n is None:
            continue
        numbers = (task.test_error, task.test_n, task.bounds[run.kind])
        if (p := p_value(*numbers)) is not None:
            found.append(Above(run, task.task, p, above_claim(task.task, *numbers) or ""))
    return found


def exceeded(group: Group) -> str | None:
    """How often the test error is above the claim in the runs of a group, and how surprising the worst of it is."""
    found = [one for run in group.runs for one in above(run)]
    if not found:
        return None
    least = min(found, key=lambda one: one.p)
    runs = len({one.run.folder for one in found})
    often = f"{count(len(found), 'test error')} above the claim, in {runs} of {count(len(group.runs), 'run')}"
    return unbroken(
        f"{group.label} on {group.benchmark.stream}: {often}; the least probable, seed {least.run.seed}: {least.sentence}"
    )


def beside_claims(groups: Sequence[Group]) -> list[str]:
    """What must be said beside the claims: where nothing was picked, and where a test error is above the claim."""
    found = [exceeded(group) for group in groups]
    said = [*map(unpicked, groups), *found, P_VALUE if any(found) else None]
    return [sentence for sentence in said if sentence]


def unbroken(sentence: str) -> str:
    """A sentence whose lines do not break between a number and its unit or deviation."""
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """What the page is about, under its title."""
    methods, streams = (
        listing(list(dict.fromkeys(names)))
        for names in ((group.method for group in groups), (group.benchmark.stream for group in groups))
    )
    of = f" of {methods} on {streams}" if groups else ""
    deltas = sorted({run.delta for run in runs if run.delta is not None and run.kind and not run.not_valid})
    if not deltas:
        return f"{count(len(runs), 'finished run')}{of}."
    likely = listing([confidence(delta) for delta in deltas])
    what = "What is certified" + " of a run" * (len(runs) > 1)
    certified = f" {what} holds with probability at least {likely} over the draw of its data, all at once."
    return unbroken(f"{count(len(runs), 'finished run')}{of}.{certified}")


def kinds(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The kinds of bounds that occur, each with what it is."""
    present = {kind for group in groups for run in group.runs for task in run.tasks for kind in task.bounds}
    return [(name, kind.sentence) for name, kind in KINDS.items() if name in present]
