"""The size of the memory, and uniformity and independence of the marks."""

import numpy as np
from scipy.stats import binom, chisquare, kstest

from cop2l.kernel.exact import threshold
from cop2l.kernel.options import Options
from cop2l.randomness import marks

ALLOWED = 0.01
"""The largest probability, after any given task, that the buffer holds more than the memory."""


def largest_overflow(memories=range(1, 3001), tasks=(1, 2, 3, 5, 10), n=10**6):
    """The largest probability that more than the memory is kept: exact, for tasks of n examples each, none picked."""
    largest = 0.0
    for memory in memories:
        options = Options(memory=memory)
        for after in tasks:
            tau = float(threshold(n, after, options)) / 2.0**64
            largest = max(largest, float(binom.sf(memory, after * n, tau)))
    return largest


def simulated_overflow(memory, sizes, seeds, by_marks=False):
    """After each task, the number of seeds with which more than the memory stays. A third of every pool is picked.

    Losses are random, so that the number of picks of a task depends on the marks in the buffer. by_marks: the losses are the
    marks of the task; no loss may depend on these.
    """
    options, overflows = Options(memory=memory), np.zeros(len(sizes), int)
    for seed in range(seeds):
        draw, buffer = (
            np.random.default_rng(seed),
            [],
        )  # for each task the marks in the buffer, and its unpicked examples
        for after, n in enumerate(sizes, 1):
            task_marks = marks(seed, "mark", after, n=n)
            losses = task_marks / 2.0**64 if by_marks else draw.random(n)
            pool = np.sort(np.concatenate([losses, draw.random(sum(len(u) for u, _ in buffer))]))
            unpicked = task_marks[losses < pool[-(len(pool) // 3)]]
            buffer.append((unpicked, len(unpicked)))
            buffer = [(u[u < threshold(count, after, options)], count) for u, count in buffer]
            overflows[after - 1] += sum(len(u) for u, _ in buffer) > memory
    return overflows.tolist()


OVERFLOWS = {10: (50, 80), 60: (24, 96, 48), 200: (1000, 300, 2000), 2000: (12000, 6000, 6000, 3000, 9000)}
"""Memories, each with the sizes of its tasks."""

PAIRS = {
    "mark and hold-out": (("mark", 1), ("holdout", 1)),
    "marks of two tasks": (("mark", 1), ("mark", 2)),
    "mark and the uniform buffer's order": (("mark", 1), ("uniform", 1, 2)),
    "the uniform buffer's order at two times": (("uniform", 1, 2), ("uniform", 1, 3)),
    "mark and a synthetic stream of the same seed": (("mark", 1), ("synthetic train", 1)),
}


def joint_p(first, second, cells=16):
    """The p-value of "both columns of marks are uniform and independent", from counts in a square of cells."""
    row, column = ((values >> np.uint64(32)).astype(np.int64) * cells >> 32 for values in (first, second))
    return float(chisquare(np.bincount(row * cells + column, minlength=cells**2)).pvalue)


def over_seeds(purpose, *numbers, rows, seeds):
    """Marks of the first rows, for many seeds, one after the other."""
    return np.concatenate([marks(seed, purpose, *numbers, n=rows) for seed in range(seeds)])


def mark_p_values(rows=20, seeds=5000):
    """p-values of: pairs are independent, neighbours are independent, first marks are uniform over seeds."""
    columns = {key: over_seeds(*key, rows=rows, seeds=seeds) for pair in PAIRS.values() for key in pair}
    p_values = {name: joint_p(*(columns[key] for key in pair)) for name, pair in PAIRS.items()}
    first = columns["mark", 1]
    p_values["neighbouring rows"] = joint_p(first[:-1], first[1:])
    p_values["neighbouring seeds"] = joint_p(first[:-rows], first[rows:])
    p_values["uniform over seeds"] = float(kstest(first[::rows] / 2.0**64, "uniform").pvalue)
    return p_values
