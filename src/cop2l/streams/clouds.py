"""A synthetic stream with known risks: its inputs are on a finite grid and have known probabilities."""

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
    """A stream with known distributions; `risk` is a finite sum, not an estimate."""

    support: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """All possible inputs, one per row."""
    probability: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))
    """probability[t - 1, i, c] is the probability that an example of task t is (support[i], class c)."""

    def risk(self, predict: Callable[[Any], Any], task: int) -> float:
        """The exact probability that `predict`, from inputs to classes, errs on a new example of a task (from 1)."""
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
    """A stream of classes that are discrete Laplace clouds, with independent examples.

    A class has a centre on the grid {0, .., levels-1}^dimensions. The coordinates of an example are independent, and a
    coordinate is v with probability proportional to exp(-|v - centre| / noise). The classes of a task are equally
    likely. `problem` fixes the distributions, `seed` the sample.

    >>> stream = synthetic(tasks=2, n=50)
    >>> round(stream.risk(lambda x: [0] * len(x), task=1), 12), len(stream)
    (0.5, 2)
    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if min(tasks, n, classes_per_task, dimensions, n_test) < 1 or levels < 2 or not noise > 0:
        raise UserError(
            "A number of the synthetic stream is too small; give levels=2 or more, and numbers above 0 otherwise."
        )
    clouds = tasks * classes_per_task
    if levels ** min(dimensions, 99) > LARGEST_GRID or clouds > levels**dimensions:
        raise UserError(
            f"A grid of {levels} levels in {dimensions} dimensions has more than {LARGEST_GRID} cells, or too few for {clouds}"
            " clouds; choose other numbers."
        )
    label_sets = [range(t * classes_per_task, (t + 1) * classes_per_task) for t in range(tasks)]
    if scenario == "domain-incremental":
        label_sets = [range(classes_per_task)] * tasks
    grid = np.indices((levels,) * dimensions).reshape(dimensions, -1).T
    cloud = _clouds(grid, clouds, levels, noise, problem)
    probability = np.zeros((tasks, len(grid), label_sets[-1].stop))
    for t, labels in enumerate(label_sets):
        for i, label in enumerate(labels):
            probability[t, :, label] = cloud[t * classes_per_task + i] / classes_per_task
    support = (2 * grid / (levels - 1) - 1).astype(np.float32)
    train = _sample(support, probability, "train", n, seed)
    test = _sample(support, probability, "test", n_test, seed)
    return Synthetic(
        name="synthetic",
        scenario=scenario,
        train=train,
        test=test,
        classes=probability.shape[2],
        heads=tuple(map(tuple, label_sets)),
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
            "fingerprint": {"train": _fingerprint(train), "test": _fingerprint(test)},
        },
        support=support,
        probability=probability,
    )


def _clouds(grid: np.ndarray, number: int, levels: int, noise: float, problem: int) -> np.ndarray:
    """The probability of each cell of the grid under each cloud."""
    # The first cells in a random order are distinct centres.
    centres = grid[np.argsort(marks(problem, "synthetic centres", n=len(grid)), kind="stable")[:number]]
    axis = np.exp(-np.abs(np.arange(levels)[:, None] - np.arange(levels)) / noise)
    axis /= axis.sum(axis=1, keepdims=True)
    return np.stack([np.prod([axis[m, grid[:, j]] for j, m in enumerate(c)], axis=0) for c in centres])


def _sample(support: np.ndarray, probability: np.ndarray, part: str, n: int, seed: int) -> list[Task]:
    """For each task, n independent draws by inversion of the distribution function."""
    tasks = []
    for t, joint in enumerate(probability, 1):
        uniform = marks(seed, f"synthetic {part}", t, n=n) / 2.0**64
        steps = np.cumsum(joint.ravel())
        cell = np.searchsorted(steps, uniform * steps[-1], side="right")
        row, label = np.divmod(np.minimum(cell, np.flatnonzero(joint)[-1]), joint.shape[1])
        tasks.append(Task(support[row], label.astype(np.int64), t))
    return tasks


def _fingerprint(tasks: list[Task]) -> str:
    return fingerprint(np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks]))
