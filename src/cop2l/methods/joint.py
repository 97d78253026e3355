"""Joint training: all tasks so far at once, from the initial weights; the upper reference."""

import torch
from torch import Tensor

from cop2l.methods.base import Learner


class Joint(Learner):
    """Keeps every example, whatever the memory: what could be reached if nothing had to be forgotten."""

    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn tasks 1..t."""
        self.buffer = self.buffer.join(x=x, y=y, t=torch.full_like(y, t))
        self.fit_buffer()
