"""The live view: a table with a line and a bar per task, redrawn a few times a second."""

import time
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table

from cop2l.experiments.config import Config
from cop2l.experiments.watch import Watcher
from cop2l.experiments.words import claimed, rounded, span, title
from cop2l.kernel.arithmetic import percent
from cop2l.streams.task import Stream

COP2L = {"iteration": "iteration", "picked": "picked", "worst_loss": "worst loss", "bound": "bound"}
OTHERS = {"epoch": "epoch", "loss": "loss"}
OTHER_LINES = 8
"""Lines of the terminal that are not for the table's rows."""


class Live(Watcher):
    """Shows for each task how far it is, and for the run about how much time is left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.screen = Screen(self, console=self.console, refresh_per_second=4, vertical_overflow="visible")
        self.columns = COP2L
        self.tasks = 0
        self.done: list[dict[str, Any]] = []
        self.event: dict[str, Any] = {}
        self.began = 0.0

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """Show what is run, and what is already done."""
        self.tasks, self.done, self.began = len(stream), list(records), time.monotonic()
        self.columns = COP2L if config.method == "cop2l" else OTHERS
        self.console.print(title(config, stream), highlight=False)
        self.screen.start()

    def note(self, sentence: str) -> None:
        """A line above the table."""
        self.console.print(sentence, highlight=False)

    def progress(self, event: dict[str, Any]) -> None:
        """Remember the newest event; the screen draws it when its time comes."""
        self.event = event

    def task(self, record: dict[str, Any]) -> None:
        """A finished task."""
        self.done.append(record)
        self.event, self.began = {}, time.monotonic()
        self.screen.refresh()

    def close(self) -> None:
        """Draw once more, and leave the terminal as it was."""
        self.screen.stop()

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, caption=self.left(), caption_justify="left")
        for heading in ("task", "", *self.columns.values(), "accuracy", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        shown = max(3, self.console.height - OTHER_LINES)
        for record in self.done[-shown:]:
            own = record["tasks"][-1]
            last = {"iteration": own["iterations"], "picked": own["picked"], "bound": claimed(record)}
            accuracy = rounded(fmean(record["accuracy"]))
            table.add_row(*self.row(record["task"], 1, 1, last), accuracy, span(record["seconds"]))
        if len(self.done) < self.tasks:
            total = self.event.get("epochs")
            row = self.row(len(self.done) + 1, self.event.get("epoch", 0), total, self.event)
            table.add_row(*row, "", span(time.monotonic() - self.began))
        return table

    def row(self, task: int, part: float, whole: float | None, values: dict[str, Any]) -> list[Any]:
        """A task's number, its bar (which pulses where nobody knows the whole), and the newest values."""
        bar = ProgressBar(total=whole, completed=part, width=12, pulse=whole is None)
        return [f"{task}/{self.tasks}", bar, *(shortened(name, values.get(name)) for name in self.columns)]

    def left(self) -> str | None:
        """The time left, judged by the tasks that are done; nothing before there is one."""
        if not self.done or len(self.done) == self.tasks:
            return None
        mean = fmean(record["seconds"] for record in self.done)
        spent = min(time.monotonic() - self.began, mean)
        return f"about {span(mean * (self.tasks - len(self.done)) - spent)} left"


def shortened(name: str, value: Any) -> str:
    """A value in few characters."""
    if name == "bound" and value is not None:
        return percent(value)
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
