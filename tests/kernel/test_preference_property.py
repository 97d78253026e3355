"""Theorem 2 of docs/theory.md for errors, for what was lost and for parts of a sample, on the kernel itself.

c(S_t) holds the picked examples and those of the event: that theta_T errs, or that theta_t was right and theta_T errs. What is
outside can be taken away, and a new example of the event enters c.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from cop2l.kernel.exact import digest, exact_arithmetic, sample, score
from cop2l.kernel.learning import ReferenceLearner
from cop2l.kernel.options import Options

ROWS, TASKS = 60, 3


class Without(ReferenceLearner):
    """CoP2L as the theorem defines it: at one task some rows do not exist, and min(K, gamma stop) iterations are performed."""

    def without(self, task: int, gone: np.ndarray, kept_iterations: int) -> "Without":
        self.at, self.gone, self.fixed = task, gone, kept_iterations
        return self

    def mp2l(self, S, B, kept_iterations=None, longest=None):
        if self.task != self.at:
            return super().mp2l(S, B)
        existing = np.flatnonzero(~self.gone)
        outcome = super().mp2l(S.take(existing), B, kept_iterations=self.fixed)
        positions = np.concatenate([existing, len(S) + np.arange(0 if B is None else len(B))])
        return replace(outcome, compression=positions[outcome.compression], picked=positions[outcome.picked])

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


def learned(options, parts, **without):
    """(theta_T, for each task its picks and which rows theta_t and theta_T misclassify)."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    run = Without(network, options).without(**without) if without else ReferenceLearner(network, options)
    before = []
    for part in parts:
        run.learn(part)
        before.append(score(run.model, part)[1])
    now = [score(run.model, part)[1] for part in parts]
    return digest(run.model.state_dict()), run.sets, before, now


def compression(picked, event, absent):
    """c: the rows that were picked, and those of the event among the rows that exist."""
    found = event & ~absent
    found[picked] = True
    return found


def events(before, now):
    return {"errs": now, "lost": now & ~before}


def test_what_is_outside_the_compression_of_an_event_can_be_taken_away():
    removed = lost = entered = 0
    nobody = np.zeros(ROWS, bool)
    for seed in range(4):
        options = Options(
            memory=40, k=2, omega=2.0, gamma=0.9, epochs=4, batch=16, lr=0.3, seed=seed,
            stop="none" if seed % 2 else "preference", max_iterations=6,
        )  # fmt: skip
        parts, rng = stream(seed), np.random.default_rng(seed)
        with exact_arithmetic(1):
            theta, sets, before, now = learned(options, parts)
            for t in range(1, TASKS):
                task_sets, labels = sets[t - 1], parts[t - 1].y.numpy()
                for name, event in events(before[t - 1], now[t - 1]).items():
                    c = compression(task_sets.picked, event, nobody)
                    lost += int((c & event).sum()) if name == "lost" else 0
                    some = rng.random(ROWS) < 0.5
                    for removed_rows in (~c, ~c & some, ~c & (labels == 0), ~c & (labels == 1) & some):
                        removed += int(removed_rows.sum())
                        same, again, then, after = learned(
                            options, parts, task=t, gone=removed_rows, kept_iterations=task_sets.iterations
                        )
                        assert same == theta
                        compressed = compression(
                            again[t - 1].picked, events(then[t - 1], after[t - 1])[name], removed_rows
                        )
                        assert compressed.tolist() == c.tolist()
                # a part of the sample, one more example: if the event happens on it, it enters
                part = rng.random(ROWS) < 0.4
                _, _, then, after = learned(
                    options, parts, task=t, gone=~part, kept_iterations=task_sets.iterations
                )
                for name, event in events(then[t - 1], after[t - 1]).items():
                    for z in np.flatnonzero(event & ~part)[:2]:
                        removed_rows = ~part
                        removed_rows[z] = False
                        _, again, own_then, own_after = learned(
                            options, parts, task=t, gone=removed_rows, kept_iterations=task_sets.iterations
                        )
                        happens = events(own_then[t - 1], own_after[t - 1])[name]
                        assert compression(again[t - 1].picked, happens, removed_rows)[z]
                        entered += 1
    assert removed > 500
    assert lost > 10
    assert entered > 10
