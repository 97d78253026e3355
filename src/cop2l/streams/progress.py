"""What a person sees of long work: sentences and a bar on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def say(sentence: str) -> None:
    """One line on stderr: nothing is downloaded or decoded at length in silence."""
    print(sentence, file=sys.stderr, flush=True)


class ProgressBar:
    """A bar on a terminal, nothing elsewhere; pooch drives it as it would drive its own."""

    def __init__(self, label: str, total: int | None = None, *, size: bool = False) -> None:
        self.total = total
        self.done = 0
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = _rich(size, total is not None)
            self._task = self._bar.add_task(label, total=total)
            self._bar.start()

    def update(self, amount: int = 1) -> None:
        """So much more is done."""
        self.done += amount
        if self._bar:
            self._bar.update(self._task, completed=self.done, total=self.total or None)

    def reset(self) -> None:
        """Start counting again."""
        self.done = 0

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()
            self._bar = None


@contextmanager
def bar(label: str, total: int | None = None, *, size: bool = False) -> Iterator[ProgressBar]:
    """A bar that is closed whatever happens; without a total it only shows that time passes."""
    shown = ProgressBar(label, total, size=size)
    try:
        yield shown
    finally:
        shown.close()


def _rich(size: bool, counted: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    amount = (DownloadColumn(),) if size else (MofNCompleteColumn(),) if counted else ()
    columns = ("{task.description}", BarColumn(), *amount, TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
