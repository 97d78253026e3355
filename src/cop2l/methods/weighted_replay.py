"""Weighted replay: the stored examples stand for all examples of past tasks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from cop2l.kernel.exact import Examples
from cop2l.kernel.training import Optimiser
from cop2l.learner.graphs import Graphs
from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, class_balanced
from cop2l.randomness import generator


@dataclass(frozen=True)
class WeightedReplayOptions(CommonOptions):
    """Unless they are given, passes and batch follow from the number of the task's examples (`schedule`)."""

    epochs: int = 0
    """Passes over the examples of the task and the stored ones; 0: from the number of the task's examples."""
    batch: int = 0
    """Examples per step; 0: from the number of the task's examples."""
    lr: float = 0.001
    """Learning rate of Adam."""

    positive: ClassVar = ("lr",)


class WeightedReplay(Learner):
    """Weighted replay: Adam on the mean of w CE over the task's and all stored examples; w is how many one stands for.

    A stored example has w = n / b if its task had n examples of its class and b of them are stored; an example of the task itself
    has w = 1. The buffer stores floor(m / c) examples of each of c classes, drawn uniformly from all tasks.
    """

    Options = WeightedReplayOptions
    graphs: Graphs | None = None

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        marks = torch.rand(len(x), generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        new = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device))
        pool = self.buffer.join(**new.columns)
        pair = (pool.t - 1) * self.outputs + pool.y  # a task and a class
        learned = torch.cat([self.tensors.get("learned", y[:0]), torch.bincount(y, minlength=self.outputs)])
        self.tensors["learned"] = learned  # examples of each pair
        weight = (learned.double() / torch.bincount(pair, minlength=len(learned)))[pair]
        trained = Examples(
            pool.x, pool.y, pool.t.cpu().numpy(), np.arange(len(pool)), pool.mark.cpu().numpy()
        )
        epochs, batch = schedule(len(x))
        epochs, batch = o.epochs or epochs, o.batch or batch
        adam, self.graphs = Optimiser(self.model, "adam", o.lr), self.graphs or Graphs(self.model)
        for epoch in range(epochs):
            seed_words = (self.seed, "weighted replay", t, epoch)
            self.graphs.train(adam, trained, weight, 1, batch, seed_words, self.masked_classes)
            if self.progress:
                self.progress({"task": t, "epoch": epoch + 1, "epochs": epochs})
        self.buffer = class_balanced(pool, self.memory)


def schedule(rows: int) -> tuple[int, int]:
    """The passes for a task of this many examples, and the examples per step.

    60 000 / rows passes, at least 20 and at most 200; above 500 000 rows 10 000 000 / rows. Steps of rows / 1000 examples, at
    least 64 and at most 256. benchmarks/replay_passes.py has every rule that was tried.

    >>> schedule(150), schedule(1000), schedule(100_000), schedule(1_000_000)
    ((200, 64), (60, 64), (20, 100), (10, 256))
    """
    passes = min(max(60_000 // rows, 20), 200, max(10_000_000 // rows, 1))
    return passes, min(max(rows // 1000, 64), 256)
