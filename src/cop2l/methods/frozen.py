"""The base class of methods on frozen features, and class statistics that do not depend on the order of examples."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cop2l.errors import UserError
from cop2l.methods.base import BLOCK, Learner
from cop2l.methods.representation import Representation


class FrozenFeatures(Learner):
    """A method that stores statistics of frozen features in double precision, and no examples; it defines `add_task`.

    The statistics are sums: they depend neither on the order of the tasks nor on the blocks, up to rounding.
    """

    in_blocks = True

    @abstractmethod
    def add_task(self, x: Any, y: Tensor) -> None:
        """Add the next task to the statistics, and solve."""

    def fit(self, x: Any, y: Tensor, t: int) -> None:
        """Learn task t."""
        if self.representation(x).parameters:
            raise UserError(
                f"{type(self).__name__} learns on frozen features, but this model trains its own; use the model "
                "'linear' on cached features, or freeze what is below the head with requires_grad_(False)."
            )
        self.add_task(x, y)
        if self.progress:
            self.progress({"task": t, "epoch": 1, "epochs": 1})

    def representation(self, x: Any) -> Representation:
        """The model's features and head."""
        return Representation(self.model, self.inputs(x[:1]))

    def features(self, x: Any) -> Tensor:
        """Features in double precision, with the model in eval mode."""
        return self.evaluate(self.representation(x).features, x).double()

    def blocks(self, x: Any, y: Tensor, mask: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels, block by block; with a mask, those of its rows."""
        for i in range(0, len(y), BLOCK):
            inputs, labels = self.inputs(x[i : i + BLOCK]), y[i : i + BLOCK]
            if mask is not None:
                rows = mask[i : i + BLOCK]
                inputs, labels = inputs[rows], labels[rows]
            if len(labels):
                yield self.features(inputs), labels

    def has_examples(self) -> Tensor:
        """Of each class, whether it had an example so far."""
        return self.tensors["count"] > 0

    def linear_head(self, x: Any) -> nn.Linear:
        """The model's head, for a linear solution."""
        head = self.representation(x).head
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise UserError(
                f"{type(self).__name__} writes its solution into the model's head; make it an nn.Linear with a bias."
            )
        return head

    def write_head(self, head: nn.Linear, weight: Tensor, bias: Tensor) -> None:
        """Put a linear solution into the head; a class without an example is never predicted."""
        has_examples = self.has_examples()
        with torch.no_grad():
            head.weight.copy_(weight * has_examples[:, None])
            head.bias.copy_(bias.masked_fill(~has_examples, -torch.inf))

    def updated_statistics(self, x: Any, y: Tensor, *, scatter: bool = False) -> dict[str, Tensor]:
        """The stored statistics with a task added: count and mean of each class and, on request, the scatter."""
        statistics = {name: value.clone() for name, value in self.tensors.items()}
        for z, labels in self.blocks(x, y):
            statistics = statistics or empty_statistics(self.outputs, z, scatter=scatter)
            add_examples(statistics, z, labels)
        return statistics


def empty_statistics(classes: int, z: Tensor, *, scatter: bool) -> dict[str, Tensor]:
    """Statistics of no examples; z has their width, dtype and device."""
    width = z.shape[1]
    statistics = {"count": z.new_zeros(classes), "mean": z.new_zeros(classes, width)}
    return statistics | ({"scatter": z.new_zeros(width, width)} if scatter else {})


def add_examples(statistics: dict[str, Tensor], z: Tensor, y: Tensor) -> None:
    """Add examples to the counts and means of their classes and, if stored, to the scatter about these means.

    Two parts of a class, of n and m examples with means a and b, have the scatter of the first plus that of the second plus
    nm/(n+m) (a-b)(a-b)^T (Chan, Golub and LeVeque, 1983). So no large numbers are subtracted.

    >>> z = torch.tensor([[1.0], [5.0], [3.0]], dtype=torch.float64)
    >>> statistics = empty_statistics(2, z, scatter=True)
    >>> add_examples(statistics, z[:2], torch.tensor([0, 1]))
    >>> add_examples(statistics, z[2:], torch.tensor([0]))
    >>> [statistics[name].tolist() for name in ("count", "mean", "scatter")]
    [[2.0, 1.0], [[2.0], [5.0]], [[2.0]]]
    """
    classes, column = torch.unique(y, return_inverse=True)
    members = F.one_hot(column, len(classes)).double()
    count = members.sum(0)
    means = members.T @ z / count[:, None]
    old_count, step = statistics["count"][classes], means - statistics["mean"][classes]
    share = (count / (old_count + count))[:, None]
    if "scatter" in statistics:
        residual = z - means[column]
        statistics["scatter"] += residual.T @ residual + (step * old_count[:, None] * share).T @ step
    statistics["mean"][classes] += step * share
    statistics["count"][classes] += count
