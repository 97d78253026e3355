"""CSReL (Tong, Liu, Shi, Gong, 2025): keep the examples whose loss a small model could still reduce most."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cop2l.methods.base import CommonOptions, Learner
from cop2l.methods.buffer import Buffer, cycle, uniform
from cop2l.methods.sgd import SGD
from cop2l.randomness import generator


@dataclass(frozen=True)
class CSReLOptions(CommonOptions):
    """Training by replay, then selection."""

    epochs: int = 100
    """Passes over each task."""
    batch: int = 256
    """Examples of the task per step, and of the buffer."""
    lr: float = 0.001
    """Step size of SGD."""
    alpha: float = 20.0
    """Weight of the cross-entropy on the buffer batch."""
    reference_epochs: int = 150
    """Passes of the reference model over its task."""
    reference_lr: float = 0.003
    """Step size of the reference model."""
    candidates: int = 1000
    """Examples of a task, drawn uniformly, among which it selects."""
    selections: int = 200
    """Rounds of a selection; each adds an equal part of the share."""
    selection_steps: int = 100
    """Steps of training on the selected examples in each round, from the initial weights."""
    selection_lr: float = 0.01
    """Step size of these."""


class CSReL(Learner):
    """CE(new) + alpha CE(buffer); each task keeps a coreset of floor(m/t) examples, chosen by reducible loss.

    The reducible loss of x is L(model trained on the coreset so far, x) - L(reference model trained on the
    whole task, x). Old coresets are cut to their new share by the same selection among themselves, with their
    stored reference losses.
    """

    Options = CSReLOptions
    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        every = Buffer(x=x, y=y, t=torch.full_like(y, t)).joined(**self.buffer.columns)
        xs, ys, tasks = every.values("x", "y", "t")
        total = o.epochs + o.reference_epochs
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs, replay=len(self.buffer), total=total):
            logits = self.model(xs[i])
            here = len(i) // 2 if len(self.buffer) else len(i)
            loss = self.loss(logits[:here], ys[i[:here]], t)
            if here < len(i):
                loss = loss + o.alpha * self.loss(logits[here:], ys[i[here:]], tasks[i[here:]])
            sgd.step(loss)
        new = self.referenced(x, y, t, total)
        kept = Buffer()
        for task in range(1, t + 1):
            mine = new if task == t else self.buffer.of_task(task)
            kept = kept.joined(**mine.rows(self.coreset(mine, self.memory // t, task)).columns)
        self.buffer = kept

    def referenced(self, x: Tensor, y: Tensor, t: int, total: int) -> Buffer:
        """The candidates of task t with their losses under a reference model trained on the task alone."""
        o, model = self.options, self.fresh()
        sgd = SGD(model.parameters(), o.reference_lr, self.losses)
        for i in self.batches(len(x), o.batch, o.reference_epochs, first=o.epochs, total=total):
            sgd.step(self.loss(model(x[i]), y[i], t))
        rows = uniform(len(x), o.candidates, generator(self.seed, "candidates", t)).to(x.device)
        x, y, t_column = x[rows], y[rows], torch.full_like(rows, t)
        return Buffer(x=x, y=y, t=t_column, reference=self.example_losses(model, x, y, t))

    def coreset(self, candidates: Buffer, share: int, task: int) -> Tensor:
        """The rows of a share, added in rounds by their reducible loss, the largest first."""
        o, t = self.options, self.tasks_seen + 1
        if len(candidates) <= share or not share:
            return torch.arange(min(share, len(candidates)))
        x, y, reference = candidates.values("x", "y", "reference")
        draws = generator(self.seed, "coreset", t, task)
        model, part = self.fresh(), -(-share // o.selections)
        chosen = torch.empty(0, dtype=torch.long, device=x.device)
        while len(chosen) < share:
            model.load_state_dict(self.initial)
            if len(chosen):
                size = min(o.batch, len(chosen))
                sgd = SGD(model.parameters(), o.selection_lr)
                for i in cycle(len(chosen), size * o.selection_steps, draws).to(x.device).view(-1, size):
                    rows = chosen[i]
                    sgd.step(self.loss(model(x[rows]), y[rows], task))
            reducible = self.example_losses(model, x, y, task) - reference
            reducible[chosen] = -torch.inf
            best = reducible.argsort(descending=True, stable=True)
            chosen = torch.cat([chosen, best[: min(part, share - len(chosen))]])
        return chosen.sort().values

    def fresh(self) -> nn.Module:
        """A copy of the model with the initial weights."""
        model = deepcopy(self.model)
        model.load_state_dict(self.initial)
        return model.train()

    def example_losses(self, model: nn.Module, x: Tensor, y: Tensor, t: int) -> Tensor:
        """The cross-entropy of each example in eval mode."""
        model.eval()
        losses = F.cross_entropy(self.own_head(self.evaluated(model, x), t), y, reduction="none")
        model.train()
        return losses
