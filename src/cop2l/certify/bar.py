"""The progress bar of `learn` on a terminal."""

from typing import Any

from cop2l.kernel.arithmetic import percent


class Bar:
    """One line: task, iteration, picked examples, worst loss, and the quantity that early stopping minimises."""

    def __init__(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True
        )
        self._line = self._progress.add_task("learning", total=None)
        self._progress.start()

    def __call__(self, event: dict[str, Any]) -> None:
        self._progress.update(
            self._line,
            description=(
                f"task {event['task']}  iteration {event['iteration']}  picked {event['picked']}  "
                f"worst loss {event['worst_loss']:.3f}  errors {event['errors']}  bound {percent(event['bound'])}"
            ),
        )

    def close(self) -> None:
        """Take the line off the terminal."""
        self._progress.stop()
