"""CSReL (Tong, Liu, Shi, Gong, 2025): keep the examples whose loss a small model could still reduce most."""

import itertools
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from cop2l.methods.base import BLOCK, CommonOptions, Learner
from cop2l.methods.buffer import Buffer, cycle, uniform
from cop2l.methods.sgd import SGD
from cop2l.randomness import generator


@dataclass(frozen=True)
class CSReLOptions(CommonOptions):
    """Training by replay, then selection."""

    epochs: int = 100
    batch: int = 256
    """Examples of the task per step, and of the buffer."""
    lr: float = 0.001
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

    positive: ClassVar = (*CommonOptions.positive, "selections")


class CSReL(Learner):
    """CE(new) + alpha CE(buffer); each task keeps a coreset of floor(m/t) examples, chosen by reducible loss.

    The reducible loss of x is L(model trained on the coreset so far, x) - L(reference model trained on the
    whole task, x). Old coresets are split to their new share by the same selection among themselves, with their
    stored reference losses.
    """

    Options = CSReLOptions
    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o = self.options
        every = Buffer(x=x, y=y, t=torch.full_like(y, t)).join(**self.buffer.columns)
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
        candidates = [self.buffer.of_task(task) for task in range(1, t)]
        candidates.append(self.reference_losses(x, y, t, total))
        kept = Buffer()
        for mine, rows in zip(candidates, self.coresets(candidates, self.memory // t), strict=True):
            kept = kept.join(**mine.rows(rows).columns)
        self.buffer = kept

    def reference_losses(self, x: Tensor, y: Tensor, t: int, total: int) -> Buffer:
        """The candidates of task t with their losses under a reference model trained on the task alone."""
        o, model = self.options, self.fresh_model()
        sgd = SGD(model.parameters(), o.reference_lr, self.losses)
        for i in self.batches(len(x), o.batch, o.reference_epochs, first=o.epochs, total=total):
            sgd.step(self.loss(model(x[i]), y[i], t))
        rows = uniform(len(x), o.candidates, generator(self.seed, "candidates", t)).to(x.device)
        x, y, t_column = x[rows], y[rows], torch.full_like(rows, t)
        return Buffer(x=x, y=y, t=t_column, reference=self.example_losses(model, x, y, t))

    def coresets(self, candidates: list[Buffer], share: int) -> list[Tensor]:
        """Of each task the rows of its share; where a task has more candidates than that, they are selected.

        All tasks at once on CUDA, where a step of many small models takes as long as a step of one; one after the other
        on a processor, which multiplies a stack of matrices more slowly than each of them.
        """
        rows = [torch.arange(min(share, len(some))) for some in candidates]
        contested = [k for k, some in enumerate(candidates) if len(some) > share > 0]
        found = self.select_all([candidates[k] for k in contested], share)
        for k, mine in zip(contested, found, strict=True):
            rows[k] = mine
        return rows

    def select_all(self, candidates: list[Buffer], share: int) -> list[Tensor]:
        """`selected` for each task, together if that is quicker and can be done."""
        if self.device.type == "cuda" and len(candidates) > 1:
            with suppress(RuntimeError):  # too little memory for all, or a model that cannot be stacked
                return list(self.select(candidates, share))
        return [self.select([one], share)[0] for one in candidates]

    def select(self, candidates: list[Buffer], share: int) -> Tensor:
        """A share of the rows of each task's candidates, added in rounds by their reducible loss, the largest first.

        Each task has a small model of its own.
        """
        o, t, count = self.options, self.tasks_seen + 1, len(candidates)
        models = SideBySide(self.fresh_model(), count)
        tasks = [int(some.t[0]) for some in candidates]
        draws = [generator(self.seed, "coreset", t, task) for task in tasks]
        x, y, reference = pad_buffers(candidates).values("x", "y", "reference")
        heads = torch.tensor(tasks, device=self.device)[:, None]
        begins = torch.arange(0, y.numel(), y.shape[1], device=self.device)[:, None]  # of each task's rows

        def losses(logits: Tensor, y: Tensor, reduction: str) -> Tensor:
            own = self.own_head(logits, heads)
            return F.cross_entropy(own.flatten(0, 1), y.flatten(), reduction=reduction)

        part, blocks = -(-share // o.selections), -(-y.numel() // BLOCK)
        chosen = torch.empty(count, 0, dtype=torch.long, device=self.device)
        while (so_far := chosen.shape[1]) < share:
            models.restart()
            if size := min(o.batch, so_far):
                sgd = SGD(models.trained, o.selection_lr)
                orders = torch.stack([cycle(so_far, size * o.selection_steps, some) for some in draws])
                at = (chosen.gather(1, orders.to(self.device)) + begins).view(count, -1, size)
                for i, some_y in zip(at.unbind(1), y.flatten()[at].unbind(1), strict=True):
                    some_x = x.flatten(0, 1).index_select(0, i.flatten()).view(count, size, *x.shape[2:])
                    mean = losses(models(some_x), some_y, "mean")
                    sgd.step(count * mean)  # the sum of the models' mean losses
            models.model.eval()
            with torch.no_grad():
                logits = torch.cat([models(some) for some in x.tensor_split(blocks, 1)], 1)
            models.model.train()
            reducible = losses(logits, y, "none").view(y.shape) - reference
            reducible[reference == torch.inf] = -torch.inf  # the padding, also where its loss is not a number
            best = reducible.scatter(1, chosen, -torch.inf).argsort(dim=1, descending=True, stable=True)
            chosen = torch.cat([chosen, best[:, : min(part, share - so_far)]], 1)
        return chosen.sort(1).values

    def fresh_model(self) -> nn.Module:
        """A copy of the model with the initial weights."""
        model = deepcopy(self.model)
        model.load_state_dict(self.initial)
        return model.train()

    def example_losses(self, model: nn.Module, x: Tensor, y: Tensor, t: int) -> Tensor:
        """The cross-entropy of each example in eval mode."""
        model.eval()
        losses = F.cross_entropy(self.own_head(self.evaluate(model, x), t), y, reduction="none")
        model.train()
        return losses


class SideBySide:
    """A model several times over, one per row of the inputs: they differ in what is trained and in running statistics.

    One alone is the model itself.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self.model = model
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        every = itertools.chain(self.model.named_parameters(), self.model.named_buffers())
        own: dict[str, Any] = {name: value.detach() for name, value in every if name not in frozen}
        self.initial = {name: value.clone() for name, value in own.items()}
        self.alone = count == 1
        if self.alone:  # a plain call is quicker
            self.state = own
            self.trained = [p for p in self.model.parameters() if p.requires_grad]
        else:
            self.state = {name: value.expand(count, *value.shape).clone() for name, value in own.items()}
            self.trained = [
                self.state[name] for name, _ in self.model.named_parameters() if name not in frozen
            ]
            for p in self.trained:
                p.requires_grad_()
        self.every = vmap(partial(functional_call, self.model), randomness="different")

    def restart(self) -> None:
        """All at the weights that the model came with."""
        with torch.no_grad():
            for name, value in self.initial.items():
                self.state[name].copy_(value)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of each row of inputs under its own model."""
        logits: Tensor = self.model(x[0])[None] if self.alone else self.every(self.state, (x,))
        return logits


def pad_buffers(buffers: list[Buffer]) -> Buffer:
    """One row of examples per buffer; the shorter are filled up with an example that is never selected."""
    longest = torch.arange(max(map(len, buffers)), device=buffers[0].y.device)
    rows = []
    for buffer in buffers:
        beyond = longest >= len(buffer)
        row = buffer.rows(longest.masked_fill(beyond, 0))
        row.columns["reference"] = row.reference.masked_fill(beyond, torch.inf)
        rows.append(row)
    return Buffer(**{name: torch.stack([row.columns[name] for row in rows]) for name in rows[0].columns})
