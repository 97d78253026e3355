"""SI (Zenke, Poole, Ganguli, 2017): what a parameter did for the loss decides how firmly it is held."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class SIOptions(CommonOptions):
    """No examples are kept."""

    epochs: int = 10
    batch: int = 256
    lr: float = 0.001
    strength: float = 10.0
    """Weight of the penalty (c, or lambda)."""
    damping: float = 0.1
    """Added to the squared distance travelled (xi), so that a parameter that stood still has no weight."""

    positive: ClassVar = (*CommonOptions.positive, "damping")


class SI(Learner):
    """CE + strength sum of Omega (theta - theta_old)^2.

    During a task, omega sums -(gradient of CE) x (change) over the steps: the fall of the loss that each
    parameter brought. After it, Omega gains omega / (total change^2 + damping). A negative Omega would reward
    moving away: such a parameter is not held. At the published strength of 10 and steps of 0.001 the result is
    finetuning's. Springs stiffer than 2 / lr make the weights diverge, which is said in a sentence.
    """

    Options = SIOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        sgd = self.sgd(o.lr)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        zeros = [torch.zeros_like(value) for value in sgd.values]
        importance = [self.kept.get(name, zero) for name, zero in zip(names, zeros, strict=True)]
        stiffness = [(2 * o.strength * omega).clamp(min=0) for omega in importance]
        start = [value.clone() for value in sgd.values]
        path = tuple(zeros)
        for i in self.batches(len(x), o.batch, o.epochs):
            gradients = sgd.gradients(self.loss(self.model(x[i]), y[i], t))
            pull = torch._foreach_mul(torch._foreach_sub(sgd.values, start), stiffness)
            total = torch._foreach_add(gradients, pull)
            path = torch._foreach_add(path, torch._foreach_mul(gradients, total), alpha=o.lr)
            sgd.move(total)
        for name, old, along, now, then in zip(names, importance, path, sgd.values, start, strict=True):
            self.kept[name] = old + along / ((now - then).square() + o.damping)
