"""From the integers of a certificate to its bounds."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cop2l.bounds import (
    Bound,
    anytime_log_delta,
    average_of,
    buffer_certificate,
    combined_certificate,
    gained_at_least,
    holdout_certificate,
    kl_certificate,
    kl_tight_certificate,
    log_set_weight,
    net_forgetting,
    pooled_certificate,
    preference_certificate,
)
from cop2l.bounds.outer import sum_below
from cop2l.kernel.options import Options

Counts = Mapping[str, Any]
Records = Sequence[Counts]


def counts_of(record: Counts, family: str, subject: Any) -> Counts:
    """The counts that a statement of a family rests on."""
    if family in ("tasks", "average"):
        return record
    parts = {(part["family"], part["subject"]): part for part in record["parts"]}
    return dict(parts[family, subject])


def kind_of(record: Counts, options: Options) -> str:
    """The kind of what is stated of a task: from the memory alone if its errors could not be counted."""
    return "buffer" if record["errors"] is None else options.kind


def holdout_share(kind: str, counted: Counts, options: Options) -> float:
    """The part of delta that is left where theta_T does not depend on the sample of the task; 0 where it may."""
    if kind == "holdout":
        return 1.0
    if options.buffer != "count-only" or kind not in ("combined", "buffer") or counted["iterations"] > 0:
        return 0.0
    return 1.0 if options.grid_points == (0,) else 0.75


def bound_counts(kind: str, counted: Counts) -> tuple[int, int]:
    """How many examples a bound is counted on, and how many of them are picked or wrong."""
    if kind != "buffer":
        return counted["n"], counted["errors_not_picked"] + counted["picked"]
    return counted["selected"], counted["compressed"]


def is_pooled(record: Counts, options: Options) -> bool:
    """Whether a task enters a mean with its errors, and not with its own bound."""
    counted = record["errors"] is not None and options.kind != "buffer"
    return counted and holdout_share(options.kind, record, options) > 0


def promised_statements(
    options: Options, records: Sequence[Counts]
) -> list[tuple[str, int | None, Any, str]]:
    """What a certificate must state, in this order: family, task, subject and kind."""
    found: list[tuple[str, int | None, Any, str]] = []
    for family in options.claim:
        for task, record in enumerate(records, 1):
            kind = kind_of(record, options)
            if kind == "buffer" and record["errors"] is None and not options.marked:
                continue  # nothing is known of it
            if family == "tasks":
                found.append((family, task, None, kind))
            elif family == "forgetting" and task < len(records):
                net = [(family, task, "net", kind)] if holdout_share(kind, record, options) else []
                found += [(family, task, "lost", kind), *net]
            elif family in ("classes", "groups"):
                found += [
                    (family, task, part["subject"], kind)
                    for part in record["parts"]
                    if part["family"] == family
                ]
        if family == "average" or (family == "forgetting" and len(records) > 1):
            found.append((family, None, None, options.kind))
    return found


def log_delta(options: Options, last: int, family: str = "tasks") -> float:
    """What a family's statements after task `last` share of delta, as a logarithm."""
    part = 1 / options.paid_families
    if options.shares and family in options.claim:
        part = options.shares[options.claim.index(family)] / sum(options.shares)
    part /= options.siblings
    whole = sum_below(math.log(options.delta) + math.log(part)) if part < 1 else math.log(options.delta)
    return anytime_log_delta(whole, last) if options.anytime else whole


def bounds_of(
    counted: Counts,
    task: int,
    options: Options,
    messages: Sequence[int],
    share: float | None = None,
    only: str | None = None,
    without: Collection[str] = (),
) -> dict[str, Bound]:
    """Every bound that applies to the counts of a task (or the one of this kind), after the last of the tasks with `messages`.

    Each kind alone holds for all tasks at once with probability at least 1 - delta; several kinds together do not, so one kind is
    named in advance and claimed. `share`: the logarithm of what all tasks share of delta; `without`: kinds not asked for.
    """

    def wanted(kind: str) -> bool:
        return kind not in without and only in (None, kind)

    last, n, kept = len(messages), counted["n"], counted["iterations"]
    share = log_delta(options, last) if share is None else share
    grid = len(options.grid_points) or None
    found: dict[str, Bound] = {}
    if options.kind == "holdout":
        return {"holdout": holdout_certificate(n, counted["errors"], last, share)}
    if (errors := counted["errors"]) is not None:
        first, second = counted["compression"], counted["evicted"]
        of_task = (errors, messages, task, last, share)
        if wanted("kl"):
            found["kl"] = kl_certificate(n, first, second, *of_task, grid=grid)
        if wanted("kl-tight"):
            found["kl-tight"] = kl_tight_certificate(n, first + second, *of_task, grid=grid)
    if not options.marked:
        return found
    if counted["errors_not_picked"] is not None:
        counts = (n, counted["picked"], counted["errors_not_picked"], kept, last, share)
        if wanted("preference"):
            found["preference"] = preference_certificate(*counts, grid=grid)
        if wanted("combined") and options.buffer == "count-only":
            found["combined"] = combined_certificate(*counts, grid=grid)
    selected, compressed = counted["selected"], counted["compressed"]
    if not wanted("buffer"):
        return found
    if options.buffer == "count-only":  # the same argument on R_t
        same = combined_certificate(selected, 0, compressed, kept, last, share, grid=grid)
        found["buffer"] = replace(same, kind="buffer")
    else:
        found["buffer"] = buffer_certificate(selected, compressed, kept, last, share, grid=grid)
    return found


