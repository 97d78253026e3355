"""Elastic weight consolidation, EWC (Kirkpatrick et al., 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import uniform
from cop2l.randomness import generator


@dataclass(frozen=True)
class EWCOptions(CommonOptions):
    """No examples are stored."""

    epochs: int = 10
    batch: int = 256
    lr: float = 0.001
    strength: float = 1.0
    """Weight of the penalty (lambda)."""
    fisher_examples: int = 2000
    """Examples of a task, drawn uniformly, over which squared gradients are averaged."""

    positive: ClassVar = (*CommonOptions.positive, "fisher_examples")


class EWC(Learner):
    """EWC: CE + lambda / 2 sum_s F_s (theta - theta_s)^2 over past tasks s, with diagonal Fisher informations F_s.

    F_s is the mean over examples of the squared gradient of CE at theta_s. The sum over s equals F (theta - centre)^2 plus
    a constant, where F = sum_s F_s, and centre is the mean of the theta_s weighted by the F_s: so two tensors per parameter
    are stored for any number of tasks. At the published lambda 1 and lr 0.001 the penalty changes almost nothing. Training
    diverges if lambda F is above 2 / lr.
    """

    Options = EWCOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        stiffness = [o.strength * self.tensors[f"fisher.{name}"] for name in names if t > 1]
        centre = [self.tensors[f"centre.{name}"] for name in names if t > 1]
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            gradients = sgd.gradients(self.loss(self.model(x[i]), y[i], t))
            if t > 1:
                penalty = torch._foreach_mul(torch._foreach_sub(sgd.values, centre), stiffness)
                gradients = torch._foreach_add(gradients, penalty)
            sgd.move(gradients)
        rows = uniform(len(x), o.fisher_examples, generator(self.seed, "fisher", t)).to(x.device)
        new = self.squared_gradients(x[rows], y[rows], t)
        for name, theta in zip(names, sgd.values, strict=True):
            fisher = self.tensors.get(f"fisher.{name}", torch.zeros_like(theta)) + new[name]
            old_centre = self.tensors.get(f"centre.{name}", theta)
            self.tensors[f"fisher.{name}"] = fisher
            self.tensors[f"centre.{name}"] = (
                old_centre + (theta - old_centre) * (new[name] / fisher).nan_to_num()
            )

    def squared_gradients(self, x: Tensor, y: Tensor, t: int) -> dict[str, Tensor]:
        """The mean over examples of the squared gradient of the loss on one example, in eval mode."""
        theta = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

        def example_loss(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.loss(functional_call(self.model, theta, (x[None],)), y[None], t)

        with self.train_mode(False):
            total = {name: torch.zeros_like(p) for name, p in theta.items()}
            for i in range(0, len(x), 32):
                gradients = vmap(grad(example_loss), (None, 0, 0))(theta, x[i : i + 32], y[i : i + 32])
                for name, value in gradients.items():
                    total[name] += value.square().sum(0)
        return {name: value / len(x) for name, value in total.items()}
