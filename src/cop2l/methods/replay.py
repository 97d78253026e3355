"""Experience replay: every step learns from the task and from as many kept examples of past tasks."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner
from cop2l.methods.buffer import Buffer, index_columns, shares
from cop2l.methods.finetuning import FinetuningOptions
from cop2l.randomness import generator


class Replay(Learner):
    """One mean cross-entropy over a new and a buffer batch; floor(m/t) examples of each task are kept."""

    Options = FinetuningOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        new = Buffer(x=x, y=y, t=torch.full_like(y, t))
        xs, ys, tasks = new.join(**self.buffer.columns).values("x", "y", "t")
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs, replay=len(self.buffer)):
            inputs, labels, own = index_columns(i, xs, ys, tasks)
            sgd.step(self.loss(self.model(inputs), labels, own))
        self.buffer = shares(self.buffer, new, t, self.memory, generator(self.seed, "buffer", t))
