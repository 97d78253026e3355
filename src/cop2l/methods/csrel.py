"""CSReL: coreset selection by reducible loss (Tong, Liu, Shi, Gong, 2025)."""

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
    """Options of the training by replay, of the reference model, and of the selection."""

    epochs: int = 100
    batch: int = 256
    """Examples of the task per step, and of the buffer."""
    lr: float = 0.001
    alpha: float = 20.0
    """Weight of the cross-entropy on the buffer batch."""
    reference_epochs: int = 150
    """Passes of the reference model over its task."""
    reference_lr: float = 0.003
    """Learning rate of the reference model."""
    candidates: int = 1000
    """Examples of a task, drawn uniformly, among which it selects."""
    selections: int = 200
    """Rounds of a selection; each adds an equal part of the share."""
    selection_steps: int = 100
    """Steps of training on the selected examples in each round, from the initial weights."""
    selection_lr: float = 0.01
    """Learning rate of these steps."""

    positive: ClassVar = (*CommonOptions.positive, "selections")


class CSReL(Learner):
    """CSReL: CE(new) + alpha CE(buffer); each task stores floor(m/t) examples, those with the largest reducible loss.

    The reducible loss of x is L(theta_C, x) - L(theta_ref, x): theta_C is trained on the coreset C selected so far, theta_ref
    on the whole task. Stored coresets shrink to their new share by the same selection among their own examples, with the
    stored reference losses.
    """

    Options = CSReLOptions
    restarts = True

    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t."""
        o, buffer = self.options, self.buffer
        new, total = Buffer(x=x, y=y), o.epochs + o.reference_epochs
        sgd = self.sgd(o.lr)
        for i, j in self.replay_batches(len(x), o.batch, o.epochs, total=total):
            stored = buffer.rows(j)
            both = new.rows(i).join(**stored.columns)
            logits, replayed = self.model(both.x).split([len(i), len(j)])
            loss = self.loss(logits, y[i], t)
            if len(j):
                loss = loss + o.alpha * self.loss(replayed, stored.y, stored.t)
            sgd.step(loss)
        candidates = [buffer.of_task(task) for task in range(1, t)]
        candidates.append(self.reference_losses(x, y, t, total))
        self.buffer = Buffer()
        for of_task, rows in zip(candidates, self.coresets(candidates, self.memory // t), strict=True):
            self.buffer = self.buffer.join(**of_task.rows(rows).columns)

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
        """Of each task the rows that it stores: all candidates, or the selected ones if there are more than the share."""
        rows = [torch.arange(min(share, len(of_task))) for of_task in candidates]
        larger = [k for k, of_task in enumerate(candidates) if len(of_task) > share > 0]
        for k, selected in zip(larger, self.select_all([candidates[k] for k in larger], share), strict=True):
            rows[k] = selected
        return rows

    def select_all(self, candidates: list[Buffer], share: int) -> list[Tensor]:
        """`select` for each task: all tasks at once on CUDA, one after the other on a CPU, which is quicker there."""
        if self.device.type == "cuda" and len(candidates) > 1:
            with suppress(RuntimeError):  # too little memory for all, or a model that cannot be stacked
                return list(self.select(candidates, share))
        return [self.select([of_task], share)[0] for of_task in candidates]

    def select(self, candidates: list[Buffer], share: int) -> Tensor:
        """For each task `share` rows of its candidates, added in rounds, those with the largest reducible loss first.

        Each task has a small model of its own.
        """
        o, t, count = self.options, self.tasks_seen + 1, len(candidates)
        models = ModelCopies(self.fresh_model(), count)
        tasks = [int(of_task.t[0]) for of_task in candidates]
        draws = [generator(self.seed, "coreset", t, task) for task in tasks]
        padded = pad_buffers(candidates)
        x, y, reference = padded.x, padded.y, padded.reference
        heads = torch.tensor(tasks, device=self.device)[:, None]
        first_rows = torch.arange(0, y.numel(), y.shape[1], device=self.device)[:, None]  # of each task

        def losses(logits: Tensor, y: Tensor, reduction: str) -> Tensor:
            masked = self.head_logits(logits, heads)
            return F.cross_entropy(masked.flatten(0, 1), y.flatten(), reduction=reduction)

        part, blocks = -(-share // o.selections), -(-y.numel() // BLOCK)
        chosen = torch.empty(count, 0, dtype=torch.long, device=self.device)
        while (so_far := chosen.shape[1]) < share:
            models.restart()
            if size := min(o.batch, so_far):
                sgd = SGD(models.trained, o.selection_lr)
                orders = torch.stack([cycle(so_far, size * o.selection_steps, draw) for draw in draws])
                rows = (chosen.gather(1, orders.to(self.device)) + first_rows).view(count, -1, size)
                for i, labels in zip(rows.unbind(1), y.flatten()[rows].unbind(1), strict=True):
                    inputs = x.flatten(0, 1).index_select(0, i.flatten()).view(count, size, *x.shape[2:])
                    mean = losses(models(inputs), labels, "mean")
                    sgd.step(count * mean)  # the sum of the models' mean losses
            models.model.eval()
            with torch.no_grad():
                logits = torch.cat([models(block) for block in x.tensor_split(blocks, 1)], 1)
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
        losses = F.cross_entropy(self.head_logits(self.evaluate(model, x), t), y, reduction="none")
        model.train()
        return losses


class ModelCopies:
    """Copies of a model, one per row of the inputs, each with trained parameters and running statistics of its own.

    A single copy is the model itself, because a plain call is quicker.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self.model = model
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        values = itertools.chain(model.named_parameters(), model.named_buffers())
        state: dict[str, Any] = {name: value.detach() for name, value in values if name not in frozen}
        self.initial = {name: value.clone() for name, value in state.items()}
        self.is_single = count == 1
        if self.is_single:
            self.state = state
            self.trained = [p for p in model.parameters() if p.requires_grad]
        else:
            self.state = {name: value.expand(count, *value.shape).clone() for name, value in state.items()}
            self.trained = [self.state[name] for name, _ in model.named_parameters() if name not in frozen]
            for p in self.trained:
                p.requires_grad_()
        self.call_copies = vmap(partial(functional_call, model), randomness="different")

    def restart(self) -> None:
        """Put every copy back to the initial weights."""
        with torch.no_grad():
            for name, value in self.initial.items():
                self.state[name].copy_(value)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of each row of inputs under its own copy."""
        logits: Tensor = self.model(x[0])[None] if self.is_single else self.call_copies(self.state, (x,))
        return logits


def pad_buffers(buffers: list[Buffer]) -> Buffer:
    """One row of examples per buffer; shorter buffers are padded with an example that is never selected."""
    longest = torch.arange(max(map(len, buffers)), device=buffers[0].y.device)
    rows = []
    for buffer in buffers:
        beyond = longest >= len(buffer)
        row = buffer.rows(longest.masked_fill(beyond, 0))
        row.columns["reference"] = row.reference.masked_fill(beyond, torch.inf)
        rows.append(row)
    return Buffer(**{name: torch.stack([row.columns[name] for row in rows]) for name in rows[0].columns})
