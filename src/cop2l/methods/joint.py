"""Joint training on all tasks so far; the upper reference."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner


class Joint(Learner):
    """Cross-entropy on the examples of all tasks so far, from the initial weights; stores every example, whatever the memory."""

    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn tasks 1..t."""
        o = self.options
        buffer = self.buffer = self.buffer.join(x=x, y=y, t=torch.full_like(y, t))
        self.model.load_state_dict(self.initial)
        sgd = self.sgd(o.lr)
        for i in self.batches(len(buffer), o.batch, o.epochs):
            sgd.step(self.loss(self.model(buffer.x[i]), buffer.y[i], buffer.t[i]))