def statements(options: Options, records: Records, *, without: str | None = None) -> list[dict[str, Any]]:
    """All that a certificate states, with values; where a task's data is gone it speaks from the buffer (if that is possible).

    `without` names a family that is left out; the others keep their shares of delta.
    """
    found: list[dict[str, Any]] = []
    for family, task, subject, kind in promised_statements(options, records):
        if family == without:
            continue
        if task is None:
            value = _averaged(family, options, records)
        elif subject == "net":
            value = _net(task, kind, options, records)
        else:
            value = _one(family, task, subject, kind, options, records)
        found.append({"family": family, "task": task, "subject": subject, "kind": kind, "value": value})
    return found


def void_statements(
    claimed: Sequence[Counts], void: Collection[int], *, means: bool = False
) -> list[dict[str, Any]]:
    """The statements, with the bound 1 for those that shared rows make void; the others hold with probability at least 1 - delta.

    void: tasks with certified rows that another task learned from, or with copies that do not count as errors; all rows of a
    task are learned from, certified ones too, except those that a hold-out withholds. means: whether tasks share certified
    rows that none learned from. Statements about a task are void in the first case, and means over tasks in both
    (docs/theory.md, section 13).
    """
    fallen = {*void, *([None] if void or means else [])}
    return [{**one, "value": 1.0} if one["task"] in fallen else dict(one) for one in claimed]


def _share(family: str, task: int, kind: str, options: Options, records: Records) -> float:
    """The logarithm of what one task's statement of a family gets, times the number of tasks."""
    record, share = records[task - 1], log_delta(options, len(records), family)
    if family in ("classes", "groups"):
        filled = sum(part["n"] > 0 for part in record["parts"] if part["family"] == family)
        return sum_below(share - math.log(max(1, filled)))
    if family == "forgetting" and holdout_share(kind, record, options):
        return sum_below(share - math.log(2))
    return share


def _one(family: str, task: int, subject: Any, kind: str, options: Options, records: Records) -> float:
    """The bound of a task's statement."""
    counted = counts_of(records[task - 1], family, subject)
    if not bound_counts(kind, counted)[0] and kind not in ("kl", "kl-tight"):
        return 1.0
    messages, share = [one["iterations"] for one in records], _share(family, task, kind, options, records)
    return float(bounds_of(counted, task, options, messages, share, kind)[kind])


def _net(task: int, kind: str, options: Options, records: Records) -> float:
    """By how much the error rate of a task rose at most."""
    counted = counts_of(records[task - 1], "forgetting", "gained")
    n, gained = bound_counts(kind, counted)
    held = holdout_share(kind, counted, options)
    share = _share("forgetting", task, kind, options, records) - math.log(len(records)) + math.log(held)
    lost = _one("forgetting", task, "lost", kind, options, records)
    return net_forgetting(lost, gained_at_least(gained, n, sum_below(share)) if n else 0.0)


def _averaged(family: str, options: Options, records: Records) -> float:
    """The bound of a mean, pooled over the tasks in the hold-out case; the others enter with their own bounds."""
    last = len(records) - (family == "forgetting")
    pooled, others = list[tuple[int, int]](), list[tuple[int, float]]()
    for record in records[:last]:
        task, counted = record["task"], counts_of(record, family, "lost")
        kind = kind_of(record, options)
        if is_pooled(record, options):
            pooled.append(bound_counts(kind, counted))
        elif kind == "buffer" and not options.marked:
            others.append((counted["n"], 1.0))
        else:
            stated, subject = ("tasks", None) if family == "average" else (family, "lost")
            others.append((counted["n"], _one(stated, task, subject, kind, options, records)))
    if pooled:
        share = log_delta(options, len(records), family)
        share -= math.log(len(records)) if family == "forgetting" else 0.0
        if options.kind != "holdout":
            share += log_set_weight(last, len(pooled))
        others.append((sum(n for n, _ in pooled), float(pooled_certificate(pooled, sum_below(share)))))
    return average_of(others) if any(n for n, _ in others) else 1.0
