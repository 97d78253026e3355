"""What a person sees of an extraction: a bar with its rate on a terminal, a line per tenth elsewhere."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cop2l.features.extraction import Progress
from cop2l.streams.progress import say


@contextmanager
def watched() -> Iterator[Progress]:
    """A progress callable for `extract`."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    bar = _bar()
    rows: dict[str, Any] = {}

    def progress(state: Mapping[str, Any]) -> None:
        part, rate = state["part"], f"{state['rate']:.0f} pictures/s"
        if part not in rows:
            rows[part] = bar.add_task(part, total=state["total"], rate=rate)
            bar.start()
        bar.update(rows[part], completed=state["done"], rate=rate)

    try:
        yield progress
    finally:
        bar.stop()


def _lines() -> Progress:
    said: set[tuple[str, int]] = set()

    def progress(state: Mapping[str, Any]) -> None:
        tenth = (state["part"], 10 * state["done"] // state["total"])
        if tenth not in said:
            said.add(tenth)
            say(
                f"{state['part']}: {state['done']} of {state['total']}, {state['rate']:.0f} pictures per second"
            )

    return progress


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        "{task.fields[rate]}",
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
