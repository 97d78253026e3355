"""What CoP2L runs: the reference algorithm, watched, and on a GPU or several processes computed in another way."""

from dataclasses import dataclass, field
from typing import Any

from cop2l.console import Progress
from cop2l.kernel.learning import ReferenceLearner


@dataclass
class Engine(ReferenceLearner):
    """The reference algorithm with a trace and progress."""

    progress: Progress | None = None
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One event for each iteration of the newest task."""

    def observe(self, event: dict[str, Any]) -> None:
        """Add an iteration to the trace, which begins anew at iteration 0, and report it."""
        if event["iteration"] == 0:
            self.trace = []
        self.trace.append(event)
        if self.progress:
            self.progress(event)
