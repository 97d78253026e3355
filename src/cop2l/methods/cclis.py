"""CCLIS (Li, Azizov, Li, Liang, 2024): contrast with prototypes, replay weighted as a sample."""

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
    """The representation learns first, then a linear head on it."""

    epochs: int = 50
    """Passes over the task and the buffer by the contrastive loss."""
    batch: int = 512
    """Examples per step, of the task and the buffer together."""
    lr: float = 1.0
    """Step size of representation and projection: a tenth of the steps to warm up, then a cosine to 0."""
    lr_prototypes: float = 0.01
    """Step size of the prototypes, on the same schedule."""
    momentum: float = 0.9
    """Momentum of all three trainings."""
    weight_decay: float = 1e-4
    """Weight decay of representation, projection and prototypes."""
    temperature: float = 0.5
    """Of the contrastive loss and of the scores."""
    distillation: float = 0.6
    """Weight of the distillation over old prototypes."""
    temperature_old: float = 0.1
    """Of the old model's distribution over old prototypes."""
    temperature_new: float = 0.2
    """Of the current model's."""
    dimensions: int = 128
    """Of the projection z and the prototypes."""
    head_epochs: int = 100
    """Passes of the linear head."""
    head_lr: float = 0.1
    """Step size of the linear head: times 0.2 after 60, 75 and 90 % of its epochs."""

    temperatures: ClassVar = ("temperature", "temperature_old", "temperature_new")
    positive: ClassVar = (*CommonOptions.positive, *temperatures, "dimensions")


class CCLIS(Learner):
    """s_c(x) = w_c . z(x), for unit prototypes w_c and the unit projection z of a representation.

    The representation is the model's features if anything below its head can be trained. If not (a linear
    head on a frozen backbone's features) it is the output of the first trainable layer, which is the first
    layer of the projection: that layer, and with it this method, forgets what the frozen features keep. The model's own
    head is the linear head: trained last, from its initial weights, on task and buffer with every class equally often.
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
        xs, ys, tasks, weights = new.join(**self.buffer.columns).values("x", "y", "t", "weight")
        parts = self.parts = self.projection(x[:1])
        old = sorted({c for head in self.heads[:-1] for c in head})
        before = self.evaluate(parts.scores, xs)[:, old] / o.temperature_old if old else None
        layers = [*parts.model.parameters, *parts.first.parameters(), *parts.second.parameters()]
        decay: Any = {"momentum": o.momentum, "weight_decay": o.weight_decay}
        body = SGD(layers, o.lr, self.losses, **decay)
        prototypes = SGD([parts.prototypes], o.lr_prototypes, **decay)
        steps, total = o.epochs * math.ceil(len(xs) / o.batch), o.epochs + o.head_epochs
        for step, i in enumerate(self.batches(len(xs), o.batch, o.epochs, total=total), 1):
            scores = parts.scores(xs[i])
            loss = contrastive(scores / o.temperature, ys[i], tasks[i] < t, weights[i]).mean()
            if before is not None:
                target = before[i].softmax(1)
                loss = loss + o.distillation * F.cross_entropy(scores[:, old] / o.temperature_new, target)
            body.losses.append(loss.detach())
            gradients = torch.autograd.grad(loss, [*body.parameters, *prototypes.parameters])
            factor = min(10 * step / steps, (1 + math.cos(math.pi * step / steps)) / 2)
            body.lr, prototypes.lr = o.lr * factor, o.lr_prototypes * factor
            body.move(gradients[:-1])
            prototypes.move(gradients[-1:])
            prototypes.values[0].copy_(F.normalize(prototypes.values[0], dim=1))
        self.kept = parts.state_dict()
        self.fit_head(xs, ys, tasks, total)
        self.keep(x, y, t, self.evaluate(parts.scores, x) / o.temperature)

    def fit_head(self, x: Tensor, y: Tensor, tasks: Tensor, total: int) -> None:
        """Train the linear head on the representation as it is now."""
        o, parts = self.options, self.parts
        represented = self.evaluate(parts.represent, x)
        head = parts.model.head
        names = {id(p): name for name, p in self.model.named_parameters()}
        with torch.no_grad():
            for p in head.parameters():
                p.copy_(self.initial[names[id(p)]])
        sgd = SGD(head.parameters(), o.head_lr, self.losses, momentum=o.momentum)
        steps, balanced = o.head_epochs * math.ceil(len(x) / o.batch), 1 / torch.bincount(y)[y].double()
        batches = self.batches(len(x), o.batch, o.head_epochs, weights=balanced, first=o.epochs, total=total)
        for step, i in enumerate(batches, 1):
            sgd.step(self.loss(head(represented[i]), y[i], tasks[i]))
            sgd.lr = o.head_lr * 0.2 ** sum(step >= share * steps for share in (0.6, 0.75, 0.9))

    def keep(self, x: Tensor, y: Tensor, t: int, logits: Tensor) -> None:
        """Equal shares per task and class: old ones cut uniformly, new ones drawn by their scores."""
        draws = generator(self.seed, "buffer", t)
        classes = sorted({c for head in self.heads for c in head})
        score = hardness(logits[:, classes], torch.searchsorted(torch.tensor(classes, device=y.device), y))
        kept = Buffer()
        for task, head in enumerate(self.heads, 1):
            share = self.memory // t // len(head)
            for c in head:
                if task < t:
                    old = self.buffer.of_task(task)
                    old = old.rows(old.y == c) if len(old) else old
                    kept = kept.join(**old.rows(uniform(len(old), share, draws)).columns)
                    continue
                rows = (y == c).nonzero().flatten()
                weight = score[rows] / score[rows].sum()
                size = min(share, len(rows))
                drawn = (
                    torch.multinomial(weight.cpu(), size, generator=draws).to(x.device) if size else rows[:0]
                )
                chosen = rows[drawn]
                kept = kept.join(x=x[chosen], y=y[chosen], t=torch.full_like(chosen, t), weight=weight[drawn])
        self.buffer = kept

    def projection(self, example: Tensor) -> "Projection":
        """The projection as it was kept, or a new one at the first task."""
        model = Representation(self.model, example)
        features = self.evaluate(model.features, example)
        with private_randomness(self.device, self.seed, "projection"):
            parts = Projection(model, features.shape[1], self.options.dimensions, self.outputs).to(features)
        if self.kept:
            parts.load_state_dict(self.kept)
        return parts

    def logits(self, x: Any) -> Tensor:
        """The linear head's outputs on the representation."""
        if not self.tasks_seen:
            return super().logits(x)
        parts = self.projection(self.inputs(x[:1]))
        head: Callable[[Tensor], Tensor] = parts.model.head
        return self.evaluate(lambda block: head(parts.represent(block)), x)


