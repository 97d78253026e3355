"""From the integers of a task to its bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cop2l.bounds import (
    Bound,
    anytime_log_delta,
    buffer_certificate,
    combined_certificate,
    kl_certificate,
    kl_tight_certificate,
    preference_certificate,
)
from cop2l.kernel.options import Options


def log_delta(options: Options, last: int) -> float:
    """What the statements after task `last` share of delta, as a logarithm."""
    whole = math.log(options.delta / len(options.claim))
    return anytime_log_delta(whole, last) if options.anytime else whole


def bounds_of(
    record: Mapping[str, Any], options: Options, messages: Sequence[int], only: str | None = None
) -> dict[str, Bound]:
    """Every bound that applies to a task (or the one of this kind), after the last of the tasks that kept `messages` iterations.

    Each kind alone holds for all tasks at once with probability at least 1 - delta; several kinds together do not, so one kind is
    named in advance and claimed.
    """
    last, task, n, kept = len(messages), record["task"], record["n"], record["iterations"]
    share, grid = log_delta(options, last), len(options.grid_points) or None
    found: dict[str, Bound] = {}
    if only in (None, "kl", "kl-tight") and (errors := record["errors"]) is not None:
        first, second, late = record["compression"], record["evicted"], record["evicted_last"]
        found["kl"] = kl_certificate(n, first, second, errors, messages, task, last, share, grid=grid)
        found["kl-tight"] = kl_tight_certificate(
            n,
            first + late,
            second - late,
            errors,
            messages,
            task,
            last,
            share,
            grid=grid,
            marked=options.marked,
        )
    if not options.marked:
        return found
    if (missed := record["missed"]) is not None:
        found["preference"] = preference_certificate(
            n, record["picked"], missed, kept, last, share, grid=grid
        )
        if options.buffer == "witness":
            found["combined"] = combined_certificate(
                n, record["picked"], missed, kept, last, share, grid=grid
            )
    selected, compressed = record["selected"], record["compressed"]
    if options.buffer == "witness":  # the same argument on R_t
        same = combined_certificate(selected, 0, compressed, kept, last, share, grid=grid)
        found["buffer"] = replace(same, kind="buffer")
    else:
        found["buffer"] = buffer_certificate(selected, compressed, kept, last, share, grid=grid)
    return found
