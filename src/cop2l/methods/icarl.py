"""iCaRL (Rebuffi et al., 2017): distilled sigmoid outputs, herded exemplars, nearest-mean prediction."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cop2l.certify.inputs import features
from cop2l.errors import UserError
from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer
from cop2l.methods.representation import Representation


@dataclass(frozen=True)
class ICaRLOptions(CommonOptions):
    """Only the common options."""

    epochs: int = 10


class ICaRL(Learner):
    """Sigmoid outputs learn the new classes and keep the old ones where the old model has them.

    The loss is the mean over all outputs, as Avalanche has it (the paper sums): those of classes to come learn to be 0.
    Prediction is the class whose exemplars have the nearest mean feature; features have length 1. Where only the head
    learns (the model `linear`), features never change: then it is herded nearest-mean, and no training matters.
    """

    Options = ICaRLOptions
    refuses: ClassVar = {
        "domain-incremental": "it keeps one exemplar set per class and herds it when the class is new, but "
        "here the same classes come back; use replay or der++."
    }

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        old, new = sorted({c for head in self.heads[:-1] for c in head}), sorted(self.heads[-1])
        if back := set(old) & set(new):
            raise UserError(
                f"iCaRL has learned the classes {sorted(back)} before; give each class to one task."
            )
        if (share := self.memory // len(old + new)) < 1:
            raise UserError(
                f"iCaRL needs one exemplar of each of {len(old + new)} classes; raise the memory."
            )
        xs, ys = Buffer(x=x, y=y).join(**self.buffer.columns).values("x", "y")
        targets = F.one_hot(ys, self.outputs).to(xs.dtype)
        if old:
            targets[:, old] = self.logits(xs)[:, old].sigmoid()
        sgd = self.sgd(o.lr)
        for i in self.batches(len(xs), o.batch, o.epochs):
            sgd.step(F.binary_cross_entropy_with_logits(self.model(xs[i]), targets[i]))
        self.keep(x, y, new, share, t)
        self.kept["means"] = self.class_means()

    def keep(self, x: Tensor, y: Tensor, new: list[int], share: int, t: int) -> None:
        """Cut the old exemplar sets to their first `share`, and herd those of the new classes."""
        kept = self.buffer.rows(self.buffer.rank < share) if len(self.buffer) else self.buffer
        features = self.unit_features(x)
        for c in new:
            rows = (y == c).nonzero().flatten()
            rows = rows[herd(features[rows], share)]
            rank = torch.arange(len(rows), device=y.device)
            kept = kept.join(x=x[rows], y=y[rows], t=torch.full_like(y[rows], t), rank=rank)
        self.buffer = kept

    def class_means(self) -> Tensor:
        """The mean feature of each class's exemplars, at length 1; a class without any is at infinity."""
        features = self.unit_features(self.buffer.x)
        means = features.new_full((self.outputs, features.shape[1]), torch.inf)
        for c in set(self.buffer.y.tolist()):
            means[c] = F.normalize(features[self.buffer.y == c].mean(0), dim=0)
        return means

    def unit_features(self, x: Any) -> Tensor:
        """Features at length 1, in eval mode."""
        model = Representation(self.model, self.inputs(x[:1]))
        return F.normalize(self.evaluate(model.features, x), dim=1)

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class with the nearest mean, among those of the task if task-incremental."""
        if "means" not in self.kept:
            return super().predict(x, task=task)
        distance = torch.cdist(self.unit_features(features(x, self.columns)), self.kept["means"]).nan_to_num(
            nan=torch.inf
        )
        return self.mask_logits(-distance, task).argmax(1).cpu()


def herd(features: Tensor, size: int) -> Tensor:
    """Rows in the order in which each brings the mean of those chosen nearest to the mean of all.

    Features have length 1, so the nearest is the largest product with what the chosen sum lacks.

    >>> herd(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]), 3).tolist()
    [1, 2, 0]
    """
    mean = features.mean(0)
    lacking = torch.zeros_like(mean)
    penalty = torch.zeros(len(features), device=features.device)
    rows = []
    for _ in range(min(size, len(features))):
        lacking += mean
        best = int((features @ lacking + penalty).argmax())
        rows.append(best)
        penalty[best] = -torch.inf
        lacking -= features[best]
    return torch.tensor(rows, dtype=torch.long, device=features.device)
