"""GDumb (Prabhu, Torr, Dokania, 2020): fill a class-balanced buffer greedily; train on it alone."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner
from cop2l.randomness import generator


class GDumb(Learner):
    """The task is only a source of examples: the model learns from the buffer, from its initial weights."""

    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        draws = generator(self.seed, "buffer", t)
        order = torch.randperm(len(y), generator=draws).to(self.device)
        everything = self.buffer.join(x=x[order], y=y[order], t=torch.full_like(y, t))
        self.buffer = everything.rows(
            greedy_balance(everything.y.tolist(), len(self.buffer), self.memory, draws)
        )
        self.fit_buffer()


def greedy_balance(labels: list[int], kept: int, memory: int, draws: torch.Generator) -> Tensor:
    """The rows in memory after all have passed, the first `kept` of them being there already.

    An example enters if its class has less than memory / (classes so far); if the memory is full, a random
    example of the largest class leaves for it.

    >>> greedy_balance([0, 0, 0, 0, 1, 2], 0, 3, torch.Generator().manual_seed(0)).tolist()[-2:]
    [4, 5]
    """
    rows: dict[int, list[int]] = {}
    for row, label in enumerate(labels[:kept]):
        rows.setdefault(label, []).append(row)
    size = kept
    for row, label in enumerate(labels[kept:], kept):
        mine = rows.setdefault(label, [])
        if len(mine) >= memory / len(rows):
            continue
        if size == memory:
            largest = max(rows.values(), key=len)
            largest.pop(int(torch.randint(len(largest), (1,), generator=draws)))
            size -= 1
        mine.append(row)
        size += 1
    return torch.tensor(sorted(row for group in rows.values() for row in group), dtype=torch.long)
