"""GDumb: greedy sampler and dumb learner (Prabhu, Torr, Dokania, 2020)."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner
from cop2l.randomness import generator


class GDumb(Learner):
    """GDumb: cross-entropy on a class-balanced buffer alone, from the initial weights.

    The model is trained by SGD at a fixed learning rate; the paper has a cosine schedule and CutMix.
    """

    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        draws = generator(self.seed, "buffer", t)
        order = torch.randperm(len(y), generator=draws).to(self.device)
        pool = self.buffer.join(x=x[order], y=y[order], t=torch.full_like(y, t))
        rows = greedy_balance(pool.y.tolist(), len(self.buffer), self.memory, draws)
        buffer = self.buffer = pool.rows(rows)
        self.model.load_state_dict(self.initial)
        sgd = self.sgd(o.lr)
        for i in self.batches(len(buffer), o.batch, o.epochs):
            sgd.step(self.loss(self.model(buffer.x[i]), buffer.y[i], buffer.t[i]))


def greedy_balance(labels: list[int], stored: int, memory: int, draws: torch.Generator) -> Tensor:
    """The rows in memory after all examples have passed; the first `stored` rows are in memory at the start.

    An example enters if its class has fewer than memory / (classes so far). If the memory is full, it replaces a
    random example of the largest class.

    >>> greedy_balance([0, 0, 0, 0, 1, 2], 0, 3, torch.Generator().manual_seed(0)).tolist()[-2:]
    [4, 5]
    """
    rows: dict[int, list[int]] = {}
    for row, label in enumerate(labels[:stored]):
        rows.setdefault(label, []).append(row)
    size = stored
    for row, label in enumerate(labels[stored:], stored):
        same_class = rows.setdefault(label, [])
        if len(same_class) >= memory / len(rows):
            continue
        if size == memory:
            largest = max(rows.values(), key=len)
            largest.pop(int(torch.randint(len(largest), (1,), generator=draws)))
            size -= 1
        same_class.append(row)
        size += 1
    return torch.tensor(sorted(row for group in rows.values() for row in group), dtype=torch.long)
