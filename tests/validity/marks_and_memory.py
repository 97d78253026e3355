"""What is assumed of marks, and what follows for the memory: numbers that whole runs rely on."""

import numpy as np
from scipy.stats import binom, chisquare, kstest

from cop2l.kernel.exact import threshold
from cop2l.kernel.options import Options
from cop2l.randomness import marks

ALLOWED = 0.01
"""How often, after any given task, the memory may hold more than it should."""


def largest_overflow(memories=range(1, 3001), tasks=(1, 2, 3, 5, 10), n=10**6):
    """The largest chance that more than the memory is kept: exact, a sum over tasks of n examples each, none picked."""
    found = 0.0
    for memory in memories:
        options = Options(memory=memory)
        for after in tasks:
            tau = float(threshold(n, after, options)) / 2.0**64
            found = max(found, float(binom.sf(memory, after * n, tau)))
    return found


def simulated_overflow(memory, sizes, seeds, by_marks=False):
    """After each task: in how many of so many seeds more than the memory stays. A third of every pool is picked.

    Losses are random, so that how many of a task are picked depends on the marks in the buffer. by_marks: the losses are the
    task's own marks, which no loss may depend on.
    """
    options, found = Options(memory=memory), np.zeros(len(sizes), int)
    for seed in range(seeds):
        draw, held = np.random.default_rng(seed), []
        for after, n in enumerate(sizes, 1):
            own = marks(seed, "mark", after, n=n)
            losses = own / 2.0**64 if by_marks else draw.random(n)
            pool = np.sort(np.concatenate([losses, draw.random(sum(len(kept) for kept, _ in held))]))
            rest = own[losses < pool[-(len(pool) // 3)]]
            every = [*held, (rest, len(rest))]
            held = [(kept[kept < threshold(left, after, options)], left) for kept, left in every]
            found[after - 1] += sum(len(kept) for kept, _ in held) > memory
    return found.tolist()


OVERFLOWS = {10: (50, 80), 60: (24, 96, 48), 200: (1000, 300, 2000), 2000: (12000, 6000, 6000, 3000, 9000)}
"""Memories, each with the sizes of its tasks."""

PAIRS = {
    "first and second mark": (("mark", 1), ("prior", 1)),
    "first mark and hold-out": (("mark", 1), ("holdout", 1)),
    "second mark and hold-out": (("prior", 1), ("holdout", 1)),
    "first marks of two tasks": (("mark", 1), ("mark", 2)),
    "first mark and the uniform buffer's order": (("mark", 1), ("uniform", 1, 2)),
    "the uniform buffer's order at two times": (("uniform", 1, 2), ("uniform", 1, 3)),
    "first mark and a synthetic stream of the same seed": (("mark", 1), ("synthetic train", 1)),
}


def joint_p(one, other, cells=16):
    """How likely counts as uneven as these are, in a square of cells, if both are uniform and independent."""
    at = [(column >> np.uint64(32)).astype(np.int64) * cells >> 32 for column in (one, other)]
    return float(chisquare(np.bincount(at[0] * cells + at[1], minlength=cells**2)).pvalue)


def over_seeds(purpose, *numbers, rows, seeds):
    """Marks of the first rows, for many seeds, one after the other."""
    return np.concatenate([marks(seed, purpose, *numbers, n=rows) for seed in range(seeds)])


def mark_p_values(rows=20, seeds=5000):
    """p-values of what is assumed: pairs independent, neighbours independent, first marks uniform over seeds."""
    drawn = {key: over_seeds(*key, rows=rows, seeds=seeds) for pair in PAIRS.values() for key in pair}
    found = {name: joint_p(drawn[one], drawn[other]) for name, (one, other) in PAIRS.items()}
    first = drawn["mark", 1]
    found["neighbouring rows"] = joint_p(first[:-1], first[1:])
    found["neighbouring seeds"] = joint_p(first[:-rows], first[rows:])
    found["uniform over seeds"] = float(kstest(first[::rows] / 2.0**64, "uniform").pvalue)
    return found
