"""Which examples of the past stay: four policies.

After task s every task i <= s has a share of the memory. A policy is a function of (seed, i, s), of the row numbers of
task i and of which of them were picked at task i: never of another task's examples, nor of an example's content.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from cop2l.certify.options import Buffer
from cop2l.randomness import marks

OVERFLOW = 1e-3
"""After any given task the threshold buffer exceeds the memory with at most this probability."""


@dataclass(frozen=True)
class Keeper:
    """One policy, and how many examples of the certified parts the memory may hold."""

    policy: Buffer
    memory: int
    seed: int

    @property
    def index_determined(self) -> bool:
        """Whether the time of an eviction is a function of row numbers alone, so that it needs no message."""
        return self.policy != "uniform"

    def stay(
        self, rows: np.ndarray, *, task: int, after: int, certified: np.ndarray, own: np.ndarray
    ) -> np.ndarray:
        """Which of these rows of `task` are in the buffer after task `after` (a mask over `rows`).

        `certified` is the mask of S_task among all rows of the task (the rest is its prior part), `own` the rows
        picked at the task itself. `rows` are those in the buffer before or, at the task itself, all others.
        """
        if self.policy in ("threshold", "witness"):  # iff u <= tau_{i,s}
            limit = self.threshold(int(certified.sum()), after)
            return np.asarray(marks(self.seed, "mark", task, n=len(certified))[rows] < limit)
        share = self.memory // after
        if self.policy == "priority":  # the first of S_i \ C_i in an order drawn in advance
            free = certified.copy()
            free[own] = False
            order = np.argsort(marks(self.seed, "priority", task, n=len(certified)), kind="stable")
            return np.isin(rows, order[free[order]][:share])
        keys = marks(self.seed, "uniform", task, after, n=len(certified))[rows]  # sample(B_i, floor(m/s))
        chosen = np.zeros(len(rows), bool)
        chosen[np.argsort(keys, kind="stable")[:share]] = True
        return chosen

    def threshold(self, n: int, after: int) -> np.uint64:
        """2^64 tau_{i,s}: an example stays iff its mark is below; tau = m' / (s n), fixed in advance.

        The number kept after task s is at most a sum of independent indicators with mean m'. Beyond its mean plus
        one such a sum has no heavier tail than the Poisson law (Hoeffding 1956; Anderson and Samuels 1967), so m' is the
        Poisson mean that exceeds m with probability OVERFLOW.
        """
        mean = float(gammaincinv(self.memory + 1, OVERFLOW)) if self.memory else 0.0
        return np.uint64(min(int(mean / (after * n) * 2.0**64), 2**64 - 1)) if n else np.uint64(0)
