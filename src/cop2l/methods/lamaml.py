"""La-MAML (Gupta, Yadav, Paull, 2020): a learned rate per parameter, so that steps spare past tasks."""

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
    """There is no step size beside the learned rates."""

    epochs: int = 10
    batch: int = 10
    """Examples of the task per step, and of the buffer."""
    lr: float = 0.1
    """The rate that every parameter starts with (alpha at the first step)."""
    lr_alpha: float = 0.25
    """Step size of the rates themselves."""
    inner: int = 5
    """Inner updates per step, each on its part of the batch."""
    clip: float = 1.0
    """Largest entry of an inner gradient, and largest norm of the two outer ones."""

    positive: ClassVar = (*CommonOptions.positive, "inner")


class LaMAML(Learner):
    """theta' follows the new batch part by part at the rates alpha; the loss of all theta' on new and old
    examples, through those second-order steps, moves first alpha and then theta at the rates max(0, alpha).

    Frozen parameters take no part. The buffer is a reservoir, a uniform sample of all examples so far, and is filled as
    they pass by for the first time: a step replays what passed before it, of this task too.
    """

    Options = LaMAMLOptions

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        marks = torch.rand(len(x), generator=generator(self.seed, "buffer", t), dtype=torch.float64)
        new = Buffer(x=x, y=y, t=torch.full_like(y, t), mark=marks.to(self.device))
        every = new.join(**self.buffer.columns)
        xs, ys, tasks = every.values("x", "y", "t")
        theta: Weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        alpha = {
            name: self.kept.get(name, torch.full_like(p, o.lr)).requires_grad_() for name, p in theta.items()
        }
        held = len(x) + torch.arange(len(self.buffer), device=self.device)
        draws, passing = generator(self.seed, "replay", t), len(x)
        for here in self.batches(len(x), o.batch, o.epochs):
            old = torch.randperm(len(held), generator=draws)[: len(here)].to(self.device)
            i = torch.cat([here, held[old]])
            loss = self.meta_loss(theta, alpha, (xs[here], ys[here], t), (xs[i], ys[i], tasks[i]))
            self.losses.append(loss.detach())
            gradients = torch.autograd.grad(loss, [*theta.values(), *alpha.values()], materialize_grads=True)
            with torch.no_grad():
                for_theta = clip_gradients(gradients[: len(theta)], o.clip)
                for_alpha = clip_gradients(gradients[len(theta) :], o.clip)
                for p, a, g, h in zip(theta.values(), alpha.values(), for_theta, for_alpha, strict=True):
                    a.sub_(o.lr_alpha * h)
                    p.sub_(F.relu(a) * g)
            if passing > 0:
                passing -= len(here)
                held = torch.cat([held, here])
                held = held[every.mark[held].argsort()[: self.memory]]
        self.kept = {name: a.detach() for name, a in alpha.items()}
        self.buffer = every.rows(held.sort().values)

    def meta_loss(self, theta: Weights, alpha: Weights, task: Batch, both: Batch) -> Tensor:
        """The mean over inner updates of the loss on `both` that follows each."""
        x, y, t = task
        fast, losses = theta, []
        rates = {name: F.relu(a) for name, a in alpha.items()}
        for some_x, some_y in zip(x.chunk(self.options.inner), y.chunk(self.options.inner), strict=True):
            inner = self.loss(functional_call(self.model, fast, (some_x,)), some_y, t)
            gradients = torch.autograd.grad(
                inner, list(fast.values()), create_graph=True, materialize_grads=True
            )
            fast = {
                name: p - rates[name] * g.clamp(-self.options.clip, self.options.clip)
                for (name, p), g in zip(fast.items(), gradients, strict=True)
            }
            losses.append(self.loss(functional_call(self.model, fast, (both[0],)), *both[1:]))
        return torch.stack(losses).mean()


def clip_gradients(gradients: tuple[Tensor, ...], norm: float) -> tuple[Tensor, ...]:
    """The gradients, scaled down to a norm if they are longer."""
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return torch._foreach_mul(gradients, (norm / (length + 1e-6)).clamp(max=1))
