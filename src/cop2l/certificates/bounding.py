"""Computes the bounds of a certificate from its integers."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cop2l.bounds import (
    Bound,
    anytime_log_delta,
    average_of,
    buffer_certificate,
    gained_at_least,
    holdout_certificate,
    kl_certificate,
    net_forgetting,
    pooled_certificate,
    preference_certificate,
)
from cop2l.bounds.outer import sum_below
from cop2l.kernel.options import Options

Counts = Mapping[str, Any]
Records = Sequence[Counts]


def counts_of(record: Counts, family: str, subject: Any) -> Counts:
    """The counts behind a statement of a family."""
    if family in ("tasks", "average"):
        return record
    parts = {(part["family"], part["subject"]): part for part in record["parts"]}
    return dict(parts[family, subject])


def kind_of(record: Counts, options: Options) -> str:
    """`buffer` if the record has no errors, because the task's data was not given to `certify`; otherwise the claimed kind."""
    return "buffer" if record["errors"] is None else options.kind


def bound_counts(kind: str, counts: Counts) -> tuple[int, int]:
    """The number of examples that a bound is counted on, and how many of them are picked or misclassified."""
    if kind != "buffer":
        return counts["n"], counts["errors_not_picked"] + counts["picked"]
    return counts["selected"], counts["compressed"]


def promised_statements(
    options: Options, records: Sequence[Counts]
) -> list[tuple[str, int | None, Any, str]]:
    """The family, task, subject and kind of every statement of a certificate, in its order."""
    promised: list[tuple[str, int | None, Any, str]] = []
    for family in options.claim:
        for task, record in enumerate(records, 1):
            kind = kind_of(record, options)
            if record["errors"] is None and not options.uses_marks:
                continue  # without data and marks there is no bound
            if family == "tasks":
                promised.append((family, task, None, kind))
            elif family == "forgetting" and task < len(records):
                net = [(family, task, "net", kind)] if kind == "holdout" else []
                promised += [(family, task, "lost", kind), *net]
            elif family in ("classes", "groups"):
                promised += [
                    (family, task, part["subject"], kind)
                    for part in record["parts"]
                    if part["family"] == family
                ]
        if family == "average" or (family == "forgetting" and len(records) > 1):
            promised.append((family, None, None, options.kind))
    return promised


def log_delta(options: Options, last: int, family: str = "tasks") -> float:
    """The logarithm of the part of delta that the statements of a family share after task `last`."""
    part = 1 / options.paid_families
    if options.shares and family in options.claim:
        part = options.shares[options.claim.index(family)] / sum(options.shares)
    part /= options.siblings
    log_share = sum_below(math.log(options.delta) + math.log(part)) if part < 1 else math.log(options.delta)
    return anytime_log_delta(log_share, last) if options.anytime else log_share


def kinds_of(counts: Counts, options: Options) -> list[str]:
    """The kinds of bounds that the counts of a task give.

    Each kind alone holds for all tasks at once with probability at least 1 - delta. Several kinds together do not, so one kind is
    named in advance and claimed.
    """
    if options.kind == "holdout":
        return ["holdout"]
    kinds = ["kl"] + ["preference"] * options.uses_marks
    return kinds * (counts["errors"] is not None) + ["buffer"] * options.uses_marks


def bound_of(
    kind: str, counts: Counts, task: int, options: Options, messages: Sequence[int], log_share: float
) -> Bound:
    """The bound of one of these kinds, from the counts of a task.

    messages    the number of iterations that each task kept
    log_share   the logarithm of the part of delta that all tasks share
    """
    last, n, iterations = len(messages), counts["n"], counts["iterations"]
    shared: dict[str, Any] = {"tasks": last, "log_delta": log_share}
    if kind == "holdout":
        return holdout_certificate(n, counts["errors"], **shared)
    shared["grid"] = len(options.grid_points) or None
    compression, evicted = counts["compression"], counts["evicted"]
    if kind == "kl":
        return kl_certificate(n, compression, evicted, counts["errors"], messages, task, **shared)
    if kind == "preference":
        return preference_certificate(n, counts["picked"], counts["errors_not_picked"], iterations, **shared)
    return buffer_certificate(counts["selected"], counts["compressed"], iterations, **shared)


