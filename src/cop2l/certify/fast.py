"""The learner's fast path. Its specification is `cop2l.kernel.learning.Plain`: the same bits, in less time.

What is gained: the pool is scored as `cop2l.certify.scoring` does it, and the training set grows in place.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cop2l.certify.scoring import Candidates, Top, ours
from cop2l.console import Progress
from cop2l.kernel.exact import NONE, Examples, answers, join
from cop2l.kernel.learning import Optimiser, Outcome, Plain, balanced, criterion
from cop2l.kernel.options import Refusal
from cop2l.randomness import generator, private_randomness


class TrainingSet:
    """C in picking order (behind the prior examples, if any), with weights, grown block by block."""

    def __init__(self, prior: Examples | None, like: Tensor, balance: bool) -> None:
        self._balance, self._like, self._size = balance and prior is not None, like, 0
        self._columns: list[Any] = []  # x, y, weight
        self._task = NONE
        if prior is not None:
            self.add(prior, np.arange(len(prior)), np.ones(len(prior)))

    def add(self, source: Examples, at: np.ndarray, weight: np.ndarray) -> None:
        """These examples of the source, with these weights."""
        index = torch.from_numpy(at).to(source.y.device)
        if isinstance(source.x, Tensor) and source.x.device == source.y.device:
            rows: Any = source.x.index_select(0, index)
        else:
            rows = source.take(at).x
        new = [
            rows,
            source.y.index_select(0, index),
            torch.from_numpy(weight).to(index.device, self._like.dtype),
        ]
        end = self._size + len(at)
        if not self._columns or end > len(self._columns[0]):
            room = end + end // 2 + 256
            grown = [part.new_empty((room, *part.shape[1:])) for part in new]
            for old, larger in zip(self._columns, grown, strict=False):
                larger[: self._size].copy_(old[: self._size])
            self._columns = grown
        for column, part in zip(self._columns, new, strict=True):
            column[self._size : end].copy_(part)
        self._task = np.concatenate([self._task, source.task[at]])
        self._size = end

    def reorder(self, count: int, order: np.ndarray) -> None:
        """Bring the last `count` examples into this order."""
        first = self._size - count
        index = torch.from_numpy(order).to(self._like.device)
        for column in self._columns:
            last = column[first : self._size]
            last.copy_(last[index])
        self._task[first:] = self._task[first:][order]

    def add_picked(self, S: Examples, B: Examples | None, block: np.ndarray, omega: float) -> None:
        """The block on top, in picking order; positions count S first, then B."""
        of_S, of_B = np.flatnonzero(block < len(S)), np.flatnonzero(block >= len(S))
        self.add(S, block[of_S], np.ones(len(of_S)))
        if B is not None and len(of_B):
            self.add(B, block[of_B] - len(S), np.full(len(of_B), omega))
            if len(of_S):
                self.reorder(len(block), np.argsort(np.concatenate([of_S, of_B])))

    def examples(self) -> Examples:
        """What is trained on."""
        x, y, _ = (column[: self._size] for column in self._columns)
        return Examples(x, y, self._task, self._task, self._task)

    def weight(self) -> Tensor:
        """The weights of the examples; classes weigh the same where there is a prior part."""
        _, y, weight = (column[: self._size] for column in self._columns)
        return balanced(y).to(self._like.dtype) if self._balance else weight


class Iterations:
    """What an iteration of mP2L does: score the pool, then train on all that was picked."""

    def __init__(
        self, engine: "Fast", S: Examples, B: Examples | None, candidates: np.ndarray, prior: Examples | None
    ) -> None:
        self._engine, self._S, self._B, model = engine, S, B, engine.model
        pool = Candidates if engine.ranks is None else engine.ranks.candidates
        self._pool = pool(model, S, B, candidates, engine.outside, engine.options)
        self._training = TrainingSet(prior, next(model.parameters()), engine.options.balance)
        self._optimiser = Optimiser(model, engine.options)
        self._theta: dict[str, Tensor] | None = None

    def top(self) -> Top:
        """The largest weighted loss, the number of errors, and the block on top: positions that count S first, then B."""
        found: Top = self._pool.top()
        return found

    def train(self, block: np.ndarray, j: int) -> None:
        """Iteration j: the block is picked, and all that was picked is trained on."""
        engine, training = self._engine, self._training
        self._pool.close(block)
        training.add_picked(self._S, self._B, block, engine.options.omega)
        engine.update(
            self._optimiser, training.examples(), training.weight(), engine.options.epochs, "update", j
        )

    def keep(self) -> None:
        """Remember theta as it is now."""
        state = self._engine.model.state_dict()
        if self._theta is None:
            self._theta = {name: value.clone() for name, value in state.items()}
        else:
            torch._foreach_copy_(list(self._theta.values()), list(state.values()))

    def finish(self) -> None:
        """Theta goes back to what was kept."""
        self._engine.model.eval()
        if self._theta is not None:
            self._engine.model.load_state_dict(self._theta)


@dataclass
class Fast(Plain):
    """CoP2L with the bits of `Plain`."""

    progress: Progress | None = None
    ranks: Any = None
    """The processes that score together (`cop2l.certify.ranks`); None: this one alone."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One entry per iteration of the newest task: picked, worst_loss, errors, bound, kept."""
    _graphs: Any = field(default=None, repr=False, compare=False)

    def update(
        self, optimiser: Any, trained: Examples, weight: Tensor, epochs: int, purpose: str, iteration: int = 0
    ) -> None:
        """Epochs of mini-batches, each filled up to `batch` rows with its own rows at weight zero."""
        n, size, like, seed = (
            len(trained),
            self.options.batch,
            next(self.model.parameters()),
            self.options.seed,
        )
        hidden = (
            None if self.outside is None else self.outside[torch.from_numpy(trained.task).to(like.device)]
        )
        columns = [trained.x, trained.y, weight, *([] if hidden is None else [hidden])]
        order = generator(seed, f"{purpose} order", self.task, iteration)
        single = _filled(columns, torch.arange(n), size) if n <= size else None
        trusted, ready = ours(self.model), trained.x.dtype == like.dtype
        self.model.train()
        with private_randomness(like.device, seed, purpose, self.task, iteration):
            for _ in range(epochs):
                if single is not None:
                    x, *others = single
                    batches = iter([(x if trusted else x.clone(), *others)])
                else:
                    shuffled = torch.randperm(n, generator=order).to(like.device)
                    batches = (_filled(columns, rows, size) for rows in torch.split(shuffled, size))
                for x, y, factor, *outside in batches:
                    logits = self.model(x) if ready else answers(self.model, x)
                    if outside:
                        logits = logits.masked_fill(outside[0], -torch.inf)
                    losses = F.cross_entropy(logits, y, reduction="none")
                    optimiser.step(torch.dot(losses, factor.to(losses.dtype)))

    def mp2l(
        self,
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        message: int | None = None,
        longest: int | None = None,
    ) -> Outcome:
        """Algorithm 2, as `Plain.mp2l` has it."""
        if message is not None or longest is not None:
            return super().mp2l(S, B, candidates, prior, message, longest)
        options, points, certified = self.options, self.options.grid_points, int(candidates.sum())
        iterations = self._iterations(S, B, candidates, prior)
        blocks, own, j, best, least = [NONE], 0, 0, 0, math.inf
        self.trace = []
        while True:
            worst, errors, picked = iterations.top()
            if math.isnan(worst):
                raise Refusal(
                    f"Training diverged at task {self.task}, iteration {j}: the loss is not a number; "
                    f"lower lr ({options.lr}) or omega."
                )
            stopped = not worst >= options.gamma
            value = criterion(options, certified, own, errors, j)
            if (not points or j in points or stopped) and (value < least or options.stop == "none"):
                best, least = j, value
                iterations.keep()
            self._say(j, own, worst, errors, value)
            if stopped or j == options.max_iterations:
                break
            if options.stop != "none" and criterion(options, certified, own, 0, j + 1) >= least:
                break  # what was picked alone costs too much
            blocks.append(picked)
            own += int(np.count_nonzero(picked < len(S)))
            j += 1
            iterations.train(picked, j)
        iterations.finish()
        for step in self.trace:
            step["kept"] = step["iteration"] == best
        paid = next(point for point in points or (best,) if point >= best)
        return Outcome(np.concatenate(blocks[: best + 1]), np.concatenate(blocks), paid, j)

    def train_on_prior(self, own: Examples | None) -> Examples | None:
        """As `Plain.train_on_prior`."""
        prior, options = join([*self.prior, own]), self.options
        graphs = self._graphs_for([prior]) if options.start == "weights" else None
        if prior is None or graphs is None or not options.prior_epochs:
            return super().train_on_prior(own)
        graphs.update_on_prior(self, prior, options.prior_epochs, options.prior_lr or options.lr)
        return prior

    def _iterations(
        self, S: Examples, B: Examples | None, candidates: np.ndarray, prior: Examples | None
    ) -> Any:
        """The iterations, recorded where they can be."""
        graphs = self._graphs_for([S, B, prior]) if self.ranks is None else None
        if graphs is None:
            return Iterations(self, S, B, candidates, prior)
        from cop2l.certify import cuda

        return cuda.Iterations(graphs, self, S, B, candidates, prior)

    def _graphs_for(self, parts: Sequence[Examples | None]) -> Any:
        """What is recorded for this learner; None where nothing can be."""
        from cop2l.certify import cuda

        if not cuda.able(self, parts):
            self._graphs = None
        elif self._graphs is None or not self._graphs.fits(self):
            self._graphs = cuda.Graphs(self)
        return self._graphs

    def _say(self, iteration: int, picked: int, worst: float, errors: int, value: float) -> None:
        event = {"task": self.task, "iteration": iteration, "picked": picked}
        self.trace.append({**event, "worst_loss": worst, "errors": errors, "bound": value})
        if self.progress:
            self.progress(self.trace[-1])


def _filled(columns: Sequence[Any], rows: Tensor, size: int) -> tuple[Any, ...]:
    """The rows of a mini-batch: x, y, factor and, if task-incremental, what is outside the head."""
    count = len(rows)
    at = rows if count == size else rows.repeat(-(-size // count))[:size]
    x, y, weight, *hidden = (column.index_select(0, at.to(column.device)) for column in columns)
    factor = weight * (1 / count)
    factor[count:] = 0
    return x, y, factor, *hidden
