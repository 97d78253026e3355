"""EWC (Kirkpatrick et al., 2017): parameters that mattered for past tasks are held by springs."""

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
    """No examples are kept."""

    epochs: int = 10
    batch: int = 256
    lr: float = 0.001
    strength: float = 1.0
    """Weight of the penalty (lambda)."""
    fisher_examples: int = 2000
    """Examples of a task, drawn uniformly, over which squared gradients are averaged."""

    positive: ClassVar = (*CommonOptions.positive, "fisher_examples")


class EWC(Learner):
    """CE + strength / 2 sum over past tasks s of F_s (theta - theta_s)^2, F_s the diagonal empirical Fisher.

    The sum over s is one quadratic: F (theta - centre)^2 plus a constant, with F the sum of the F_s and
    centre the mean of the theta_s weighted by them. So two tensors per parameter are kept, whatever T. At the published
    strength of 1 and steps of 0.001 the springs do next to nothing: the result is finetuning's. Springs stiffer than
    2 / lr make the weights diverge, which is said in a sentence.
    """

    Options = EWCOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        stiffness = [o.strength * self.kept[f"fisher.{name}"] for name in names if t > 1]
        centre = [self.kept[f"centre.{name}"] for name in names if t > 1]
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            gradients = sgd.gradients(self.loss(self.model(x[i]), y[i], t))
            if t > 1:
                pull = torch._foreach_mul(torch._foreach_sub(sgd.values, centre), stiffness)
                gradients = torch._foreach_add(gradients, pull)
            sgd.move(gradients)
        rows = uniform(len(x), o.fisher_examples, generator(self.seed, "fisher", t)).to(x.device)
        new = self.squared_gradients(x[rows], y[rows], t)
        for name, theta in zip(names, sgd.values, strict=True):
            old = self.kept.get(f"fisher.{name}", torch.zeros_like(theta))
            before = self.kept.get(f"centre.{name}", theta)
            total = old + new[name]
            self.kept[f"fisher.{name}"] = total
            self.kept[f"centre.{name}"] = before + (theta - before) * (new[name] / total).nan_to_num()

    def squared_gradients(self, x: Tensor, y: Tensor, t: int) -> dict[str, Tensor]:
        """The mean over examples of the squared gradient of the loss on one example, in eval mode."""
        trained = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

        def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.loss(functional_call(self.model, parameters, (x[None],)), y[None], t)

        with self.modes():
            self.model.eval()
            total = {name: torch.zeros_like(p) for name, p in trained.items()}
            for i in range(0, len(x), 32):
                block = vmap(grad(one), (None, 0, 0))(trained, x[i : i + 32], y[i : i + 32])
                for name, value in block.items():
                    total[name] += value.square().sum(0)
        return {name: value / len(x) for name, value in total.items()}
