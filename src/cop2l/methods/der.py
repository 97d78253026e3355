"""DER++ (Buzzega et al., 2020): replay that also holds the logits of kept examples where they were."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, class_balanced, index_columns
from cop2l.randomness import generator


@dataclass(frozen=True)
class DERPlusPlusOptions(CommonOptions):
    """beta 0 is DER."""

    alpha: float = 0.1
    """Weight of the squared distance to the stored logits."""
    beta: float = 0.5
    """Weight of the cross-entropy on the buffer batch."""

    by_scenario: ClassVar = {"task-incremental": {"epochs": 10}}


class DERPlusPlus(Learner):
    """CE(new) + alpha MSE(logits, stored logits) + beta CE(buffer), the last two on one buffer batch.

    Logits are stored after the task, in a class-balanced reservoir (the paper stores them as examples pass by). If
    task-incremental, the distance is over the head of each example's own task: the logits of other heads mean nothing.
    """

    Options = DERPlusPlusOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o, old = self.options, self.buffer
        xs = Buffer(x=x, y=y).join(**old.columns).x
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs, replay=len(old)):
            logits = self.model(xs[i])
            here = len(i) // 2 if len(old) else len(i)
            loss = self.loss(logits[:here], y[i[:here]], t)
            if len(old):
                labels, tasks, stored = index_columns(i[here:] - len(x), old.y, old.t, old.logits)
                replayed = logits[here:]
                loss = loss + o.beta * self.loss(replayed, labels, tasks)
                loss = loss + o.alpha * self.distance(replayed, stored, tasks)
            sgd.step(loss)
        marks = torch.rand(len(x), generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        task = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device), logits=self.logits(x))
        self.buffer = class_balanced(self.buffer.join(**task.columns), self.memory)

    def distance(self, logits: Tensor, stored: Tensor, tasks: Tensor) -> Tensor:
        """Mean squared difference over the outputs that count."""
        squares = (logits - stored).square()
        return squares.mean() if self.masked_classes is None else squares[~self.masked_classes[tasks]].mean()
