"""What is shown while `learn` goes on: a bar on a terminal or in a notebook, else plain lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from math import inf
from time import monotonic
from typing import Any

from cop2l.certify.fast import Progress
from cop2l.kernel.arithmetic import percent

PAUSE = 0.1
"""Seconds between two pictures in a notebook: thousands of them would keep the browser busy."""


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """A callable that is told of progress: the user's; if True, what fits here; if None, the same but for plain lines."""
    if callable(progress) or progress is False:
        yield progress or None
        return
    kind = Bar if sys.stderr.isatty() else Cell if in_notebook() else Lines
    if progress is None and kind is Lines:
        yield None
        return
    view = kind()
    try:
        yield view
    finally:
        view.close()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def line(event: dict[str, Any]) -> str:
    """An event in one line: task, iteration, picked examples, worst loss and what early stopping minimises; or the epoch."""
    if "epoch" in event:
        return f"task {event['task']}  epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.3f}"
    return (
        f"task {event['task']}  iteration {event['iteration']}  picked {event['picked']}  "
        f"worst loss {event['worst_loss']:.3f}  errors {event['errors']}  bound {percent(event['bound'])}"
    )


class Bar:
    """One line on a terminal, which goes away."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._line = self._progress.add_task("learning", total=None)
        self._progress.start()

    def __call__(self, event: dict[str, Any]) -> None:
        self._progress.update(self._line, description=line(event))

    def close(self) -> None:
        """Take the line off the terminal."""
        self._progress.stop()


class Cell:
    """A bar and a line under a notebook's cell, which change and stay; no widget is needed."""

    def __init__(self) -> None:
        from IPython.display import display

        self._event: dict[str, Any] | None = None
        self._drawn = -inf
        self._handle = display(self._shown(done=False), raw=True, display_id=True)

    def __call__(self, event: dict[str, Any]) -> None:
        self._event = event
        if monotonic() - self._drawn >= PAUSE:
            self._handle.update(self._shown(done=False), raw=True)
            self._drawn = monotonic()

    def close(self) -> None:
        """The last line stays, with a full bar."""
        self._handle.update(self._shown(done=True), raw=True)

    def _shown(self, *, done: bool) -> dict[str, str]:
        event = self._event or {}
        words = line(event) if event else "learning"
        # CoP2L does not know how many iterations it will take: until it is done its bar moves to and fro.
        share = (event["epoch"] / event["epochs"] if "epoch" in event else None) if not done else 1
        value = "" if share is None else f' value="{share:.3f}"'
        bar = f'<progress{value} style="width:12em;vertical-align:middle"></progress>'
        said = f'<span style="margin-left:1em;font-variant-numeric:tabular-nums">{escape(words)}</span>'
        return {"text/plain": words, "text/html": f"<div>{bar}{said}</div>"}


class Lines:
    """Lines on stderr, fewer and fewer: at steps 0, 1, 2, 4, 8, ..."""

    def __call__(self, event: dict[str, Any]) -> None:
        step = event.get("epoch", event.get("iteration", 0))
        if not step & (step - 1) or step == event.get("epochs"):
            print(line(event), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Every line stays."""
