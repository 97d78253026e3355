"""A synthetic stream whose risks are known: inputs on a finite grid with known probabilities."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cop2l.errors import UserError, unknown
from cop2l.randomness import marks
from cop2l.streams.task import SCENARIOS, Scenario, Stream, Task, fingerprint

LARGEST_GRID = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Synthetic(Stream):
    """A stream that knows its distributions: `risk` is a finite sum, not an estimate."""

    support: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """Every input that can occur, one per row."""
    probability: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))
    """probability[t - 1, i, c]: the chance that an example of task t is (support[i], class c)."""

    def risk(self, predict: Callable[[Any], Any], task: int) -> float:
        """The exact chance that `predict` (inputs to classes) errs on a new example of a task (from 1)."""
        joint = self.probability[task - 1]
        predicted = predict(self.support)
        predicted = predicted.cpu().numpy() if isinstance(predicted, torch.Tensor) else np.asarray(predicted)
        return float(1.0 - joint[np.arange(len(joint)), predicted].sum())

    def best_risk(self, task: int) -> float:
        """The smallest risk that any classifier can have on a task."""
        return float(1.0 - self.probability[task - 1].max(axis=1).sum())


def synthetic(
    tasks: int = 3,
    n: int = 500,
    classes_per_task: int = 2,
    dimensions: int = 4,
    *,
    noise: float = 1.0,
    levels: int = 5,
    n_test: int = 200,
    scenario: Scenario = "class-incremental",
    problem: int = 0,
    seed: int = 0,
) -> Synthetic:
    """Classes are discrete Laplace clouds around grid points; examples are drawn independently.

    A class has a centre on the grid {0, .., levels-1}^dimensions; each coordinate of an example is v with a
    chance proportional to exp(-|v - centre| / noise), independently. The classes of a task are equally
    likely. `problem` fixes the distributions, `seed` the sample: simulations vary the seed.

    >>> stream = synthetic(tasks=2, n=50)
    >>> round(stream.risk(lambda x: [0] * len(x), task=1), 12), len(stream)
    (0.5, 2)
    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if min(tasks, n, classes_per_task, dimensions, n_test) < 1 or levels < 2 or not noise > 0:
        raise UserError("A synthetic stream needs positive numbers, and at least two levels.")
    same = scenario == "domain-incremental"
    classes = classes_per_task if same else tasks * classes_per_task
    clouds = tasks * classes_per_task
    if levels**dimensions > LARGEST_GRID or clouds > levels**dimensions:
        raise UserError(f"{levels} levels in {dimensions} dimensions do not fit; choose other numbers.")
    grid = np.indices((levels,) * dimensions).reshape(dimensions, -1).T
    cloud = _clouds(grid, clouds, levels, noise, problem)
    probability = np.zeros((tasks, len(grid), classes))
    heads = []
    for t in range(tasks):
        head = range(classes_per_task) if same else range(t * classes_per_task, (t + 1) * classes_per_task)
        heads.append(tuple(head))
        for i, label in enumerate(head):
            probability[t, :, label] = cloud[t * classes_per_task + i] / classes_per_task
    support = (2 * grid / (levels - 1) - 1).astype(np.float32)
    train, test = (
        [
            _sample(support, probability[t - 1], marks(seed, f"synthetic {part}", t, n=size) / 2.0**64, t)
            for t in range(1, tasks + 1)
        ]
        for part, size in (("train", n), ("test", n_test))
    )
    return Synthetic(
        name="synthetic",
        scenario=scenario,
        train=train,
        test=test,
        classes=classes,
        heads=tuple(heads),
        description={
            "name": "synthetic",
            "scenario": scenario,
            "tasks": tasks,
            "n": n,
            "classes_per_task": classes_per_task,
            "dimensions": dimensions,
            "noise": noise,
            "levels": levels,
            "n_test": n_test,
            "problem": problem,
            "seed": seed,
            "fingerprint": {
                part: fingerprint(np.concatenate([t.x for t in made]), np.concatenate([t.y for t in made]))
                for part, made in (("train", train), ("test", test))
            },
        },
        support=support,
        probability=probability,
    )


def _clouds(grid: np.ndarray, number: int, levels: int, noise: float, problem: int) -> np.ndarray:
    """The chance of each cell of the grid under each cloud."""
    # Distinct centres: the first cells of the grid in an order of the problem's own.
    centres = grid[np.argsort(marks(problem, "synthetic centres", n=len(grid)), kind="stable")[:number]]
    axis = np.exp(-np.abs(np.arange(levels)[:, None] - np.arange(levels)) / noise)
    axis /= axis.sum(axis=1, keepdims=True)
    return np.stack([np.prod([axis[m, grid[:, j]] for j, m in enumerate(c)], axis=0) for c in centres])


def _sample(support: np.ndarray, joint: np.ndarray, uniform: np.ndarray, task: int) -> Task:
    """Independent draws from the joint distribution, by inversion of its distribution function."""
    steps = np.cumsum(joint.ravel())
    cell = np.minimum(np.searchsorted(steps, uniform * steps[-1], side="right"), np.flatnonzero(joint)[-1])
    row, label = np.divmod(cell, joint.shape[1])
    return Task(support[row], label.astype(np.int64), task)
