"""LFL (Jung et al., 2016): features stay near the old model's, under a last layer that no longer moves."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cop2l.errors import UserError
from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.representation import Representation
from cop2l.methods.sgd import SGD

WHY_NOT = (
    "it freezes the last layer after the first task, so the outputs of later classes would never be learned."
)


@dataclass(frozen=True)
class LFLOptions(CommonOptions):
    """No examples are kept."""

    epochs: int = 3
    strength: float = 1e-4
    """Weight of the mean squared distance between old and new features (lambda)."""


class LFL(Learner):
    """CE + strength MSE(features, old model's features); the last layer is trained at the first task only.

    The paper compares one network at two sets of weights on the same input, so both see the same dropout: equal weights
    are at distance 0.
    """

    Options = LFLOptions
    refuses: ClassVar = {"class-incremental": WHY_NOT, "task-incremental": WHY_NOT}

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        model = Representation(self.model, x[:1])
        if not model.parameters:
            raise UserError(
                "LFL has nothing to learn below the last layer; give it a model with a hidden layer."
            )
        old = Representation(copy.deepcopy(self.model), x[:1])
        sgd = SGD(model.parameters, o.lr, self.losses) if t > 1 else self.sgd(o.lr)
        devices = [self.device] if self.device.type == "cuda" else []
        for i in self.batches(len(x), o.batch, o.epochs):
            with torch.random.fork_rng(devices), torch.no_grad():  # afterwards the same masks are drawn again
                before = old.features(x[i]) if t > 1 else None
            features, logits = model.features_and_logits(x[i])
            loss = self.loss(logits, y[i], t)
            sgd.step(loss if before is None else loss + o.strength * F.mse_loss(features, before))
