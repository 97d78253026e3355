"""Synaptic intelligence, SI (Zenke, Poole, Ganguli, 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cop2l.methods.base import CommonOptions, Learner


@dataclass(frozen=True)
class SIOptions(CommonOptions):
    """No examples are stored."""

    epochs: int = 10
    batch: int = 256
    lr: float = 0.001
    strength: float = 10.0
    """Weight of the penalty (c)."""
    damping: float = 0.1
    """Added to the squared change of a parameter (xi), so that a parameter that did not change has no weight."""

    positive: ClassVar = (*CommonOptions.positive, "damping")


class SI(Learner):
    """SI: CE + c sum_k Omega_k (theta_k - theta_k')^2, where theta' are the parameters after the last task.

    During a task, omega_k adds up -(gradient of CE)_k x (change of theta_k) over the steps: the part of the fall of CE that
    parameter k brought. After the task, Omega_k grows by omega_k / (Delta_k^2 + xi), with Delta_k the change over the whole
    task. A negative Omega_k counts as 0, because it would reward moving away. At the published c 10 and lr 0.001 the penalty
    changes almost nothing. Training diverges if 2 c Omega is above 2 / lr.
    """

    Options = SIOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        sgd = self.sgd(o.lr)
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        zeros = [torch.zeros_like(value) for value in sgd.values]
        importance = [self.tensors.get(name, zero) for name, zero in zip(names, zeros, strict=True)]
        stiffness = [(2 * o.strength * Omega).clamp(min=0) for Omega in importance]
        start = [value.clone() for value in sgd.values]
        omega = tuple(zeros)
        for i in self.batches(len(x), o.batch, o.epochs):
            gradients = sgd.gradients(self.loss(self.model(x[i]), y[i], t))
            penalty = torch._foreach_mul(torch._foreach_sub(sgd.values, start), stiffness)
            total = torch._foreach_add(gradients, penalty)
            omega = torch._foreach_add(omega, torch._foreach_mul(gradients, total), alpha=o.lr)
            sgd.move(total)
        for k, name in enumerate(names):
            delta = sgd.values[k] - start[k]
            self.tensors[name] = importance[k] + omega[k] / (delta.square() + o.damping)
