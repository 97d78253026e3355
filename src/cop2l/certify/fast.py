"""The learner's fast path. Its specification is `cop2l.kernel.learning.ReferenceLearner`: the same bits, in less time.

What is gained: the pool is scored as `cop2l.certify.scoring` does it; on a CUDA device everything is recorded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.certify.scoring import Candidates, Top
from cop2l.console import Progress
from cop2l.kernel.exact import NONE, Examples, gather, join
from cop2l.kernel.learning import Optimiser, Outcome, ReferenceLearner, class_balanced_weights, criterion
from cop2l.kernel.options import Refusal


class Iterations:
    """What an iteration of mP2L does: score the pool, then train on all that was picked."""

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
        self._factor = engine.prior_weight(prior).cpu().numpy()
        self._optimiser = Optimiser(model, engine.options)
        self._theta: dict[str, Tensor] | None = None

    def top(self) -> Top:
        """The largest weighted loss, the number of errors, and the block on top: positions that count S first, then B."""
        found: Top = self._pool.top()
        return found

    def train(self, block: np.ndarray, j: int) -> None:
        """Iteration j: the block is picked, and all that was picked is trained on."""
        engine, options = self._engine, self._engine.options
        self._pool.close(block)
        self._trained = join([self._trained, gather(self._S, self._B, block)])
        self._factor = np.concatenate([self._factor, np.where(block < len(self._S), 1.0, options.omega)])
        assert self._trained is not None
        even = class_balanced_weights(self._trained.y) if self._balance else torch.from_numpy(self._factor)
        like = next(engine.model.parameters())
        weight = even.to(like.device, like.dtype)
        engine.update(self._optimiser, self._trained, weight, options.epochs, "update", j)

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
class FastLearner(ReferenceLearner):
    """CoP2L with the bits of `ReferenceLearner`."""

    progress: Progress | None = None
    ranks: Any = None
    """The processes that share scoring (`cop2l.certify.ranks`) and make the same calls; None: this one alone."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One entry per iteration of the newest task: picked, worst_loss, errors, bound, kept."""
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
        """Algorithm 2, as `ReferenceLearner.mp2l` has it."""
        if kept_iterations is not None or longest is not None:
            return super().mp2l(S, B, candidates, prior, kept_iterations, longest)
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

    def train_on_prior(self, own: Examples | None, rows: int) -> Examples | None:
        """As `ReferenceLearner.train_on_prior`."""
        prior, options = join([*self.prior, own]), self.options
        graphs = self._graphs_for([prior]) if options.start == "weights" else None
        epochs = options.prior_passes(rows)
        if prior is None or graphs is None or not epochs:
            return super().train_on_prior(own, rows)
        graphs.update_on_prior(self, prior, epochs, options.prior_lr or options.lr)
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

        if not cuda.can_record(self, parts):
            self._graphs = None
        elif self._graphs is None or not self._graphs.fits(self):
            self._graphs = cuda.Graphs(self)
        return self._graphs

    def _say(self, iteration: int, picked: int, worst: float, errors: int, value: float) -> None:
        event = {"task": self.task, "iteration": iteration, "picked": picked}
        self.trace.append({**event, "worst_loss": worst, "errors": errors, "bound": value})
        if self.progress:
            self.progress(self.trace[-1])
