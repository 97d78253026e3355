"""The withheld rows of a task: which of them are kept, and what is known of the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.kernel.exact import kept_rows, withheld_rows
from cop2l.learner.repeats import SHARED, count_shared_rows

COLUMNS = ("learned", "hashes", "copied", "first_errors", "groups", "kept_positions")
"""The columns of numbers that are saved of each task."""


@dataclass(frozen=True)
class Withheld:
    """What a hold-out stores of a task. All columns but the last three have one entry for each withheld row."""

    rows: int
    """The number of all rows of the task."""
    fingerprint: str
    """The fingerprint of all its rows."""
    learned: np.ndarray
    """The hashes of the rows that were learned from."""
    hashes: np.ndarray
    copied: np.ndarray
    """Which rows equal a row that was learned from, in this task or another."""
    first_errors: np.ndarray
    """Which rows were misclassified just after the task was learned."""
    groups: np.ndarray
    """The numbers of their groups; empty if none are declared."""
    kept_positions: np.ndarray
    """The positions of the rows that are kept."""
    x: Tensor
    """The inputs of the kept rows."""
    y: Tensor
    """The labels of the kept rows."""

    def mask(self, task: int, share: float, seed: int) -> np.ndarray:
        """Which rows of the task are withheld."""
        return withheld_rows(self.rows, task, share, seed)

    def keep_rows(self, task: int, share: float, seed: int, most: int) -> "Withheld":
        """The same with at most this many kept rows: those with the smallest marks."""
        mask = self.mask(task, share, seed)
        positions = np.searchsorted(np.flatnonzero(mask), kept_rows(mask, task, most, seed))
        remaining = np.flatnonzero(np.isin(self.kept_positions, positions))
        return replace(
            self,
            kept_positions=self.kept_positions[remaining],
            x=self.x[remaining].clone(),
            y=self.y[remaining].clone(),
        )


def mark_copies(tasks: Sequence[Withheld], new: Withheld) -> tuple[list[Withheld], Withheld]:
    """Mark which withheld rows equal a learned row, after a new task: in the earlier tasks and in the new one."""
    learned = np.concatenate([new.learned, *(task.learned for task in tasks)])
    marked = [replace(task, copied=task.copied | np.isin(task.hashes, new.learned)) for task in tasks]
    return marked, replace(new, copied=np.isin(new.hashes, learned))


def shared_rows(tasks: Sequence[Withheld], new: Withheld) -> Iterator[tuple[set[int], str]]:
    """Rows that a new task shares with earlier ones: the tasks whose bounds become void (none: only means do), and the reason."""
    t = len(tasks) + 1
    for s, task in enumerate(tasks, 1):
        for number, other, hashes, learned in (
            (s, t, task.hashes, new.learned),
            (t, s, new.hashes, task.learned),
        ):
            if count := count_shared_rows(hashes, learned):
                yield (
                    {number},
                    f"{count} withheld rows of task {number} are rows that task {other} learned from{SHARED}",
                )
        if count_shared_rows(new.hashes, task.hashes):
            yield (
                set(),
                f"Withheld rows of task {t} are rows of task {s} too: no average over these tasks holds.",
            )


def tensors_of(tasks: Sequence[Withheld]) -> dict[str, Tensor]:
    """The columns of all tasks, for a file; masks are packed."""
    tensors = dict[str, Tensor]()
    for t, task in enumerate(tasks, 1):
        tensors |= {f"{t}/x": task.x, f"{t}/y": task.y}
        for name in COLUMNS:
            column = getattr(task, name)
            column = np.packbits(column) if column.dtype == bool else column.view(np.int64)
            tensors[f"{t}/{name}"] = torch.from_numpy(column.copy())
    return tensors


def read_tasks(tensors: dict[str, Tensor], facts: Sequence[tuple[int, str]]) -> list[Withheld]:
    """The tasks that `tensors_of` wrote, each with its number of rows and its fingerprint."""
    tasks = []
    for t, (rows, fingerprint) in enumerate(facts, 1):
        columns: dict[str, Any] = {name: tensors[f"{t}/{name}"].numpy() for name in COLUMNS}
        columns |= {name: columns[name].view(np.uint64) for name in ("learned", "hashes")}
        size = len(columns["hashes"])
        columns |= {
            name: np.unpackbits(columns[name])[:size].astype(bool) for name in ("copied", "first_errors")
        }
        tasks.append(Withheld(rows, fingerprint, **columns, x=tensors[f"{t}/x"], y=tensors[f"{t}/y"]))
    return tasks
