"""Finds rows that were seen before: the same data again, rows that tasks share, and copies within a task.

The learner keeps a keyed 64-bit hash of every row, also after the data is gone. Whoever has the saved learner can test with it
whether a row that they have was learned from, and in which tasks. The row itself cannot be computed from its hash, but rows of
few possible values can be guessed (docs/data.md).

Rows that repeat within a task count as errors, unless they are declared to be draws (docs/theory.md, section 14). Tasks of
discrete data share some values by chance: `count_shared_rows` reports only more than that.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.kernel.exact import tensor
from cop2l.randomness import marks
from cop2l.text import listing

MIX, LOW = 0x9E3779B97F4A7C15 - 2**64, 2**32 - 1
"""An odd multiplier, as a signed number; the mask of the lower half."""
BLOCK = {"cpu": 2**16, "cuda": 2**24}
"""How many numbers are hashed at once: what fits in the processor's cache, or keeps a GPU busy."""
FEW = 2
"""So many repeated or shared rows are never reported."""
DEVIATIONS = 4.0
"""How far counts of discrete data may exceed their expectation, in standard deviations."""
ENOUGH, VALUES = 20, 8
"""From this many rows on, equal rows in the same order are the same data; from this many values on, also in another order."""
LEAST_SHARE = 0.002
"""A smaller share of repeated or shared rows is not reported."""
MOST_NAMED, MOST_REASONS = 20, 100
"""The most tasks that a reason names, and the most reasons that a certificate gives; further tasks are void all the same."""
COPIES = (
    " repeat another and count as errors, since copies are no independent draws: leave copies out or, if each row was drawn on"
    " its own, as discrete data is, declare repeats=True (repeats=true in a run)."
)
SHARED = (
    ": what is learned from them is not paid for, so no bound on these tasks holds, nor a mean over them; learn every example"
    " once, as part of one task."
)


def row_hashes(x: Any, parameter: Tensor, seed: int) -> np.ndarray:
    """A keyed 64-bit hash of each row, in the precision and on the device of a model's parameter.

    Equal rows have equal hashes; -0 is 0.

    >>> x = np.array([[0.1, 0.0], [0.1, -0.0], [0.1, 0.2]])
    >>> a, b, c = row_hashes(x, torch.zeros(1), seed=0)
    >>> bool(a == b != c), bool(a == row_hashes(x.astype(np.float32), torch.zeros(1), seed=0)[0])
    (True, True)
    """
    width, device = int(np.prod(x.shape[1:])), parameter.device
    key = torch.from_numpy((marks(seed, "row hash", n=width) | np.uint64(1)).view(np.int64)).to(device)
    hashes, size = np.empty(len(x), np.int64), max(1, BLOCK[device.type] // max(1, width))
    for start in range(0, len(x), size):
        rows = tensor(x[start : start + size]).to(device)[..., None].flatten(1)
        values = rows.to(parameter.dtype) if rows.is_floating_point() else rows
        bits = (values.double() + 0).view(torch.int64)
        bits = (bits ^ bits >> 32 & LOW) * MIX  # numbers such as 0.5 and 0.25 differ in few bits
        hashes[start : start + size] = ((bits ^ bits >> 32 & LOW) * key).sum(1).cpu()
    return hashes.view(np.uint64)


def count_copies(hashes: np.ndarray) -> int:
    """The number of rows of a sample that repeat another one; 0 if they are few."""
    repeated = len(hashes) - len(np.unique(hashes))
    return repeated if repeated > max(FEW, LEAST_SHARE * len(hashes)) else 0


def copy_warnings(task: int, hashes: np.ndarray, noun: str = "rows") -> Iterator[str]:
    """The warning about copies within a sample, if it has some."""
    if count := count_copies(hashes):
        yield f"{count} of the {len(hashes)} {noun} of task {task}{COPIES}"


def count_shared_rows(new: np.ndarray, old: np.ndarray) -> int:
    """The number of rows of one sample that another one has too, by their hashes.

    Returns 0 if chance explains the shared rows. Of the values that two independent samples have twice together, let N be those
    that each has once, and A and B those that one has twice and the other never. For values of expected counts a_i and b_i, with
    w_i = exp(-a_i - b_i), Cauchy and Schwarz give E[N] = sum w_i a_i b_i <= sqrt(sum w_i a_i^2 sum w_i b_i^2) = 2 sqrt(E[A]
    E[B]), whatever the distributions are.
    """
    both = np.sort(np.concatenate([new, old]))
    if not (both[1:] == both[:-1]).any():  # nearly always, and quicker to see than what follows
        return 0
    (new_values, new_counts), (old_values, old_counts) = (
        np.unique(rows, return_counts=True) for rows in (new, old)
    )
    _, in_new, in_old = np.intersect1d(new_values, old_values, assume_unique=True, return_indices=True)
    shared = int(new_counts[in_new].sum())
    # Independent samples of few values differ, too: in about sqrt(values * rows) rows.
    different = len(new) + len(old) - 2 * np.minimum(new_counts[in_new], old_counts[in_old]).sum()
    is_reordered = len(new_values) >= VALUES and different <= 0.1 * np.sqrt(len(new_values) * len(new))
    if is_reordered or (len(new_values) > 1 and len(new) >= ENOUGH and np.array_equal(new, old)):
        return shared
    once_in_both = ((new_counts[in_new] == 1) & (old_counts[in_old] == 1)).sum()
    twice_in_one = np.array(
        [
            (counts == 2).sum() - (counts[in_both] == 2).sum()
            for counts, in_both in ((new_counts, in_new), (old_counts, in_old))
        ]
    )
    is_discrete = len(new_values) + len(old_values) < len(new) + len(old)
    at_most = twice_in_one + DEVIATIONS * np.sqrt(twice_in_one + 1) if is_discrete else twice_in_one
    few = FEW + LEAST_SHARE * min(len(new), len(old))
    return shared if once_in_both > 2 * np.sqrt(at_most.prod()) + few else 0


def shared_row_findings(
    task: int, hashes: np.ndarray, earlier: Sequence[np.ndarray]
) -> Iterator[tuple[set[int], str]]:
    """Finds rows that a new task shares with earlier ones: the tasks whose bounds become void, and the reason."""
    shared = {t: count for t, rows in enumerate(earlier, 1) if (count := count_shared_rows(hashes, rows))}
    if shared:
        yield (
            {task, *shared},
            f"Up to {max(shared.values())} of the {len(hashes)} rows of task {task} are rows of {_tasks(shared)} too{SHARED}",
        )


def _tasks(numbers: Collection[int]) -> str:
    names = listing([str(number) for number in sorted(numbers)[:MOST_NAMED]])
    return f"task{'s' * (len(numbers) > 1)} {names}{' and others' * (len(numbers) > MOST_NAMED)}"
