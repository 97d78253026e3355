"""What a monitor found, what that means, and what it rests on."""

from typing import Any

from cop2l.monitor.monitor import Monitor
from cop2l.text import percent

ALARM = (
    "ALARM: the claim is refuted at level {alpha:g}. Either it was wrong from the start or the data has drifted; "
    "these look alike. Find out which, and certify again on new data."
)
QUIET = (
    "NO ALARM: the feedback does not refute the claim. That does not prove it: too little feedback, or an error rate "
    "just above the bound, looks the same."
)
ASSUMPTIONS = (
    "Which examples get feedback, in which order and when, does not depend on whether the answer was right.",
    "The answers are those of the certified parameters, and nothing was learned from these examples before.",
    "Every example is counted once; a batch is looked at only at its end, and where it ends does not depend on its answers.",
    "This monitor is never begun again; several monitors share alpha (two of them: half of it for each).",
)
OF_AVERAGES = "Tasks come at random, with the weights of the average that is claimed."
OF_FORGETTING = (
    "An error here is an example that the parameters of then had right and the parameters of now have wrong."
)


def claim_of(statement: dict[str, Any]) -> str:
    """What the claim speaks of."""
    family, task, subject = statement["family"], statement["task"], statement["subject"]
    of_task = f" of task {task}" if task else ""
    return {
        "tasks": f"the error rate on task {task}" if task else "the error rate",
        "average": "the error rate averaged over the tasks",
        "classes": f"the error rate on class {subject}{of_task}",
        "groups": f"the error rate on group {subject}{of_task}",
        "forgetting": f"the share{of_task or ' of the tasks, averaged,'} that was right when it was learned and is wrong now",
    }.get(family, f"the error rate ({family}{of_task}{'' if subject is None else f', {subject}'})")


def bound_of(monitor: Monitor) -> str:
    """The bound: as it was typed, or as certificates print it."""
    return f"{100 * monitor.bound:g} %" if monitor.statement["kind"] is None else percent(monitor.bound)


def assumptions(statement: dict[str, Any]) -> list[str]:
    """What an alarm rests on."""
    family, averaged = statement["family"], not statement["task"]
    more = [OF_AVERAGES] if family == "average" or (family == "forgetting" and averaged) else []
    more += [OF_FORGETTING] * (family == "forgetting")
    return [*ASSUMPTIONS, *more]


def verdict(monitor: Monitor) -> str:
    """Alarm or none, and what it means."""
    return ALARM.format(alpha=monitor.alpha) if monitor.alarm else QUIET


def report(monitor: Monitor) -> str:
    """All of it, as a person reads it."""
    found = monitor.as_dict()
    n, errors, batches, when = (found[name] for name in ("n", "errors", "batches", "alarmed_at"))
    start, before = found["since"]
    rate = f" ({100 * errors / n:.2f} %)" if n else ""
    lines = [
        f"The claim: {claim_of(monitor.statement)} is at most {bound_of(monitor)}.",
        f"Feedback so far: {n} examples in {batches} batches, {errors} errors{rate}.",
        f"Evidence against the claim: {monitor.evidence:.3g}; the alarm is at {1 / monitor.alpha:g}."
        + (f" It came after {when} examples, and stays." if when is not None else ""),
        *(
            [f"Most of it since example {start}: {errors - before} errors in {n - start}."]
            if start and when
            else []
        ),
        verdict(monitor),
        f"If the claim is true, the probability that there is ever an alarm is at most {monitor.alpha:g}, provided that:",
    ]
    return "\n".join([*lines, *(f"  - {sentence}" for sentence in assumptions(monitor.statement))])
