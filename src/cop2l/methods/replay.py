"""Experience replay (Chaudhry et al., 2019)."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner
from cop2l.methods.buffer import Buffer, shares
from cop2l.methods.finetuning import FinetuningOptions
from cop2l.randomness import generator


class Replay(Learner):
    """Experience replay: one mean cross-entropy over a batch of the task and as many stored examples.

    The buffer stores floor(m/t) examples of each of t tasks, drawn uniformly (the paper compares several ways to fill it).
    """

    Options = FinetuningOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        new = Buffer(x=x, y=y, t=torch.full_like(y, t))
        pool = new.join(**self.buffer.columns)
        sgd = self.sgd(o.lr)
        for i, j in self.replay_batches(len(x), o.batch, o.epochs):
            both = pool.rows(torch.cat([i, len(x) + j]))
            sgd.step(self.loss(self.model(both.x), both.y, both.t))
        self.buffer = shares(self.buffer, new, t, self.memory, generator(self.seed, "buffer", t))
