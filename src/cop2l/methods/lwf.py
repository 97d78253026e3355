"""LwF (Li, Hoiem, 2016): on the new inputs, the old heads keep the outputs that the old model gives."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class LwFOptions(CommonOptions):
    """No examples are kept."""

    epochs: int = 10
    batch: int = 200
    lr: float = 0.001
    alpha: float = 1.0
    """Weight of the distillation."""
    temperature: float = 2.0
    """By which logits are divided before both softmaxes of the distillation."""

    positive: ClassVar = (*CommonOptions.positive, "temperature")


class LwF(Learner):
    """CE(new) + alpha sum over old heads of KL(old model, model), both at a temperature.

    Task-incremental streams have one old head per past task, class-incremental ones one over all past
    classes, domain-incremental ones the only head.
    """

    Options = LwFOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        heads, before = self.old_heads(), self.logits(x)
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            logits = self.model(x[i])
            loss = self.loss(logits, y[i], t)
            for head in heads:
                loss = loss + o.alpha * distillation(logits[:, head], before[i][:, head], o.temperature)
            sgd.step(loss)

    def old_heads(self) -> list[list[int]]:
        """The heads to be preserved."""
        past = self.heads[:-1]
        if self.scenario == "task-incremental":
            return [list(head) for head in past]
        return [sorted({c for head in past for c in head})] if past else []


def distillation(logits: Tensor, before: Tensor, temperature: float) -> Tensor:
    """Mean KL divergence from the old distribution to the new one, over one head at a temperature."""
    old = torch.log_softmax(before / temperature, 1)
    new = torch.log_softmax(logits / temperature, 1)
    return (old.exp() * (old - new)).sum(1).mean()
