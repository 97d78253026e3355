"""Dark experience replay, DER++ (Buzzega et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, class_balanced
from cop2l.randomness import generator


@dataclass(frozen=True)
class DERPlusPlusOptions(CommonOptions):
    """With beta 0 the method is DER."""

    alpha: float = 0.1
    """Weight of the squared distance to the stored logits."""
    beta: float = 0.5
    """Weight of the cross-entropy on the buffer batch."""

    by_scenario: ClassVar = {"task-incremental": {"epochs": 10}}


class DERPlusPlus(Learner):
    """DER++: CE(x, y) + alpha |z' - h(x')|^2 + beta CE(x', y'), with stored examples (x', y') and their logits z'.

    h gives the logits. Differences from the paper: both terms use one buffer batch; the squared distance is a mean over
    outputs; logits are stored after the task, not when an example is seen first; the reservoir is class-balanced. If
    task-incremental, the distance is over the head of each example's task, because other logits mean nothing.
    """

    Options = DERPlusPlusOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o, buffer = self.options, self.buffer
        new = Buffer(x=x, y=y)
        sgd = self.sgd(o.lr)
        for i, j in self.replay_batches(len(x), o.batch, o.epochs):
            stored = buffer.rows(j)
            both = new.rows(i).join(**stored.columns)
            logits, replayed = self.model(both.x).split([len(i), len(j)])
            loss = self.loss(logits, y[i], t)
            if len(j):
                loss = loss + o.beta * self.loss(replayed, stored.y, stored.t)
                loss = loss + o.alpha * self.distance(replayed, stored.logits, stored.t)
            sgd.step(loss)
        marks = torch.rand(len(x), generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        new = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device), logits=self.logits(x))
        self.buffer = class_balanced(buffer.join(**new.columns), self.memory)

    def distance(self, logits: Tensor, stored: Tensor, tasks: Tensor) -> Tensor:
        """Mean squared difference; if task-incremental, over the outputs of each example's head."""
        squares = (logits - stored).square()
        return squares.mean() if self.masked_classes is None else squares[~self.masked_classes[tasks]].mean()
