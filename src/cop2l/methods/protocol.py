"""What every continual-learning method offers, CoP2L included."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from cop2l.console import Progress
from cop2l.streams.task import Scenario


class Method(Protocol):
    """Learn one task after the other; predict with or without the task's number.

    The model is any nn.Module that maps a batch of inputs to one logit per class of the whole stream. Task-incremental
    streams use the logits of the task's own classes only (its head); the model still computes them all.
    """

    model: nn.Module
    options: Any
    tasks_seen: int

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: int,
        seed: int = 0,
        scenario: Scenario = "class-incremental",
        **options: Any,
    ) -> None:
        """`memory` is how many examples may be kept; `options` are the method's own."""

    @property
    def memory_used(self) -> int:
        """How many examples of past tasks are kept."""

    def learn(
        self,
        x: Any,
        y: Any = None,
        *,
        classes: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task (docs/data.md). `classes`: its head, fixed in advance; needed if task-incremental."""

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """Class of each example, int64 on the CPU; `task` (from 1) selects the head if task-incremental."""

    def save(self, folder: str | Path) -> None:
        """Everything needed to go on later, in a folder, without pickle; each file is written at once."""

    def restore(self, folder: str | Path) -> None:
        """Put a freshly constructed method (same model class, same options) into the saved state."""

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "Method":
        """The saved method; `model` may be left out if it was made by cop2l.models.build."""
