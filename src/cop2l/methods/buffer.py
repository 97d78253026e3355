"""The examples that a method stores, and rules by which they are sampled."""

import torch
from torch import Tensor

from cop2l.errors import UserError


class Buffer:
    """Columns `x`, `y`, `t` (the task, from 1) and others that a method adds, such as `logits`.

    >>> buffer = Buffer().join(x=torch.zeros(3, 2), y=torch.tensor([0, 1, 1]), t=torch.tensor([1, 1, 1]))
    >>> len(buffer), buffer.rows(torch.tensor([0, 2])).y
    (3, tensor([0, 1]))
    """

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["y"]) if self.columns else 0

    def __getattr__(self, name: str) -> Tensor:
        columns: dict[str, Tensor] = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(name)
        return columns[name]

    def rows(self, index: Tensor) -> "Buffer":
        """The examples at an index tensor or a mask."""
        index = index.to(self.y.device) if self.columns else index
        return Buffer(**{name: column[index] for name, column in self.columns.items()})

    def join(self, **columns: Tensor) -> "Buffer":
        """A buffer of these examples, followed by those of the given columns."""
        if not len(self) or not columns:
            return Buffer(**(columns or self.columns))
        if self.x.shape[1:] != columns["x"].shape[1:]:
            old, new = tuple(self.x.shape[1:]), tuple(columns["x"].shape[1:])
            raise UserError(
                f"The buffer holds inputs of shape {old}, this task's have {new}; make them equal."
            )
        return Buffer(**{name: torch.cat([self.columns[name], columns[name]]) for name in self.columns})

    def of_task(self, t: int) -> "Buffer":
        """The stored examples of task t."""
        return self.rows(self.t == t) if self.columns else self


def uniform(n: int, size: int, generator: torch.Generator) -> Tensor:
    """`size` of n rows (all if n is smaller), drawn uniformly without replacement, in ascending order."""
    return torch.randperm(n, generator=generator)[:size].sort().values


def cycle(n: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` of n rows, drawn without replacement and reshuffled when exhausted; empty if n is 0."""
    rounds = -(-count // n) if n else 0
    orders = [torch.randperm(n, generator=generator) for _ in range(rounds)]
    return torch.cat([torch.empty(0, dtype=torch.long), *orders])[:count]


def shares(buffer: Buffer, new: Buffer, t: int, memory: int, generator: torch.Generator) -> Buffer:
    """The buffer after task t: floor(memory / t) examples of each task, drawn uniformly; `new` holds those of task t."""
    share = memory // t
    sampled = Buffer()
    for task in range(1, t):
        old = buffer.of_task(task)
        sampled = sampled.join(**old.rows(uniform(len(old), share, generator)).columns)
    return sampled.join(**new.rows(uniform(len(new), share, generator)).columns)


def class_balanced(buffer: Buffer, memory: int) -> Buffer:
    """The floor(memory / classes) examples of each class with the smallest `mark`.

    Marks are uniform numbers, drawn once per example. So each class keeps a uniform sample of its examples so far.
    """
    order = buffer.mark.argsort()
    classes = sorted(set(buffer.y.tolist()))
    share = memory // len(classes)
    return buffer.rows(torch.cat([order[buffer.y[order] == c][:share] for c in classes]).sort().values)
