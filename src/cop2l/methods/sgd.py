"""Stochastic gradient descent, quicker than torch.optim.SGD for small models."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cop2l.errors import UserError


class SGD:
    """p <- p - lr v with v <- momentum v + gradient + weight_decay p, where v is 0 at first."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        losses: list[Tensor] | None = None,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise UserError(
                "The model has no trainable parameters; set requires_grad on those to be learned."
            )
        self.values = [p.detach() for p in self.parameters]  # the same memory, outside autograd
        self.lr = lr
        self.losses = losses if losses is not None else []
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.velocity: tuple[Tensor, ...] | None = None

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of a loss."""
        self.move(self.gradients(loss))

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """The gradient of a loss, which is added to `losses`; the caller may change it before `move`."""
        self.losses.append(loss.detach())
        return torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)

    def move(self, gradients: tuple[Tensor, ...]) -> None:
        """One step against the given gradients."""
        if self.weight_decay:
            gradients = torch._foreach_add(gradients, self.values, alpha=self.weight_decay)
        if self.momentum:
            if self.velocity is None:
                self.velocity = tuple(g.clone() for g in gradients)
            else:
                torch._foreach_mul_(self.velocity, self.momentum)
                torch._foreach_add_(self.velocity, gradients)
            gradients = self.velocity
        torch._foreach_add_(self.values, gradients, alpha=-self.lr)
