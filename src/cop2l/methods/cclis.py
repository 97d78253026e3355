"""CCLIS: contrastive continual learning with importance sampling (Li, Azizov, Li, Liang, 2024)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, uniform
from cop2l.methods.representation import Representation
from cop2l.methods.sgd import SGD
from cop2l.randomness import generator, private_randomness


@dataclass(frozen=True)
class CCLISOptions(CommonOptions):
    """Options of the representation, which learns first, and of the linear head on it."""

    epochs: int = 50
    """Passes over the task and the buffer by the contrastive loss."""
    batch: int = 512
    """Examples per step, of the task and the buffer together."""
    lr: float = 1.0
    """Learning rate of representation and projection: a warm-up over a tenth of the steps, then a cosine to 0."""
    lr_prototypes: float = 0.01
    """Learning rate of the prototypes, on the same schedule."""
    momentum: float = 0.9
    """Momentum of all three trainings."""
    weight_decay: float = 1e-4
    """Weight decay of representation, projection and prototypes."""
    temperature: float = 0.5
    """Temperature of the contrastive loss and of the scores."""
    distillation: float = 0.6
    """Weight of the distillation over old prototypes."""
    temperature_old: float = 0.1
    """Temperature of the old model's distribution over old prototypes."""
    temperature_new: float = 0.2
    """Temperature of the current model's distribution over old prototypes."""
    dimensions: int = 128
    """Dimensions of the projection z and of the prototypes."""
    head_epochs: int = 100
    """Passes of the linear head."""
    head_lr: float = 0.1
    """Learning rate of the linear head: times 0.2 after 60, 75 and 90 % of its epochs."""

    temperatures: ClassVar = ("temperature", "temperature_old", "temperature_new")
    positive: ClassVar = (*CommonOptions.positive, *temperatures, "dimensions")


class CCLIS(Learner):
    """CCLIS: contrastive loss with class prototypes, distillation over old prototypes, then a linear head.

    s_c(x) = w_c . z(x), with a unit prototype w_c per class and the unit projection z of the representation. The contrastive
    loss weights stored examples by importance sampling (see `contrastive`). The distillation is the cross-entropy between the
    old and the current softmax of s over old classes.

    The representation is the model's features if anything below its head can be trained. If nothing can (a linear head on
    features of a frozen backbone), it is the output of the first layer of the projection. That layer forgets, unlike frozen
    features. The model's own head is the linear head: it is trained last, from its initial weights, on task and buffer with
    every class equally often.
    """

    Options = CCLISOptions
    restarts = True
    refuses: ClassVar = {
        "domain-incremental": "its loss tells classes of past tasks from new ones, but here the same classes "
        "come back; use replay or der++."
    }

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        new = Buffer(x=x, y=y, t=torch.full_like(y, t), weight=torch.ones_like(y, dtype=x.dtype))
        pool = new.join(**self.buffer.columns)
        projection = self.projection(x[:1])
        old = sorted({c for head in self.heads[:-1] for c in head})
        old_logits = self.evaluate(projection.scores, pool.x)[:, old] / o.temperature_old if old else None
        decay: Any = {"momentum": o.momentum, "weight_decay": o.weight_decay}
        body = SGD(projection.body, o.lr, self.losses, **decay)
        prototypes = SGD([projection.prototypes], o.lr_prototypes, **decay)
        steps, total = o.epochs * math.ceil(len(pool) / o.batch), o.epochs + o.head_epochs
        for step, i in enumerate(self.batches(len(pool), o.batch, o.epochs, total=total), 1):
            scores = projection.scores(pool.x[i])
            loss = contrastive(scores / o.temperature, pool.y[i], pool.t[i] < t, pool.weight[i]).mean()
            if old_logits is not None:
                target = old_logits[i].softmax(1)
                loss = loss + o.distillation * F.cross_entropy(scores[:, old] / o.temperature_new, target)
            self.losses.append(loss.detach())
            gradients = torch.autograd.grad(loss, [*body.parameters, *prototypes.parameters])
            factor = min(10 * step / steps, (1 + math.cos(math.pi * step / steps)) / 2)
            body.lr, prototypes.lr = o.lr * factor, o.lr_prototypes * factor
            body.move(gradients[:-1])
            prototypes.move(gradients[-1:])
            prototypes.values[0].copy_(F.normalize(prototypes.values[0], dim=1))
        self.tensors = projection.state_dict()
        self.fit_head(projection, pool, total)
        self.fill_buffer(x, y, t, self.evaluate(projection.scores, x) / o.temperature)

    def fit_head(self, projection: "Projection", pool: Buffer, total: int) -> None:
        """Train the linear head on the representation."""
        o, head = self.options, projection.model.head
        z = self.evaluate(projection.represent, pool.x)
        names = {id(p): name for name, p in self.model.named_parameters()}
        with torch.no_grad():
            for p in head.parameters():
                p.copy_(self.initial[names[id(p)]])
        sgd = SGD(head.parameters(), o.head_lr, self.losses, momentum=o.momentum)
        steps, balanced = o.head_epochs * math.ceil(len(z) / o.batch), 1 / pool.y.bincount()[pool.y].double()
        batches = self.batches(len(z), o.batch, o.head_epochs, weights=balanced, first=o.epochs, total=total)
        for step, i in enumerate(batches, 1):
            sgd.step(self.loss(head(z[i]), pool.y[i], pool.t[i]))
            sgd.lr = o.head_lr * 0.2 ** sum(step >= share * steps for share in (0.6, 0.75, 0.9))

    def fill_buffer(self, x: Tensor, y: Tensor, t: int, logits: Tensor) -> None:
        """Equal shares per task and class: of old tasks drawn uniformly, of the new task in proportion to `hardness`."""
        draws = generator(self.seed, "buffer", t)
        classes = sorted({c for head in self.heads for c in head})
        score = hardness(logits[:, classes], torch.searchsorted(torch.tensor(classes, device=y.device), y))
        buffer = Buffer()
        for task, head in enumerate(self.heads, 1):
            share = self.memory // t // len(head)
            for c in head:
                if task < t:
                    old = self.buffer.of_task(task)
                    old = old.rows(old.y == c) if len(old) else old
                    buffer = buffer.join(**old.rows(uniform(len(old), share, draws)).columns)
                    continue
                rows = (y == c).nonzero().flatten()
                weight = score[rows] / score[rows].sum()
                size = min(share, len(rows))
                drawn = (
                    torch.multinomial(weight.cpu(), size, generator=draws).to(x.device) if size else rows[:0]
                )
                chosen = rows[drawn]
                tasks = torch.full_like(chosen, t)
                buffer = buffer.join(x=x[chosen], y=y[chosen], t=tasks, weight=weight[drawn])
        self.buffer = buffer

    def projection(self, example: Tensor) -> "Projection":
        """The projection of the last task, or a new one at the first task."""
        model = Representation(self.model, example)
        features = self.evaluate(model.features, example)
        with private_randomness(self.device, self.seed, "projection"):
            projection = Projection(model, features.shape[1], self.options.dimensions, self.outputs).to(
                features
            )
        if self.tensors:
            projection.load_state_dict(self.tensors)
        return projection

    def logits(self, x: Any) -> Tensor:
        """The linear head's outputs on the representation."""
        if not self.tasks_seen:
            return super().logits(x)
        projection = self.projection(self.inputs(x[:1]))
        head: Callable[[Tensor], Tensor] = projection.model.head
        return self.evaluate(lambda block: head(projection.represent(block)), x)


