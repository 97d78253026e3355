"""What CoP2L runs: the reference algorithm, watched, and on a GPU or several processes computed in another way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from cop2l.console import Progress
from cop2l.kernel.exact import Examples
from cop2l.kernel.learning import Outcome, ReferenceLearner
from cop2l.kernel.training import Optimiser
from cop2l.learner.graphs import Graphs
from cop2l.learner.ranks import Ranks


@dataclass
class Engine(ReferenceLearner):
    """The reference algorithm with a trace and progress; on a CUDA device it replays recorded graphs."""

    progress: Progress | None = None
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One event for each iteration of the newest task."""
    ranks: Ranks | None = None
    """The processes that score together, if there are several."""
    _graphs: Graphs | None = field(default=None, repr=False, compare=False)

    @property
    def graphs(self) -> Graphs:
        """The graphs of this model."""
        if self._graphs is None or self._graphs.model is not self.model:
            self._graphs = Graphs(self.model)
        return self._graphs

    def learn(self, S: Examples, longest: int | None = None) -> Outcome:
        """Learn the sample of the next task, whose recorded pool is of no use to the others."""
        try:
            return super().learn(S, longest)
        finally:
            self.graphs.forget_pool()

    def score(self, parts: Sequence[Examples]) -> list[tuple[Tensor, np.ndarray]]:
        """The losses and the errors of each part of a pool."""
        if self.ranks is not None:
            return self.ranks.score(super().score, parts)
        return self.graphs.score(parts, self.masked_classes)

    def update(self, optimiser: Optimiser, trained: Examples, weight: Tensor, j: int) -> None:
        """Train on these examples."""
        options, seed_words = self.options, (self.options.seed, "update", self.task, j)
        self.graphs.train(
            optimiser, trained, weight, options.epochs, options.batch, seed_words, self.masked_classes
        )

    def observe(self, event: dict[str, Any]) -> None:
        """Add an iteration to the trace, which begins anew at iteration 0, and report it."""
        if event["iteration"] == 0:
            self.trace = []
        self.trace.append(event)
        if self.progress:
            self.progress(event)
