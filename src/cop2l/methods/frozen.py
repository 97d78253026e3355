"""What the methods on frozen features share: features in blocks, and statistics that do not depend on the order."""

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
    """Keeps statistics of the features in double precision, and no examples; nothing is trained by gradients.

    Sums do not depend on the order of the tasks nor on how they are split into blocks, up to rounding. A method defines `absorb`.
    """

    in_blocks = True

    @abstractmethod
    def absorb(self, x: Any, y: Tensor, t: int) -> None:
        """Add task t to the statistics, and solve."""

    def fit(self, x: Any, y: Tensor, t: int) -> None:
        """Learn task t."""
        if self.parts(x).parameters:
            raise UserError(
                f"{type(self).__name__} learns on frozen features, but this model trains its own; use the model "
                "'linear' on cached features, or freeze what is below the head with requires_grad_(False)."
            )
        self.absorb(x, y, t)
        if self.progress:
            self.progress({"task": t, "epoch": 1, "epochs": 1})

    def parts(self, x: Any) -> Representation:
        """The model's features and head."""
        return Representation(self.model, self.inputs(x[:1]))

    def features(self, x: Any) -> Tensor:
        """Features in double precision, with the model in eval mode."""
        return self.evaluate(self.parts(x).features, x).double()

    def blocks(self, x: Any, y: Tensor, part: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels, a block of rows at a time; with a mask, of its rows."""
        for i in range(0, len(y), BLOCK):
            inputs, labels = self.inputs(x[i : i + BLOCK]), y[i : i + BLOCK]
            if part is not None:
                rows = part[i : i + BLOCK]
                inputs, labels = inputs[rows], labels[rows]
            if len(labels):
                yield self.features(inputs), labels

    def classes_seen(self) -> Tensor:
        """Which classes had an example so far."""
        return self.kept["count"] > 0

    def linear_head(self, x: Any) -> nn.Linear:
        """The model's head, which a linear solution is written into."""
        head = self.parts(x).head
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise UserError(
                f"{type(self).__name__} writes its solution into the model's head; make it an nn.Linear with a bias."
            )
        return head

    def write(self, head: nn.Linear, weight: Tensor, bias: Tensor) -> None:
        """Put a linear solution into the head; a class without an example is never predicted."""
        has_examples = self.classes_seen()
        with torch.no_grad():
            head.weight.copy_(weight * has_examples[:, None])
            head.bias.copy_(bias.masked_fill(~has_examples, -torch.inf))

    def moments(self, x: Any, y: Tensor, *, scatter: bool = False) -> dict[str, Tensor]:
        """What is kept, with a task added: the count and mean of each class, and the scatter where asked for."""
        statistics = {name: value.clone() for name, value in self.kept.items()}
        for z, labels in self.blocks(x, y):
            statistics = statistics or empty_statistics(self.outputs, z, scatter=scatter)
            join(statistics, z, labels)
        return statistics


def empty_statistics(classes: int, z: Tensor, *, scatter: bool) -> dict[str, Tensor]:
    """Statistics of no examples with features like z."""
    width = z.shape[1]
    statistics = {"count": z.new_zeros(classes), "mean": z.new_zeros(classes, width)}
    return statistics | ({"scatter": z.new_zeros(width, width)} if scatter else {})


def join(statistics: dict[str, Tensor], z: Tensor, y: Tensor) -> None:
    """Add examples to the counts and means of their classes and, where kept, to the scatter about these means.

    Scatters of two parts of a class, n and m examples with means a and b, add up with nm/(n+m) (a-b)(a-b)^T more (Chan,
    Golub and LeVeque, 1983): no large numbers are subtracted.

    >>> z = torch.tensor([[1.0], [5.0], [3.0]], dtype=torch.float64)
    >>> kept = empty_statistics(2, z, scatter=True)
    >>> join(kept, z[:2], torch.tensor([0, 1]))
    >>> join(kept, z[2:], torch.tensor([0]))
    >>> kept["count"].tolist(), kept["mean"].tolist(), kept["scatter"].tolist()
    ([2.0, 1.0], [[2.0], [5.0]], [[2.0]])
    """
    classes, own = torch.unique(y, return_inverse=True)
    members = F.one_hot(own, len(classes)).double()
    new = members.sum(0)
    means = members.T @ z / new[:, None]
    old, step = statistics["count"][classes], means - statistics["mean"][classes]
    share = (new / (old + new))[:, None]
    if "scatter" in statistics:
        away = z - means[own]
        statistics["scatter"] += away.T @ away + (step * old[:, None] * share).T @ step
    statistics["mean"][classes] += step * share
    statistics["count"][classes] += new
