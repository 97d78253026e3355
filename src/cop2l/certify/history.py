"""What is remembered of each task, and how memory moves from one task to the next."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.buffers import Keeper
from cop2l.certify.examples import Examples, join, prior_rows
from cop2l.certify.options import Options
from cop2l.certify.training import Optimiser, balanced, update
from cop2l.randomness import marks

Rows = np.ndarray
NONE: Rows = np.empty(0, np.int64)


@dataclass
class History:
    """The book-keeping of one task: row numbers of its sample, sorted, and the messages."""

    task: int
    rows: int
    """How many examples were given (certified and prior part together)."""
    head: tuple[int, ...]
    """The classes of the task, fixed in advance."""
    fingerprint: str = ""
    iterations: int = 0
    """mu2_t: how many iterations of mP2L were kept."""
    own: Rows = field(default_factory=lambda: NONE)
    """C_t n S_t: picked and kept at the task itself."""
    first: Rows = field(default_factory=lambda: NONE)
    """I_t, the first compression set."""
    second: Rows = field(default_factory=lambda: NONE)
    """J_t, the second: examples of I_t that left the buffer."""
    left: Rows = field(default_factory=lambda: NONE)
    """mu1, one per example of J_t: the task after which it left."""
    picked: Rows = field(default_factory=lambda: NONE)
    """G_t: picked and kept at the task itself, or picked from the buffer in any iteration of a later task."""


def certified_mask(history: History, options: Options) -> np.ndarray:
    """Which rows of the task are its certified part S_t."""
    return ~prior_rows(history.rows, options.prior, options.seed, history.task)


class Memory:
    """The buffer B_1..B_t (examples of the certified parts) and the stored prior examples, task by task."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.keeper = Keeper(options.buffer, options.buffer_places, options.seed)
        self.candidates: list[Examples] = []
        self.prior: list[Examples] = []

    def __len__(self) -> int:
        return sum(len(part) for part in [*self.candidates, *self.prior])

    def buffer(self) -> Examples | None:
        """B*: what can be picked, each with weight omega; witnesses never are."""
        return None if self.options.buffer == "witness" else join(self.candidates)

    def prior_set(self, own: Examples | None) -> Examples | None:
        """The prior examples that updates train on: those stored, then the current task's own."""
        return join([*self.prior, *([own] if own is not None else [])])

    def store_prior(self, own: Examples | None, after: int) -> None:
        """Keep an equal share of prior examples per task, balanced over its classes, in the order of their marks."""
        if own is None:
            return
        self.prior.append(own)
        share = self.options.prior_places // after
        self.prior = [part.take(_balanced_order(part, self.options.seed)[:share]) for part in self.prior]


def _balanced_order(part: Examples, seed: int) -> np.ndarray:
    """Positions such that every beginning of the list has nearly equal numbers of each class."""
    if not len(part):
        return NONE
    order = np.argsort(
        marks(seed, "prior", int(part.task[0]), n=int(part.row.max()) + 1)[part.row], kind="stable"
    )
    labels = part.y.cpu().numpy()[order]
    rank = np.empty(len(order), np.int64)
    for label in np.unique(labels):
        of_class = labels == label
        rank[of_class] = np.arange(of_class.sum())
    return np.asarray(order[np.argsort(rank, kind="stable")])


def train_on_prior(
    model: nn.Module, prior: Examples | None, outside: Tensor | None, options: Options, task: int
) -> None:
    """Before the first pick: epochs over the prior examples, every class with the same total weight."""
    if prior is None or not options.prior_epochs:
        return
    hidden = None if outside is None else outside[torch.from_numpy(prior.task).to(outside.device)]
    model.train()
    update(
        model,
        Optimiser(model, options, options.prior_lr),
        prior.x,
        prior.y,
        balanced(prior.y).to(next(model.parameters()).dtype),
        hidden,
        options,
        epochs=options.prior_epochs,
        purpose="prior",
        task=task,
    )


def prior_part(whole: Examples, task: int, options: Options) -> Examples | None:
    """P_t, or None without a prior split."""
    if not options.prior:
        return None
    return whole.take(np.flatnonzero(prior_rows(len(whole), options.prior, options.seed, task)))
