"""From integers to bounds: the same function issues a certificate and checks it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cop2l.bounds import (
    Bound,
    anytime_log_delta,
    buffer_certificate,
    combined_certificate,
    kl_certificate,
    kl_tight_certificate,
    preference_certificate,
)
from cop2l.certify.options import Options


@dataclass(frozen=True)
class Counts:
    """The integers that a task's bounds are made of; None where the task's data is gone, or does not apply."""

    task: int
    n: int
    """n_t = |S_t|, the certified part."""
    prior: int
    """|P_t|, the prior part, which is not certified."""
    compression: int
    """|I_t|."""
    evicted: int
    """|J_t|."""
    evicted_last: int
    """How many of J_t left the buffer after the last task: they cannot have influenced it."""
    errors: int | None
    """Misclassified examples of S_t outside I_t u J_t."""
    picked: int
    """|G_t|."""
    missed: int | None
    """|M_t|: misclassified examples of S_t outside G_t."""
    iterations: int
    """K_t = mu2_t."""
    selected: int | None
    """|R_t|: examples of S_t whose mark the buffer's threshold selects."""
    compressed: int | None
    """|c n R_t|: those of them that were picked or are misclassified."""


def log_delta(options: Options, last: int) -> float:
    """Ln delta, or its share at time `last` if the number of tasks was not fixed in advance."""
    whole = math.log(options.delta)
    return whole if sharing(options, last) == "fixed" else anytime_log_delta(whole, last)


def sharing(options: Options, last: int) -> str:
    """fixed: one certificate, at the T named in advance. anytime: all certificates ever issued hold together."""
    return "fixed" if options.tasks == last else "anytime"


def bounds_of(counts: Counts, options: Options, messages: Sequence[int]) -> dict[str, Bound]:
    """Every bound that applies to a task, after the last of the tasks whose mu2 are `messages`.

    Each one alone holds for all tasks at once with probability at least 1 - delta; choosing the least of them
    afterwards does not, so one kind is named in advance as the claim.
    """
    last = len(messages)
    confidence = log_delta(options, last)
    found: dict[str, Bound] = {}
    if counts.errors is not None:
        found["kl"] = kl_certificate(
            counts.n,
            counts.compression,
            counts.evicted,
            counts.errors,
            messages,
            counts.task,
            last,
            confidence,
        )
        found["kl-tight"] = kl_tight_certificate(
            counts.n,
            counts.compression + counts.evicted_last,
            counts.evicted - counts.evicted_last,
            counts.errors,
            messages,
            counts.task,
            last,
            confidence,
            priority=options.buffer != "uniform",
        )
    if options.marked:
        if counts.missed is not None:
            found["preference"] = preference_certificate(
                counts.n, counts.picked, counts.missed, counts.iterations, last, confidence
            )
            if options.buffer == "witness":
                found["combined"] = combined_certificate(
                    counts.n, counts.picked, counts.missed, counts.iterations, last, confidence
                )
        if counts.selected is not None and counts.compressed is not None:
            if options.buffer == "witness":  # the same argument on R_t
                same = combined_certificate(
                    counts.selected, 0, counts.compressed, counts.iterations, last, confidence
                )
                found["buffer"] = replace(same, kind="buffer")
            else:
                found["buffer"] = buffer_certificate(
                    counts.selected, counts.compressed, counts.iterations, last, confidence
                )
    return found
