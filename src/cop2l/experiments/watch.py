"""Who looks on while a run goes: a live view on a terminal, plain lines in a pipe, and loggers."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Self, TextIO

from cop2l.experiments.config import Config
from cop2l.experiments.measure import finite
from cop2l.experiments.words import outcome, state, title
from cop2l.streams.task import Stream


class Watcher:
    """Told what happens; does nothing unless a method is overridden."""

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:
        """The run begins, or goes on after the tasks of these records."""

    def note(self, sentence: str) -> None:
        """Something is done or known before the first task."""

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

    def note(self, sentence: str) -> None:
        """Tell all."""
        for watcher in self.watchers:
            watcher.note(sentence)

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

    def note(self, sentence: str) -> None:
        """A line of its own."""
        self.say(sentence)

    def progress(self, event: dict[str, Any]) -> None:
        """A sign of life."""
        if time.monotonic() - self.spoke >= self.every:
            self.say(f"  task {event['task']}/{self.tasks}  {state(event)}")

    def task(self, record: dict[str, Any]) -> None:
        """A finished task."""
        self.say(f"task {record['task']}/{self.tasks}  {outcome(record)}")


def usual(out: TextIO | None = None) -> Watcher:
    """The live view on a terminal, else plain lines."""
    if out is None and sys.stdout.isatty():
        from cop2l.experiments.live import Live

        return Live()
    return Lines(out)
