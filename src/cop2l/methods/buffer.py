"""The examples a method keeps: one tensor per column, all of equal length."""

import torch
from torch import Tensor

from cop2l.errors import UserError


class Buffer:
    """Columns `x`, `y`, `t` (the task, from 1) and whatever else a method stores per example.

    >>> buffer = Buffer().join(x=torch.zeros(3, 2), y=torch.tensor([0, 1, 1]), t=torch.tensor([1, 1, 1]))
    >>> len(buffer), buffer.rows(torch.tensor([0, 2])).y
    (3, tensor([0, 1]))
    """

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["y"]) if self.columns else 0

    def __getattr__(self, name: str) -> Tensor:
        columns: dict[str, Tensor] = self.__dict__["columns"]
        if name not in columns:
            raise AttributeError(name)
        return columns[name]

    def values(self, *names: str) -> list[Tensor]:
        """Columns by name."""
        return [self.columns[name] for name in names]

    def rows(self, index: Tensor) -> "Buffer":
        """The examples at an index tensor or a mask."""
        index = index.to(self.y.device) if self.columns else index
        return Buffer(**{name: column[index] for name, column in self.columns.items()})

    def join(self, **columns: Tensor) -> "Buffer":
        """These examples followed by others."""
        if not len(self) or not columns:
            return Buffer(**(columns or self.columns))
        if self.x.shape[1:] != columns["x"].shape[1:]:
            before, now = tuple(self.x.shape[1:]), tuple(columns["x"].shape[1:])
            raise UserError(
                f"The buffer holds inputs of shape {before}, this task's have {now}; make them equal."
            )
        return Buffer(**{name: torch.cat([self.columns[name], columns[name]]) for name in self.columns})

    def of_task(self, t: int) -> "Buffer":
        """The examples of one task."""
        return self.rows(self.t == t) if self.columns else self


def index_columns(index: Tensor, *columns: Tensor) -> list[Tensor]:
    """The rows of each column at an index tensor: `column[index]`, in a fifth of the time."""
    return [column.index_select(0, index) for column in columns]


def uniform(n: int, size: int, generator: torch.Generator) -> Tensor:
    """`size` of n rows (all if there are fewer), uniformly without replacement, in ascending order."""
    return torch.randperm(n, generator=generator)[:size].sort().values


def cycle(n: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` rows of n, drawn without replacement and reshuffled when exhausted; none of none."""
    rounds = -(-count // n) if n else 0
    orders = [torch.randperm(n, generator=generator) for _ in range(rounds)]
    return torch.cat([torch.empty(0, dtype=torch.long), *orders])[:count]


def shares(buffer: Buffer, new: Buffer, t: int, memory: int, generator: torch.Generator) -> Buffer:
    """After task t: floor(memory / t) uniformly drawn examples of each task, the new one included."""
    share = memory // t
    kept = Buffer()
    for task in range(1, t):
        old = buffer.of_task(task)
        kept = kept.join(**old.rows(uniform(len(old), share, generator)).columns)
    return kept.join(**new.rows(uniform(len(new), share, generator)).columns)


def class_balanced(buffer: Buffer, memory: int) -> Buffer:
    """floor(memory / classes) examples of each class: those with the smallest `mark`.

    With marks drawn uniformly once per example this is a reservoir per class: at all times a uniform sample
    of what the class has shown so far.
    """
    order = buffer.mark.argsort()
    classes = sorted(set(buffer.y.tolist()))
    share = memory // len(classes)
    return buffer.rows(torch.cat([order[buffer.y[order] == c][:share] for c in classes]).sort().values)
