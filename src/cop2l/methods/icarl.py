"""iCaRL: incremental classifier and representation learning (Rebuffi et al., 2017)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cop2l.errors import UserError
from cop2l.learner.inputs import features
from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer
from cop2l.methods.representation import Representation


@dataclass(frozen=True)
class ICaRLOptions(CommonOptions):
    """Only the common options."""

    epochs: int = 10


class ICaRL(Learner):
    """iCaRL: binary cross-entropy with the old model's outputs as targets for old classes; predicts the nearest class mean.

    g_y(x) is the sigmoid of output y. Its target is [y = label] for new classes and for those to come, and the old model's
    g_y(x) for old classes, on the examples of the task and the exemplars. The prediction is argmin_y |phi(x) - mu_y|, with
    phi the features scaled to length 1 and mu_y the mean over the exemplars of y, scaled to length 1.

    The loss is a mean over outputs, as in Avalanche (the paper sums). On the model `linear` the features never change, so the
    training changes no prediction.
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
        if repeated := set(old) & set(new):
            raise UserError(
                f"iCaRL has learned the classes {sorted(repeated)} before; give each class to one task."
            )
        if (share := self.memory // len(old + new)) < 1:
            raise UserError(
                f"iCaRL needs one exemplar of each of {len(old + new)} classes; raise the memory."
            )
        pool = Buffer(x=x, y=y).join(**self.buffer.columns)
        targets = F.one_hot(pool.y, self.outputs).to(pool.x.dtype)
        if old:
            targets[:, old] = self.logits(pool.x)[:, old].sigmoid()
        sgd = self.sgd(o.lr)
        for i in self.batches(len(pool), o.batch, o.epochs):
            sgd.step(F.binary_cross_entropy_with_logits(self.model(pool.x[i]), targets[i]))
        self.store_exemplars(x, y, new, share, t)
        self.tensors["means"] = self.class_means()

    def store_exemplars(self, x: Tensor, y: Tensor, new: list[int], share: int, t: int) -> None:
        """Keep the first `share` exemplars of each old class, and herd as many of each new class."""
        buffer = self.buffer.rows(self.buffer.rank < share) if len(self.buffer) else self.buffer
        features = self.unit_features(x)
        for c in new:
            rows = (y == c).nonzero().flatten()
            rows = rows[herd(features[rows], share)]
            rank = torch.arange(len(rows), device=y.device)
            buffer = buffer.join(x=x[rows], y=y[rows], t=torch.full_like(y[rows], t), rank=rank)
        self.buffer = buffer

    def class_means(self) -> Tensor:
        """mu_y of each class; infinity for a class without exemplars."""
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
        """The class with the nearest mean; if task-incremental, among those of the task."""
        if "means" not in self.tensors:
            return super().predict(x, task=task)
        z = self.unit_features(features(x, self.columns))
        distance = torch.cdist(z, self.tensors["means"]).nan_to_num(nan=torch.inf)
        return self.mask_logits(-distance, task).argmax(1).cpu()


def herd(features: Tensor, size: int) -> Tensor:
    """`size` rows in the paper's order: the k-th brings the mean of the first k nearest to the mean mu of all.

    For features of length 1 it is the row with the largest product with k mu - (the sum of the first k - 1).

    >>> herd(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]), 3).tolist()
    [1, 2, 0]
    """
    mean = features.mean(0)
    difference = torch.zeros_like(mean)
    penalty = torch.zeros(len(features), device=features.device)
    rows = []
    for _ in range(min(size, len(features))):
        difference += mean
        best = int((features @ difference + penalty).argmax())
        rows.append(best)
        penalty[best] = -torch.inf
        difference -= features[best]
    return torch.tensor(rows, dtype=torch.long, device=features.device)
