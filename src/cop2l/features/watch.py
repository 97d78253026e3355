"""What a person sees of an extraction: a bar with its rate on a terminal, a line per tenth elsewhere."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cop2l.features.extraction import Progress
from cop2l.streams.progress import bar, say


@contextmanager
def watched() -> Iterator[Progress]:
    """A progress callable for `extract`."""
    with bar("pictures") as shown:
        tenths = -1

        def progress(state: Mapping[str, Any]) -> None:
            nonlocal tenths
            shown.total, shown.done = state["total"], state["done"]
            shown.update(0)
            tenth = 10 * state["done"] // state["total"]
            if not sys.stderr.isatty() and tenth != tenths:
                tenths = tenth
                say(
                    f"{state['part']}: {state['done']} of {state['total']}, {state['rate']:.0f} pictures per second"
                )

        yield progress
