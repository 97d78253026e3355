"""Who looks on while a run goes: a live view on a terminal, plain lines in a pipe, and loggers."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Self, TextIO

from cop2l.experiments.config import Config
from cop2l.experiments.measure import finite
from cop2l.experiments.words import outcome, span, state, title
from cop2l.streams.task import Stream


class Watcher:
    """Told what happens; does nothing unless a method is overridden."""

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """The run begins, or goes on after the tasks of these records."""

    def progress(self, event: dict[str, Any]) -> None:
        """One mP2L iteration or one epoch is done."""

    def task(self, record: dict[str, Any]) -> None:
        """One task is learned, measured and stored."""

    def finish(self, summary: dict[str, Any]) -> None:
        """The run is finished."""

    def close(self) -> None:
        """Nothing more will come, whatever the reason."""


class Watchers(Watcher):
    """Several watchers as one, closed at the end of a with statement."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.start(config, stream, records)

    def progress(self, event: dict[str, Any]) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.progress(finite(event))

    def task(self, record: dict[str, Any]) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.task(record)

    def finish(self, summary: dict[str, Any]) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.finish(summary)

    def close(self) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.close()


class Lines(Watcher):
    """Plain lines, for a pipe or a file: one per task, and a sign of life every so often."""

    def __init__(self, out: TextIO | None = None, every: float = 10.0) -> None:
        self.out = out or sys.stdout
        self.every = every
        self.tasks = 0
        self.spoke = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(text, file=self.out, flush=True)
        self.spoke = time.monotonic()

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """What is run, and where it goes on."""
        self.tasks = len(stream)
        self.say(title(config, stream))
        if records:
            self.say(f"going on after task {records[-1]['task']}")

    def progress(self, event: dict[str, Any]) -> None:
        """A sign of life."""
        if time.monotonic() - self.spoke >= self.every:
            self.say(f"  task {event['task']}/{self.tasks}  {state(event)}")

    def task(self, record: dict[str, Any]) -> None:
        """A finished task."""
        self.say(f"task {record['task']}/{self.tasks}  {outcome(record)}")


class Live(Watcher):
    """A progress bar per task on a terminal, redrawn a few times a second."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.bars = Progress(
            TextColumn("task {task.fields[number]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TextColumn("[dim]{task.fields[left]}"),
            refresh_per_second=4,
        )
        self.tasks = 0
        self.bar: Any = None
        self.began = 0.0
        self.seconds: list[float] = []

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """Show what is run, with a bar for each task that is already done."""
        self.tasks = len(stream)
        self.seconds = [record["seconds"] for record in records]
        self.bars.console.print(title(config, stream), highlight=False)
        self.bars.start()
        for record in records:
            self.add(record["task"], total=1)
            self.done(record)
        self.next(len(records) + 1)

    def add(self, number: int, total: float | None) -> None:
        """A new bar; without a total it pulses."""
        self.bar = self.bars.add_task("", total=total, number=f"{number}/{self.tasks}", text="", left="")

    def next(self, number: int) -> None:
        """The bar of the next task, if there is one."""
        if number <= self.tasks:
            self.began = time.monotonic()
            self.add(number, total=None)

    def progress(self, event: dict[str, Any]) -> None:
        """Move the bar."""
        share = (event["epoch"], event["epochs"]) if "epoch" in event else (None, None)
        self.bars.update(self.bar, completed=share[0], total=share[1], text=state(event), left=self.left())

    def left(self) -> str:
        """The time left, judged by the tasks that are done; nothing before there is one."""
        if not self.seconds:
            return ""
        mean = sum(self.seconds) / len(self.seconds)
        spent = min(time.monotonic() - self.began, mean)
        return f"about {span(mean * (self.tasks - len(self.seconds)) - spent)} left"

    def done(self, record: dict[str, Any]) -> None:
        """Fill the bar."""
        self.bars.update(self.bar, total=1, completed=1, text=outcome(record), left="")

    def task(self, record: dict[str, Any]) -> None:
        """A finished task, and the next one."""
        self.done(record)
        self.seconds.append(record["seconds"])
        self.next(record["task"] + 1)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()


def usual(out: TextIO | None = None) -> Watcher:
    """The live view on a terminal (if rich is there), else plain lines."""
    if out is None and sys.stdout.isatty():
        try:
            return Live()
        except ImportError:
            pass
    return Lines(out)
