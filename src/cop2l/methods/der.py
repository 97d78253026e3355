"""DER++ (Buzzega et al., 2020): replay that also holds the logits of kept examples where they were."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, class_balanced
from cop2l.randomness import generator


@dataclass(frozen=True)
class DEROptions(CommonOptions):
    """alpha alone is DER, both are DER++."""

    alpha: float = 0.1
    """Weight of the squared distance to the stored logits."""
    beta: float = 0.5
    """Weight of the cross-entropy on the buffer batch."""

    by_scenario: ClassVar = {"task-incremental": {"epochs": 10}}


class DER(Learner):
    """CE(new) + alpha MSE(logits, stored logits) + beta CE(buffer), the last two on one buffer batch.

    Logits are stored after the task, in a class-balanced reservoir. If task-incremental, the distance is over
    the head of each example's own task: the logits of other heads mean nothing there.
    """

    Options = DEROptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o, new = self.options, len(x)
        if len(self.buffer):
            old_y, old_t, stored = self.buffer.values("y", "t", "logits")
            xs = torch.cat([x, self.buffer.x])
        else:
            xs = x
        sgd = self.sgd(o.lr)
        for i in self.batches(new, o.batch, o.epochs, replay=len(self.buffer)):
            logits = self.model(xs[i])
            if xs is x:
                sgd.step(self.loss(logits, y[i], t))
                continue
            here, old = i.chunk(2)
            old = old - new
            now, replayed = logits.chunk(2)
            loss = self.loss(now, y[here], t) + o.beta * self.loss(replayed, old_y[old], old_t[old])
            sgd.step(loss + o.alpha * self.distance(replayed, stored[old], old_t[old]))
        marks = torch.rand(new, generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        task = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device), logits=self.logits(x))
        self.buffer = class_balanced(self.buffer.joined(**task.columns), self.memory)

    def distance(self, logits: Tensor, stored: Tensor, tasks: Tensor) -> Tensor:
        """Mean squared difference over the outputs that count."""
        squares = (logits - stored).square()
        if self.masks is None:
            return squares.mean()
        inside = self.masks[tasks - 1] == 0
        return squares[inside].mean()
