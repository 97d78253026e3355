"""Learning without forgetting, LwF (Li, Hoiem, 2016)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class LwFOptions(CommonOptions):
    """No examples are stored."""

    epochs: int = 10
    batch: int = 200
    lr: float = 0.001
    alpha: float = 1.0
    """Weight of the distillation (lambda_o)."""
    temperature: float = 2.0
    """Logits are divided by it (T) before both softmaxes of the distillation."""

    positive: ClassVar = (*CommonOptions.positive, "temperature")


class LwF(Learner):
    """LwF: CE + lambda_o sum over old heads of KL(old model's outputs, the model's outputs), both at temperature T.

    Both models see the examples of the task. A task-incremental stream has one old head per past task, a class-incremental
    one a single head of all past classes, a domain-incremental one the only head. The paper has the cross-entropy in place of
    KL, which has the same gradient, and trains the new head alone first.
    """

    Options = LwFOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        old_heads, old_logits = self.old_heads(), self.logits(x)
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            logits = self.model(x[i])
            loss = self.loss(logits, y[i], t)
            for head in old_heads:
                loss = loss + o.alpha * distillation(logits[:, head], old_logits[i][:, head], o.temperature)
            sgd.step(loss)

    def old_heads(self) -> list[list[int]]:
        """The heads whose outputs are distilled."""
        past = self.heads[:-1]
        if self.scenario == "task-incremental":
            return [list(head) for head in past]
        return [sorted({c for head in past for c in head})] if past else []


def distillation(logits: Tensor, old_logits: Tensor, temperature: float) -> Tensor:
    """Mean KL divergence from the old distribution to the new one, over one head at a temperature."""
    old = torch.log_softmax(old_logits / temperature, 1)
    new = torch.log_softmax(logits / temperature, 1)
    return (old.exp() * (old - new)).sum(1).mean()