class Projection(nn.Module):
    """z(x), two layers above the features; and one prototype per class of the stream."""

    def __init__(self, model: Representation, width: int, dimensions: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, dimensions)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(classes, dimensions), dim=1))

    def represent(self, x: Tensor) -> Tensor:
        """What the linear head sees: the features, or the first trainable layer's output if these are fixed."""
        features = self.model.features(x)
        return features if self.model.parameters else self.first(features)

    def scores(self, x: Tensor) -> Tensor:
        """s_c(x) for all classes."""
        z = F.normalize(self.second(self.first(self.model.features(x)).relu()), dim=1)
        return z @ F.normalize(self.prototypes, dim=1).T


def contrastive(logits: Tensor, y: Tensor, past: Tensor, weight: Tensor) -> Tensor:
    """Supervised contrastive loss with prototypes as anchors; logits (n, classes) are s_c(x) / temperature.

    For the anchor c, whose positives i are the examples of class c:
    log sum_j exp(logit_cj - b_cj) - mean_i logit_ci, where b_cj = ln(g_j N_j) if j is a negative and both c
    and j are of past tasks, else 0 (g the sampling weight, N the batch count of j's class): then the sum over
    the sampled negatives of a class is unbiased for the sum over all that the class had. The result has one
    loss per anchor that has positives, in the order of the classes.
    """
    present, anchor, count = torch.unique(y, return_inverse=True, return_counts=True)
    columns = logits[:, present]
    own = F.one_hot(anchor, len(present)).bool()
    past_anchor = (own & past[:, None]).any(0)
    sampled = past[:, None] & past_anchor & ~own
    correction = (weight * count[anchor]).log()[:, None] * sampled
    denominator = (columns - correction).logsumexp(0)
    losses: Tensor = denominator - (columns * own).sum(0) / count
    return losses


def hardness(logits: Tensor, y: Tensor) -> Tensor:
    """The score of each example: the mean over classes c != y of exp(logit_c), normalised over examples."""
    share = logits.softmax(0)
    others = logits.shape[1] - 1
    return (share.sum(1) - share.gather(1, y[:, None]).squeeze(1)) / others if others else share[:, 0]