def statements(options: Options, records: Records, *, without: str | None = None) -> list[dict[str, Any]]:
    """The statements of a certificate with their values.

    A task without data is bounded from the memory alone, if marks decide what is kept. `without` names a family that is left out;
    the other families keep their shares of delta.
    """
    result: list[dict[str, Any]] = []
    for family, task, subject, kind in promised_statements(options, records):
        if family == without:
            continue
        if task is None:
            value = _mean_bound(family, options, records)
        elif subject == "net":
            value = _net_bound(task, kind, options, records)
        else:
            value = _task_bound(family, task, subject, kind, options, records)
        result.append({"family": family, "task": task, "subject": subject, "kind": kind, "value": value})
    return result


def void_statements(
    claimed: Sequence[Counts], void: Collection[int], *, means: bool = False
) -> list[dict[str, Any]]:
    """The statements, with the bound 1 for those that shared rows make void (docs/theory.md, section 13).

    The other statements hold with probability at least 1 - delta. A void task makes its own statements and all means over tasks
    void.

    void    tasks whose bounds do not hold, because another task learned from their certified rows, or because they have copies
            that were not counted as errors
    means   True: two tasks withhold the same rows. Each task's own bound still holds; means over tasks do not.
    """
    void_tasks = {*void, *([None] if void or means else [])}
    return [{**s, "value": 1.0} if s["task"] in void_tasks else dict(s) for s in claimed]


def _log_share(family: str, task: int, kind: str, options: Options, records: Records) -> float:
    """ln(T * d), where d is the part of delta that this statement gets and T the number of tasks.

    The bound functions divide by T themselves.
    """
    record, log_share = records[task - 1], log_delta(options, len(records), family)
    if family in ("classes", "groups"):
        subjects = sum(part["n"] > 0 for part in record["parts"] if part["family"] == family)
        return sum_below(log_share - math.log(max(1, subjects)))
    if family == "forgetting" and kind == "holdout":
        return sum_below(log_share - math.log(2))
    return log_share


def _task_bound(family: str, task: int, subject: Any, kind: str, options: Options, records: Records) -> float:
    """The bound of a statement about a task."""
    counts = counts_of(records[task - 1], family, subject)
    if not bound_counts(kind, counts)[0] and kind != "kl":
        return 1.0
    messages = [record["iterations"] for record in records]
    log_share = _log_share(family, task, kind, options, records)
    return float(bound_of(kind, counts, task, options, messages, log_share))


def _net_bound(task: int, kind: str, options: Options, records: Records) -> float:
    """The bound on the rise of the error rate of a task since it was learned."""
    counts = counts_of(records[task - 1], "forgetting", "gained")
    n, gained = bound_counts(kind, counts)
    log_share = _log_share("forgetting", task, kind, options, records) - math.log(len(records))
    lost = _task_bound("forgetting", task, "lost", kind, options, records)
    return net_forgetting(lost, gained_at_least(gained, n, sum_below(log_share)) if n else 0.0)


def _mean_bound(family: str, options: Options, records: Records) -> float:
    """The bound on a mean over tasks: one bound on all withheld examples, or the mean of the tasks' own bounds."""
    last = len(records) - (family == "forgetting")
    counts = [counts_of(record, family, "lost") for record in records[:last]]
    if not any(part["n"] for part in counts):
        return 1.0
    if options.kind == "holdout":
        log_share = log_delta(options, len(records), family)
        log_share -= math.log(len(records)) if family == "forgetting" else 0.0
        return float(
            pooled_certificate([bound_counts("holdout", part) for part in counts], sum_below(log_share))
        )
    bounds, (task_family, subject) = [], ("tasks", None) if family == "average" else (family, "lost")
    for record, part in zip(records, counts, strict=False):
        kind, value = kind_of(record, options), 1.0
        if kind != "buffer" or options.uses_marks:
            value = _task_bound(task_family, record["task"], subject, kind, options, records)
        bounds.append((part["n"], value))
    return average_of(bounds)
