"""La-MAML: look-ahead meta-learning (Gupta, Yadav, Paull, 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer
from cop2l.randomness import generator

Weights = dict[str, Tensor]
Batch = tuple[Tensor, Tensor, int | Tensor]
"""Inputs, labels, and the task of all or of each."""


@dataclass(frozen=True)
class LaMAMLOptions(CommonOptions):
    """The learning rates themselves are learned."""

    epochs: int = 10
    batch: int = 10
    """Examples of the task per step, and of the buffer."""
    lr: float = 0.1
    """The learning rate of every parameter at first (alpha_0)."""
    lr_alpha: float = 0.25
    """Learning rate of the learning rates (eta)."""
    inner: int = 5
    """Inner updates per step, each on its part of the batch."""
    clip: float = 1.0
    """Largest entry of an inner gradient, and largest norm of the two outer ones."""

    positive: ClassVar = (*CommonOptions.positive, "inner")


class LaMAML(Learner):
    """La-MAML: second-order meta-learning of the parameters and of a learning rate for each of them.

    Inner updates on parts b_k of the new batch: theta_{k+1} = theta_k - max(0, alpha) grad l(theta_k; b_k), theta_0 = theta.
    Meta-loss L: the mean over k of l(theta_{k+1}; new batch and buffer batch). Then alpha <- alpha - eta grad_alpha L and
    theta <- theta - max(0, alpha) grad_theta L.

    Frozen parameters stay fixed. The buffer is a reservoir: a uniform sample of all examples so far. It is filled as examples
    pass for the first time, so that a step also replays earlier examples of its own task.
    """

    Options = LaMAMLOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        marks = torch.rand(len(x), generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        new = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device))
        pool = new.join(**self.buffer.columns)
        theta: Weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        alpha = {
            name: self.tensors.get(name, torch.full_like(p, o.lr)).requires_grad_()
            for name, p in theta.items()
        }
        reservoir = len(x) + torch.arange(len(self.buffer), device=self.device)  # rows of the pool
        draws, unseen = generator(self.seed, "replay", t), len(x)
        for i in self.batches(len(x), o.batch, o.epochs):
            replayed = torch.randperm(len(reservoir), generator=draws)[: len(i)].to(self.device)
            j = torch.cat([i, reservoir[replayed]])
            loss = self.meta_loss(theta, alpha, (x[i], y[i], t), (pool.x[j], pool.y[j], pool.t[j]))
            self.losses.append(loss.detach())
            gradients = torch.autograd.grad(loss, [*theta.values(), *alpha.values()], materialize_grads=True)
            with torch.no_grad():
                for_theta = clip_gradients(gradients[: len(theta)], o.clip)
                for_alpha = clip_gradients(gradients[len(theta) :], o.clip)
                for p, a, g, h in zip(theta.values(), alpha.values(), for_theta, for_alpha, strict=True):
                    a.sub_(o.lr_alpha * h)
                    p.sub_(F.relu(a) * g)
            if unseen > 0:
                unseen -= len(i)
                reservoir = torch.cat([reservoir, i])
                reservoir = reservoir[pool.mark[reservoir].argsort()[: self.memory]]
        self.tensors = {name: a.detach() for name, a in alpha.items()}
        self.buffer = pool.rows(reservoir.sort().values)

    def meta_loss(self, theta: Weights, alpha: Weights, task: Batch, both: Batch) -> Tensor:
        """L: the mean over inner updates on `task` of the loss on `both` after each."""
        x, y, t = task
        fast, losses = theta, []
        rates = {name: F.relu(a) for name, a in alpha.items()}
        for x_k, y_k in zip(x.chunk(self.options.inner), y.chunk(self.options.inner), strict=True):
            loss = self.loss(functional_call(self.model, fast, (x_k,)), y_k, t)
            gradients = torch.autograd.grad(
                loss, list(fast.values()), create_graph=True, materialize_grads=True
            )
            fast = {
                name: p - rates[name] * g.clamp(-self.options.clip, self.options.clip)
                for (name, p), g in zip(fast.items(), gradients, strict=True)
            }
            losses.append(self.loss(functional_call(self.model, fast, (both[0],)), *both[1:]))
        return torch.stack(losses).mean()


def clip_gradients(gradients: tuple[Tensor, ...], norm: float) -> tuple[Tensor, ...]:
    """The gradients, scaled down to a norm if theirs is larger."""
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return torch._foreach_mul(gradients, (norm / (length + 1e-6)).clamp(max=1))
