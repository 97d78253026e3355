"""Notes, warnings and progress: on a terminal, under the cell of a notebook, or as plain lines in a log."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from math import inf, isfinite
from statistics import fmean
from time import monotonic
from typing import Any, Self, TextIO

from cop2l.errors import Advice
from cop2l.text import Names, certificate_text, count, duration, measured_percent, percent

Progress = Callable[[dict[str, Any]], None]
"""A callback: it gets one event after each mP2L iteration, epoch or batch of pictures."""
PAUSE = 0.1
"""Seconds between two updates of a notebook; more of them would keep the browser busy."""
MOST_NAMED = 12
"""The number of tasks that the first line of a run names."""
SILENCE = 10.0
"""Seconds after which a log gets a line."""


def note(sentence: str) -> None:
    """Print one line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def advice_in_one_line() -> Iterator[None]:
    """Print `Advice` as one line on stderr, without the place in the code."""
    original = warnings.showwarning

    def show(message: Any, category: type[Warning], *arguments: Any, **keywords: Any) -> None:
        if issubclass(category, Advice):
            note(f"Warning: {message}")
        else:
            original(message, category, *arguments, **keywords)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = original


def leave_closed_pipes() -> None:
    """Redirect stdout and stderr to devnull after a broken pipe, so that Python prints no error at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Bar:
    """A bar on a terminal, removed at the end; nothing elsewhere. pooch sets `total` and calls update, reset and close."""

    def __init__(
        self, label: str, total: int | None = None, *, size: bool = False, out: TextIO | None = None
    ):
        self.total, self.completed, self._bar, self._out = total, 0, None, out or sys.stderr
        if self._out.isatty():
            self._bar = _rich_bar(self._out, size=size, counted=total is not None)
            self._row = self._bar.add_task(label, total=total)
            self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, amount: int = 1) -> None:
        """Add an amount to what is completed."""
        self.completed += amount
        if self._bar:
            self._bar.update(self._row, completed=self.completed, total=self.total or None)

    def show(self, label: str, completed: float, total: float | None) -> None:
        """Show another label and state."""
        if self._bar:
            self._bar.update(self._row, description=label, completed=completed, total=total)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def reset(self) -> None:
        """Count from 0 again."""
        self.completed = 0

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar:
            self._bar.stop()
            self._bar = None


def _rich_bar(out: TextIO, *, size: bool, counted: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    amount = (DownloadColumn(),) if size else (MofNCompleteColumn(),) if counted else ()
    columns = (BarColumn(12), *amount, TimeElapsedColumn(), "{task.description}")
    return Progress(*columns, console=Console(file=out), transient=True)


class Cell:
    """A bar and a line under the cell of a notebook; they stay, and need no widget."""

    def __init__(self, label: str) -> None:
        from IPython.display import display

        self._label, self._drawn = label, -inf
        self._handle = display(self._data(None), raw=True, display_id=True)

    def show(self, label: str, completed: float, total: float | None) -> None:
        """Show another label and state; without a total the bar only moves."""
        self._label = label
        if monotonic() - self._drawn >= PAUSE:
            self._handle.update(self._data(completed / total if total else None), raw=True)
            self._drawn = monotonic()

    def close(self) -> None:
        """Leave the last label and a full bar."""
        self._handle.update(self._data(1), raw=True)

    def _data(self, share: float | None) -> dict[str, str]:
        value = "" if share is None else f' value="{share:.3f}"'
        bar = f'<progress{value} style="width:12em;vertical-align:middle"></progress>'
        label = (
            f'<span style="margin-left:1em;font-variant-numeric:tabular-nums">{escape(self._label)}</span>'
        )
        return {"text/plain": self._label, "text/html": f"<div>{bar}{label}</div>"}


class Lines:
    """Plain lines: the first state, the last states, and one after every `SILENCE` seconds without a line."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out, self._printed, self._open = out, -inf, ""

    def show(self, label: str, completed: float, total: float | None) -> None:
        """Print the label if it is time, or if all is completed."""
        self._open = label
        if completed == total or monotonic() - self._printed >= SILENCE:
            self.say(label)

    def say(self, line: str) -> None:
        """Print a line now."""
        print(line, file=self._out or sys.stderr, flush=True)
        self._printed, self._open = monotonic(), ""

    def close(self) -> None:
        """Print the last label, if it was not printed."""
        if self._open:
            self.say(self._open)


