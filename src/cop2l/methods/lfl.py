"""Less-forgetting learning, LFL (Jung et al., 2016)."""

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
    """No examples are stored."""

    epochs: int = 3
    strength: float = 1e-4
    """Weight of the mean squared distance between old and new features (lambda_e)."""


class LFL(Learner):
    """LFL: CE + lambda_e MSE(f(x), f_old(x)), f the features; the last layer is trained at the first task only.

    The old and the new network draw the same dropout masks, so that equal weights have distance 0. The paper has half of the
    summed squares in place of their mean.
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
        old_model = Representation(copy.deepcopy(self.model), x[:1])
        sgd = SGD(model.parameters, o.lr, self.losses) if t > 1 else self.sgd(o.lr)
        devices = [self.device] if self.device.type == "cuda" else []
        for i in self.batches(len(x), o.batch, o.epochs):
            with torch.random.fork_rng(devices), torch.no_grad():  # the new model then draws the same masks
                old_features = old_model.features(x[i]) if t > 1 else None
            features, logits = model.features_and_logits(x[i])
            loss = self.loss(logits, y[i], t)
            if old_features is not None:
                loss = loss + o.strength * F.mse_loss(features, old_features)
            sgd.step(loss)
