"""What CoP2L runs: the reference algorithm, watched, and on a GPU or several processes computed in another way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cop2l.console import Progress
from cop2l.kernel.exact import Examples
from cop2l.kernel.learning import ReferenceLearner
from cop2l.learner.ranks import Ranks, Scores


@dataclass
class Engine(ReferenceLearner):
    """The reference algorithm with a trace and progress."""

    progress: Progress | None = None
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One event for each iteration of the newest task."""
    ranks: Ranks | None = None
    """The processes that score together, if there are several."""

    def score(self, parts: Sequence[Examples]) -> Scores:
        """The losses and the errors of each part of a pool."""
        score = super().score
        return score(parts) if self.ranks is None else self.ranks.score(score, parts)

    def observe(self, event: dict[str, Any]) -> None:
        """Add an iteration to the trace, which begins anew at iteration 0, and report it."""
        if event["iteration"] == 0:
            self.trace = []
        self.trace.append(event)
        if self.progress:
            self.progress(event)
