"""Finetuning: train on each task and keep nothing; the lower reference."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import index_columns


@dataclass(frozen=True)
class FinetuningOptions(CommonOptions):
    """Only the common options."""

    by_scenario: ClassVar = {"task-incremental": {"epochs": 10}}


class Finetuning(Learner):
    """Cross-entropy on the task's own examples."""

    Options = FinetuningOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            inputs, labels = index_columns(i, x, y)
            sgd.step(self.loss(self.model(inputs), labels, t))
