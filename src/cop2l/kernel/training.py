"""Training on a set of examples: mini-batches of one size, and the optimisers.

The bits are a function of the examples in their order, of their weights and of the seed words: every mini-batch has the same
number of rows, and all randomness is drawn from the seed words.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.kernel.exact import Examples, model_input
from cop2l.randomness import generator, private_randomness

SeedWords = tuple[int, str, int, int]
"""What the randomness of an update is drawn from: the seed, the purpose, the task and the iteration."""


class Optimiser:
    """Plain SGD or Adam (0.9, 0.999, 1e-8), from an empty state."""

    def __init__(self, model: nn.Module, kind: str, lr: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.kind, self.lr = kind, lr
        self.first, self.second = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.betas = torch.tensor([0.9, 0.999], dtype=torch.float64, device=next(model.parameters()).device)
        self.powers = torch.ones_like(self.betas)
        """0.9^t and 0.999^t after t steps, on the device: a recorded step must not need a number from the host."""
        self._values = [p.detach() for p in self.parameters]  # these share memory with the parameters

    @property
    def state(self) -> list[Tensor]:
        """What steps change beside the parameters."""
        return [*self.first, *self.second, self.powers]

    def descend(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down these gradients, each operation on all parameters at once."""
        if self.kind == "sgd":
            torch._foreach_add_(self._values, gradients, alpha=-self.lr)
        elif self.parameters:
            self.powers.mul_(self.betas)
            first_scale, second_scale = (1 - self.powers).to(self._values[0].dtype).unbind()
            torch._foreach_lerp_(self.first, gradients, 0.1)
            torch._foreach_mul_(self.second, 0.999)
            torch._foreach_addcmul_(self.second, gradients, gradients, 0.001)
            root = torch._foreach_sqrt(self.second)
            torch._foreach_div_(root, second_scale.sqrt())
            torch._foreach_add_(root, 1e-8)
            direction = torch._foreach_div(self.first, root)
            torch._foreach_mul_(direction, -self.lr / first_scale)
            torch._foreach_add_(self._values, direction)


def mini_batches(n: int, size: int, epochs: int, seed_words: SeedWords) -> Iterator[Tensor]:
    """For each epoch the positions of its mini-batches, one of `size` positions per row.

    The last mini-batch is filled up with its own rows, so that batch normalisation sees rows of the training set only. A single
    mini-batch is not shuffled.
    """
    seed, purpose, *numbers = seed_words
    order, last = generator(seed, f"{purpose} order", *numbers), (n - 1) // size * size
    filled = last + torch.arange(size) % (n - last)
    for _ in range(epochs):
        rows = torch.randperm(n, generator=order) if n > size else torch.arange(n)
        yield torch.cat([rows[:last], rows[filled]]).view(-1, size)


def shares(n: int, size: int, parameter: Tensor) -> Tensor:
    """The share of each of these positions in the mean of its mini-batch; what fills up the last one has none."""
    last = (n - 1) // size * size
    share = torch.full((last + size,), 1 / size, dtype=parameter.dtype)
    share[last:n], share[n:] = 1 / (n - last), 0
    return share.view(-1, size).to(parameter.device)


def step(model: nn.Module, optimiser: Optimiser, x: Tensor, y: Tensor, factor: Tensor, hidden: Tensor | None) -> None:
    """One step down the sum of factor * cross-entropy; `hidden` is the mask of logits that are minus infinity."""
    logits = model(x)
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    losses = F.cross_entropy(logits, y, reduction="none")
    loss = torch.dot(losses, factor.to(losses.dtype))
    optimiser.descend(torch.autograd.grad(loss, optimiser.parameters, allow_unused=True, materialize_grads=True))


def hidden_classes(trained: Examples, masked_classes: Tensor | None) -> Tensor | None:
    """The mask of the logits outside each example's head, if task-incremental (see `head_masks`)."""
    return None if masked_classes is None else masked_classes[torch.from_numpy(trained.task).to(masked_classes.device)]


def train(
    model: nn.Module, optimiser: Optimiser, trained: Examples, weight: Tensor, epochs: int, batch: int, seed_words: SeedWords,
    masked_classes: Tensor | None = None,
) -> None:  # fmt: skip
    """Some epochs in training mode; each step goes down the mean of weight * cross-entropy over its mini-batch."""
    parameter, x, n = next(model.parameters()), model_input(model, trained.x), len(trained)
    weight, hidden = weight.to(parameter.device, parameter.dtype), hidden_classes(trained, masked_classes)
    share_table = shares(n, batch, parameter)
    model.train()
    with private_randomness(parameter.device, *seed_words):
        for table in mini_batches(n, batch, epochs, seed_words):
            for rows, share in zip(table.to(parameter.device), share_table, strict=True):
                columns = x.index_select(0, rows), trained.y[rows], weight[rows] * share
                step(model, optimiser, *columns, None if hidden is None else hidden[rows])
    model.eval()
