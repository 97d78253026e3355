"""Theorem 2 of docs/theory.md on the kernel itself: what is outside c(S_t) can be taken away, and nothing changes.

And the number of examples that the threshold buffer keeps.
"""

import numpy as np
import pytest
import torch
from scipy.special import bdtrc
from torch import nn

from cop2l.kernel.exact import digest, exact_arithmetic, sample, score
from cop2l.kernel.learning import Plain, threshold
from cop2l.kernel.options import Options

ROWS, TASKS = 60, 3


class Without(Plain):
    """CoP2L as the theorem defines it: at one task some rows do not exist, and min(K, gamma stop) iterations are performed."""

    def without(self, task: int, gone: np.ndarray, message: int) -> "Without":
        self.at, self.gone, self.fixed = task, gone, message
        return self

    def mp2l(self, S, B, candidates, prior, message=None, longest=None):
        if self.task != self.at:
            return super().mp2l(S, B, candidates, prior)
        return super().mp2l(S, B, candidates & ~self.gone, prior, message=self.fixed)

    def learn(self, S, longest=None):
        here = self.task == self.at
        outcome = super().learn(S)
        if here:
            held = self.buffer[-1]
            self.buffer[-1] = held.take(np.flatnonzero(~self.gone[held.row]))
        return outcome


def stream(seed: int):
    """Three tasks of two noisy classes each, which overlap, so that picking goes on for a while."""
    rng = np.random.default_rng(seed)
    parts = []
    for task in range(1, TASKS + 1):
        y = rng.integers(2, size=ROWS)
        x = rng.normal(size=(ROWS, 2)) + np.stack([1.5 * y, np.full(ROWS, task)], axis=1)
        parts.append(sample(torch.tensor(x, dtype=torch.float32), torch.tensor(y), task, seed))
    return parts


def learned(options: Options, parts, kind=Plain, **without):
    torch.manual_seed(0)
    run = kind(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), options)
    run = run.without(**without) if without else run
    outcomes = [run.learn(part) for part in parts]
    return run, digest(run.model.state_dict()), outcomes


@pytest.mark.parametrize("grid", [False, True])
def test_what_is_outside_the_compression_can_be_taken_away(grid):
    between = removed = 0
    for seed in range(6):
        options = Options(
            memory=40, k=2, omega=2.0, gamma=1.2, epochs=4, batch=16, lr=0.1, seed=seed, grid=grid,
            max_iterations=24 if grid else None, stop="none" if seed % 2 else "preference",
            pick_omega=(None, 1.0, 5.0)[seed % 3],
        )  # fmt: skip
        parts, rng = stream(seed), np.random.default_rng(seed)
        with exact_arithmetic(1):
            run, theta, outcomes = learned(options, parts)
            for t, part in enumerate(parts, 1):
                own = run.sets[t - 1]
                between += len(outcomes[t - 1].kept) // options.k < own.iterations
                c = score(run.model, part)[1]
                c[own.picked] = True
                some = ~c & (rng.random(ROWS) < 0.5)
                for gone in (some, ~c):
                    removed += int(gone.sum())
                    again, same, _ = learned(
                        options, parts, Without, task=t, gone=gone, message=own.iterations
                    )
                    assert same == theta
                    assert again.sets[t - 1].picked.tolist() == own.picked.tolist()
                if len(own.own):  # and what is inside cannot
                    _, other, _ = learned(
                        options,
                        parts,
                        Without,
                        task=t,
                        gone=np.isin(part.row, own.own),
                        message=own.iterations,
                    )
                    assert other != theta
    assert removed > 500
    assert (between > 0) == grid  # gamma stopped between two points of the grid


@pytest.mark.parametrize(
    ("memory", "tasks", "n"), [(10, 1, 50), (50, 2, 60), (200, 5, 1000), (2000, 10, 5000), (10**5, 3, 10**6)]
)
def test_the_buffer_seldom_keeps_more_than_the_memory(memory, tasks, n):
    """Exactly: marks below the thresholds of equal tasks are binomial."""
    tau = int(threshold(n, tasks, Options(memory=memory))) / 2.0**64
    assert 0 < tau < 1
    assert bdtrc(memory, tasks * n, tau) <= 0.01
    assert tasks * n * tau > memory + 1 - 3.1 * np.sqrt(memory + 1)