@contextmanager
def progress_display(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """The callback for the events of `learn` or `extract`: `progress` itself, or one that shows them.

    True shows a bar, or lines in a log; None shows a bar only; False shows nothing.
    """
    if callable(progress) or progress is False:
        yield progress or None
        return
    kind = Bar if sys.stderr.isatty() else Cell if in_notebook() else None
    if kind is None and progress is None:
        yield None
        return
    view: Any = kind("starting") if kind else Lines()
    try:
        yield lambda event: view.show(*event_line(event))
    finally:
        view.close()


def in_notebook() -> bool:
    """Whether this runs in a Jupyter notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def event_line(event: Mapping[str, Any], suffix: str = "") -> tuple[str, float, float | None]:
    """An event in one line, how much is completed, and the total (None if unknown); `suffix` follows the task."""
    if "part" in event:
        completed, total = event["done"], event["total"]
        return (
            f"{event['part']}: {completed} of {total}, {event['rate']:.0f} pictures per second",
            completed,
            total,
        )
    task = f"task {event['task']}{suffix}"
    if "withheld" in event:
        return f"{task}  {event['withheld']} of {event['rows']} rows are withheld to certify", 0, None
    if "epoch" in event:
        loss = f"  loss {event['loss']:.3f}" if "loss" in event else ""  # some methods have no loss
        epoch, epochs = event["epoch"], event["epochs"]
        return f"{task}  epoch {epoch}/{epochs}{loss}", epoch, epochs
    parts = [task, f"iteration {event['iteration']}", f"picked {event['picked']}"]
    parts += [f"criterion {percent(event['criterion'])}", f"errors {event['errors']}"]
    parts += [f"worst loss {event['worst_loss']:.3f}"] * isfinite(event["worst_loss"])
    return "  ".join(parts), 0, None


class Watcher:
    """An observer of a run; override the methods that you need."""

    def start(self, config: Any, stream: Any, records: list[dict[str, Any]]) -> None:
        """The run begins, or continues after the tasks of these records."""

    def note(self, sentence: str) -> None:
        """Something is known before the first task, such as the scale of the inputs."""

    def progress(self, event: dict[str, Any]) -> None:
        """One mP2L iteration or one epoch is done."""

    def task(self, record: dict[str, Any]) -> None:
        """One task is learned, measured and stored."""

    def finish(self, summary: dict[str, Any]) -> None:
        """The run is finished."""

    def close(self) -> None:
        """The run ended, finished or not."""


class Watchers:
    """Several watchers as one: every call goes to each of them. A with statement closes them."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell_all(*arguments: Any) -> None:
            for watcher in self._watchers:
                getattr(watcher, name)(*arguments)

        return tell_all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunView(Watcher):
    """A line per finished task and, on a terminal, a bar with the current task and the time left."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._view: Any = Lines(self._out)
        self._tasks, self._seconds, self._names = 0, list[float](), Names()

    def start(self, config: Any, stream: Any, records: list[dict[str, Any]]) -> None:
        """Print the configuration, and after which task the run continues."""
        self._tasks, self._seconds = len(stream), [record["seconds"] for record in records]
        self._names = Names.from_description(stream.description)
        names = [*self._names.tasks[:MOST_NAMED], *["..."] * (len(self._names.tasks) > MOST_NAMED)]
        order = f": {', '.join(names)}" if names else ""
        self._view.say(
            f"{config.method}, {certificate_text(config.method, config.holdout)}, on {config.stream} ({stream.scenario},"
            f" {count(len(stream), 'task')}{order}), {config.model}, memory {config.memory}, seed {config.seed}"
        )
        if records:
            self._view.say(self._names.with_names(f"continuing after task {records[-1]['task']}"))
        if self._out.isatty():
            self._view = Bar("starting", out=self._out)

    def note(self, sentence: str) -> None:
        self._view.say(sentence)

    def progress(self, event: dict[str, Any]) -> None:
        """Show the state of the current task."""
        tasks_left = self._tasks - len(self._seconds)
        time_left = f", about {duration(fmean(self._seconds) * tasks_left)} left" if self._seconds else ""
        self._view.show(*event_line(event, f"/{self._tasks}{self._names.task(event['task'])}{time_left}"))

    def task(self, record: dict[str, Any]) -> None:
        """Print mean accuracy, and the largest bound of the claim."""
        self._seconds.append(record["seconds"])
        kind, parts = record["kind"], [f"accuracy {measured_percent(fmean(record['accuracy']))}"]
        if bounds := {row["task"]: row["bounds"][kind] for row in record["tasks"] if kind in row["bounds"]}:
            largest = max(bounds, key=lambda task: bounds[task])
            bound = f"largest bound {percent(bounds[largest])} (task {largest})"
            parts.append("certificate not valid" if record["not_valid"] else bound)
        parts.append(duration(record["seconds"]))
        name = self._names.task(record["task"])
        self._view.say(f"task {record['task']}/{self._tasks}{name}  {', '.join(parts)}")

    def close(self) -> None:
        """Remove the bar, or print the last line."""
        self._view.close()
