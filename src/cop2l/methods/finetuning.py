"""Finetuning: train on each task alone; the lower reference."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class FinetuningOptions(CommonOptions):
    """Only the common options."""

    by_scenario: ClassVar = {"task-incremental": {"epochs": 10}}


class Finetuning(Learner):
    """Cross-entropy on the examples of the task; no examples are stored."""

    Options = FinetuningOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            sgd.step(self.loss(self.model(x[i]), y[i], t))
