"""Joint training: all tasks so far at once, from the initial weights; the upper reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class JointOptions(CommonOptions):
    """Only the common options."""

    epochs: int = 20
    """Passes over the examples of all tasks so far."""


class Joint(Learner):
    """Keeps every example, whatever the memory: what could be reached if nothing had to be forgotten."""

    Options = JointOptions
    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn tasks 1..t."""
        self.buffer = self.buffer.join(x=x, y=y, t=torch.full_like(y, t))
        self.fit_buffer()
