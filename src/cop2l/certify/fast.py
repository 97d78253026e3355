"""The engine of CoP2L. It inherits `learn`, the loop over tasks, from `cop2l.kernel.learning.ReferenceLearner`.

It replaces two methods and gives the same bits in less time:

mp2l             scores the pool as `cop2l.certify.scoring` does; on a CUDA device it replays recorded graphs (`cuda.py`)
train_on_prior   replays recorded graphs on a CUDA device
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.certify import cuda
from cop2l.certify.scoring import Candidates, Top
from cop2l.console import Progress
from cop2l.kernel.exact import NO_ROWS, Examples, gather, join
from cop2l.kernel.learning import Optimiser, Outcome, ReferenceLearner, class_balanced_weights, criterion
from cop2l.kernel.options import Refusal


class Iterations:
    """The steps of one iteration of mP2L: score the pool, then train on all picked examples."""

    def __init__(
        self,
        engine: "FastLearner",
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
    ) -> None:
        self._engine, self._S, self._B, model = engine, S, B, engine.model
        pool = Candidates if engine.ranks is None else engine.ranks.candidates
        self._pool = pool(model, S, B, candidates, engine.masked_classes, engine.options)
        self._trained, self._balance = prior, prior is not None and engine.options.balance
        self._weights = engine.prior_weight(prior).cpu().numpy()
        self._optimiser = Optimiser(model, engine.options)
        self._theta: dict[str, Tensor] | None = None

    def top(self) -> Top:
        """The largest weighted loss, the number of errors, and the block of the k largest losses.

        Positions in a block count S first, then B.
        """
        top: Top = self._pool.top()
        return top

    def train(self, block: np.ndarray, j: int) -> None:
        """Take a block out of the pool, and train on all picked examples."""
        engine, options = self._engine, self._engine.options
        self._pool.close(block)
        self._trained = join([self._trained, gather(self._S, self._B, block)])
        self._weights = np.concatenate([self._weights, np.where(block < len(self._S), 1.0, options.omega)])
        assert self._trained is not None
        parameter = next(engine.model.parameters())
        balance, y = self._balance, self._trained.y
        weights = class_balanced_weights(y) if balance else torch.from_numpy(self._weights)
        weights = weights.to(parameter.device, parameter.dtype)
        engine.update(self._optimiser, self._trained, weights, options.epochs, "update", j)

    def keep(self) -> None:
        """Copy theta as it is now."""
        self._theta = {name: value.clone() for name, value in self._engine.model.state_dict().items()}

    def finish(self) -> None:
        """Put the kept theta back into the model."""
        self._engine.model.eval()
        if self._theta is not None:
            self._engine.model.load_state_dict(self._theta)


@dataclass
class FastLearner(ReferenceLearner):
    """CoP2L with the bits of `ReferenceLearner`, in less time."""

    progress: Progress | None = None
    ranks: Any = None
    """The processes that share the work (`cop2l.certify.ranks`); None if there is only this one."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One entry per iteration of the newest task: picked, worst_loss, errors, criterion, kept."""
    _graphs: Any = field(default=None, repr=False, compare=False)

    def mp2l(
        self,
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        kept_iterations: int | None = None,
        longest: int | None = None,
    ) -> Outcome:
        """Algorithm 2, mP2L: pick the largest losses, train on all picked examples, repeat; `ReferenceLearner.mp2l` defines it.

        A rerun, with `kept_iterations` or `longest`, is left to the reference.
        """
        if kept_iterations is not None or longest is not None:
            return super().mp2l(S, B, candidates, prior, kept_iterations, longest)
        options, points, n = self.options, self.options.grid_points, int(candidates.sum())
        iterations = self._iterations(S, B, candidates, prior)  # line 2: S* <- S u B*
        blocks, picked, j = [NO_ROWS], 0, 0  # line 1: C_0 <- {}
        best, least, self.trace = 0, math.inf, []
        while True:
            worst, errors, block = iterations.top()  # line 3: the largest l * w
            self._check_loss(worst, j)
            below_gamma = not worst >= options.gamma  # line 4: while l * w >= gamma
            value = criterion(options, n, picked, errors, j)
            if (not points or j in points or below_gamma) and (value < least or options.stop == "none"):
                best, least = j, value
                iterations.keep()
            self._record(j, picked, worst, errors, value)
            if below_gamma or j == options.max_iterations:
                break
            if options.stop != "none" and criterion(options, n, picked, 0, j + 1) >= least:
                break  # early exit: no later iteration has a smaller criterion
            blocks.append(block)  # line 6: C_k <- C_{k-1} u {...}
            picked += int(np.count_nonzero(block < len(S)))
            j += 1
            iterations.train(block, j)  # line 7: theta_k <- update(theta_{k-1}, C_k)
        iterations.finish()  # lines 10-12: k <- argmin of the criterion; theta goes back to it
        for event in self.trace:
            event["kept"] = event["iteration"] == best
        paid = next(point for point in points or (best,) if point >= best)
        return Outcome(np.concatenate(blocks[: best + 1]), np.concatenate(blocks), paid, j)  # line 13

    def train_on_prior(self, own_prior: Examples | None, rows: int) -> Examples | None:
        """The same as `ReferenceLearner.train_on_prior`."""
        prior, options = join([*self.prior, own_prior]), self.options
        graphs = self._graphs_for([prior]) if options.start == "weights" else None
        epochs = options.prior_passes(rows)
        if prior is None or graphs is None or not epochs:
            return super().train_on_prior(own_prior, rows)
        graphs.update_on_prior(self, prior, epochs, options.prior_lr or options.lr)
        return prior

    def _iterations(
        self, S: Examples, B: Examples | None, candidates: np.ndarray, prior: Examples | None
    ) -> Any:
        """The iterations on this device."""
        graphs = self._graphs_for([S, B, prior]) if self.ranks is None else None
        if graphs is None:
            return Iterations(self, S, B, candidates, prior)
        return cuda.Iterations(graphs, self, S, B, candidates, prior)

    def _graphs_for(self, parts: Sequence[Examples | None]) -> Any:
        """The recorded graphs of this learner; None if they cannot be recorded."""
        if not cuda.can_record(self, parts):
            self._graphs = None
        elif self._graphs is None or not self._graphs.fits(self):
            self._graphs = cuda.Graphs(self)
        return self._graphs

    def _check_loss(self, worst: float, j: int) -> None:
        if math.isnan(worst):
            raise Refusal(
                f"Training diverged at task {self.task}, iteration {j}: the loss is not a number; "
                f"lower lr ({self.options.lr}) or omega."
            )

    def _record(self, iteration: int, picked: int, worst: float, errors: int, value: float) -> None:
        """Add an iteration to the trace, and report it."""
        event = {"task": self.task, "iteration": iteration, "picked": picked}
        self.trace.append({**event, "worst_loss": worst, "errors": errors, "criterion": value})
        if self.progress:
            self.progress(self.trace[-1])