class Projection(nn.Module):
    """The projection z(x), two layers above the features, and one prototype per class of the stream."""

    def __init__(self, model: Representation, width: int, dimensions: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, dimensions)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(classes, dimensions), dim=1))

    @property
    def body(self) -> list[nn.Parameter]:
        """What is trained beside the prototypes."""
        return [*self.model.parameters, *self.first.parameters(), *self.second.parameters()]

    def represent(self, x: Tensor) -> Tensor:
        """The inputs of the linear head: the features, or the first layer's output if the features are frozen."""
        features = self.model.features(x)
        return features if self.model.parameters else self.first(features)

    def scores(self, x: Tensor) -> Tensor:
        """s_c(x) for all classes."""
        z = F.normalize(self.second(self.first(self.model.features(x)).relu()), dim=1)
        return z @ F.normalize(self.prototypes, dim=1).T


def contrastive(logits: Tensor, y: Tensor, past: Tensor, weight: Tensor) -> Tensor:
    """Supervised contrastive loss with prototypes as anchors; logits (n, classes) are s_c(x) / temperature.

    The loss of the anchor c, whose positives i are the examples of class c in the batch, is

      ln sum_j exp(logit_cj - b_cj) - mean_i logit_ci.

    b_cj = ln(g_j N_j) if j is a negative and both c and j are of past tasks, else 0; g_j is the sampling weight of j, and
    N_j the batch count of its class. So the sum over the stored negatives of a class is unbiased for the sum over all
    examples that the class had. Returned: one loss per class in the batch, in the order of the classes.
    """
    present, anchor, count = torch.unique(y, return_inverse=True, return_counts=True)
    columns = logits[:, present]
    positive = F.one_hot(anchor, len(present)).bool()
    past_anchor = (positive & past[:, None]).any(0)
    sampled = past[:, None] & past_anchor & ~positive
    correction = (weight * count[anchor]).log()[:, None] * sampled
    denominator = (columns - correction).logsumexp(0)
    losses: Tensor = denominator - (columns * positive).sum(0) / count
    return losses


def hardness(logits: Tensor, y: Tensor) -> Tensor:
    """The score of each example: the mean over classes c != y of exp(logit_c), normalised over examples."""
    share = logits.softmax(0)
    other_classes = logits.shape[1] - 1
    if not other_classes:
        return share[:, 0]
    return (share.sum(1) - share.gather(1, y[:, None]).squeeze(1)) / other_classes
