"""The one place that looks for rows seen before: the same data again, rows that tasks share, copies within a task.

Every row is kept as a keyed 64-bit hash, 8 bytes, also after the data is gone. Whoever has the saved learner can tell with
it whether a row that they have was learned from, and in which tasks; the row itself cannot be computed from it, but rows of few
possible values can be guessed (docs/data.md).

Within a task, rows that repeat count as errors, unless they are declared to be draws (docs/theory.md, section 14). Between tasks,
values that both have once are not reported, as far as there are as many that one has twice (`shared_rows`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.kernel.exact import tensor
from cop2l.randomness import marks
from cop2l.text import listing

MIX, LOW = 0x9E3779B97F4A7C15 - 2**64, 2**32 - 1
"""Odd, and as a signed number; the mask of the lower half."""
AT_ONCE = {"cpu": 2**16, "cuda": 2**24}
"""So many numbers are hashed at once: those that stay in the processor's cache, or enough to keep a GPU busy."""
FEW = 2
"""So many repeated or shared rows are never reported."""
DEVIATIONS = 4.0
"""How far counts of discrete data may be above what is expected, in standard deviations."""
ENOUGH, VALUES = 20, 8
"""So many rows in the same order are the same data; of so many values, also in another order."""
MOST_REPEATED = 0.002
"""A smaller share of repeated or shared rows is not reported."""
MOST_NAMED, MOST_REASONS = 20, 100
"""A certificate takes no more reasons; what is void is void all the same."""
COPIES = (
    " repeat another and count as errors, since copies are no independent draws: leave copies out (balance=True balances classes"
    " without any) or, if each row was drawn on its own, as discrete data is, declare repeats=True (repeats=true in a run)."
)
SHARED = (
    ": what is learned from them is not paid for, so no bound on these tasks holds, nor a mean over them; learn every example"
    " once, as part of one task."
)


def row_hashes(x: Any, like: Tensor, seed: int) -> np.ndarray:
    """A keyed 64-bit hash of each row as a model with parameters like these receives it; -0 is 0. Equal rows have equal hashes.

    >>> x = np.array([[0.1, 0.0], [0.1, -0.0], [0.1, 0.2]])
    >>> a, b, c = row_hashes(x, torch.zeros(1), seed=0)
    >>> bool(a == b != c), bool(a == row_hashes(x.astype(np.float32), torch.zeros(1), seed=0)[0])
    (True, True)
    """
    width = int(np.prod(x.shape[1:]))
    key = torch.from_numpy((marks(seed, "row hash", n=width) | np.uint64(1)).view(np.int64)).to(like.device)
    hashes, count = [torch.empty(0, dtype=torch.int64)], max(1, AT_ONCE[like.device.type] // max(1, width))
    for start in range(0, len(x), count):
        rows = tensor(x[start : start + count]).to(like.device)[..., None].flatten(1)
        words = ((rows.to(like.dtype) if rows.is_floating_point() else rows).double() + 0).view(torch.int64)
        words = (words ^ words >> 32 & LOW) * MIX  # numbers such as 0.5 and 0.25 differ in few bits
        hashes.append(((words ^ words >> 32 & LOW) * key).sum(1).cpu())
    return np.asarray(torch.cat(hashes).numpy().view(np.uint64))


def copied_rows(hashes: np.ndarray) -> int:
    """How many rows of a sample repeat another one; 0 if these are few."""
    repeated = len(hashes) - len(np.unique(hashes))
    return repeated if repeated > max(FEW, MOST_REPEATED * len(hashes)) else 0


def copies(task: int, hashes: np.ndarray, noun: str = "rows") -> Iterator[str]:
    """What to say of a sample with copies, or with discrete data."""
    if count := copied_rows(hashes):
        yield f"{count} of the {len(hashes)} {noun} of task {task}{COPIES}"


def shared_rows(new: np.ndarray, old: np.ndarray) -> int:
    """How many rows of one sample another one has too, by their hashes; 0 if independent draws explain them.

    Of the values that two independent samples have twice together, let N be those that each has once, and A and B those that one
    has twice and the other never. For values of expected counts a_i and b_i, with w_i = exp(-a_i - b_i), Cauchy and Schwarz give
    E[N] = sum w_i a_i b_i <= sqrt(sum w_i a_i^2 sum w_i b_i^2) = 2 sqrt(E[A] E[B]), whatever the distributions are.
    """
    (a, many), (b, much) = (np.unique(rows, return_counts=True) for rows in (new, old))
    _, at, there = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    # Of few values, samples are still not equal: about sqrt(values * rows) rows differ.
    apart = len(new) + len(old) - 2 * np.minimum(many[at], much[there]).sum()
    alike = len(a) >= VALUES and apart <= 0.1 * np.sqrt(len(a) * len(new))
    if alike or (len(a) > 1 and len(new) >= ENOUGH and np.array_equal(new, old)):
        return int(many[at].sum())
    once = ((many[at] == 1) & (much[there] == 1)).sum()
    twice = np.array(
        [(every == 2).sum() - (every[here] == 2).sum() for every, here in ((many, at), (much, there))]
    )
    discrete = len(a) + len(b) < len(new) + len(old)
    at_most = twice + DEVIATIONS * np.sqrt(twice + 1) if discrete else twice
    few = FEW + MOST_REPEATED * min(len(new), len(old))
    return int(many[at].sum()) if once > 2 * np.sqrt(at_most.prod()) + few else 0


def found_in_task(
    task: int, hashes: np.ndarray, earlier: Sequence[np.ndarray]
) -> Iterator[tuple[set[int], str]]:
    """What is wrong with the rows of a new task: the tasks whose bounds fall, and why."""
    known = np.repeat(np.arange(len(earlier)), [len(rows) for rows in earlier])
    touched = np.unique(known[np.isin(np.concatenate([*earlier, hashes[:0]]), hashes)])
    shared = {int(t) + 1: count for t in touched if (count := shared_rows(hashes, earlier[t]))}
    if shared:
        most = max(shared.values())
        yield (
            {task, *shared},
            f"Up to {most} of the {len(hashes)} rows of task {task} are rows of {_tasks(shared)} too{SHARED}",
        )


def found_in_withheld(
    learned: Mapping[int, np.ndarray], withheld: Mapping[int, np.ndarray]
) -> Iterator[tuple[set[int], str]]:
    """The same for withheld rows: rows that were learned from may repeat, and rows that two tasks withhold void means alone."""
    for task, hashes in withheld.items():
        if count := sum(shared_rows(hashes, rows) for rows in learned.values()):
            yield (
                {task},
                f"{count} of the {len(hashes)} withheld rows of task {task} were learned from as well{SHARED}",
            )
        others = {t: rows for t, rows in withheld.items() if t < task}
        if shared := [t for t, rows in others.items() if shared_rows(hashes, rows)]:
            yield (
                set(),
                f"Withheld rows of task {task} are rows of {_tasks(shared)} too: no average over these tasks holds.",
            )


def _tasks(numbers: Collection[int]) -> str:
    named = listing([str(number) for number in sorted(numbers)[:MOST_NAMED]])
    return f"task{'s' * (len(numbers) > 1)} {named}{' and others' * (len(numbers) > MOST_NAMED)}"
