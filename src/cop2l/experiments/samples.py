"""Examples from a user's file, for a learner that is already there: inputs, and labels where there are any."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError
from cop2l.streams import files, from_arrays
from cop2l.streams.task import Task
from cop2l.streams.text import SIZE

KINDS = ".npz (arrays x and y), .npy, .csv or .parquet"


Read = tuple[np.ndarray, np.ndarray | None, Any]
"""Inputs, labels or None, groups or None."""


class Columns(NamedTuple):
    """The columns of a table: labels, groups, inputs (none named: all others), which of them are text; the classes' names."""

    label: str = "label"
    group: str | None = None
    inputs: Sequence[str] = ()
    text: Sequence[str] = ()
    text_size: int = SIZE
    names: Sequence[str] = ()


USUAL = Columns()


def read(path: str | Path, classes: int, chosen: Columns = USUAL) -> tuple[Any, Any, Any]:
    """Inputs as models take them, class numbers or None, and groups or None; labels count the model's outputs from 0.

    Groups are no input; an .npz file has an array `group`.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {path}; give examples as {KINDS}.")
    reader = {".npz": _npz, ".npy": _npy, ".csv": _table, ".parquet": _table}.get(path.suffix)
    if reader is None:
        raise UserError(f"{path} is not a kind of file that is known; give examples as {KINDS}.")
    x, y, groups = reader(path, chosen)
    x = np.atleast_1d(x)  # a single number has no rows: refused below
    if y is not None and y.dtype.kind not in "biuf":
        y = _numbered(path, y, chosen)
    given = np.zeros(len(x), np.int64) if y is None else y
    # The first example doubles as the test part, which nobody reads.
    task: Task = from_arrays(x, given, x[:1], given[:1], name=str(path), classes=classes, tasks=1)[0]
    return task.x, None if y is None else task.y, groups


def _npz(path: Path, chosen: Columns) -> Read:  # noqa: ARG001
    found = files.arrays(path)
    if "x" not in found:
        raise UserError(f"{path} has no array x; it has: {', '.join(found)}.")
    return found["x"], found.get("y"), found.get("group")


def _npy(path: Path, chosen: Columns) -> Read:  # noqa: ARG001
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False), None, None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a readable .npy file; write it again.") from error


def _table(path: Path, chosen: Columns) -> Read:
    columns = files.Columns(
        chosen.label,
        [*chosen.inputs] or None,
        chosen.text,
        chosen.text_size,
        None,
        chosen.group,
        needed=False,
    )
    part = files.from_table(files.table([path]), path, columns)
    return part.x, None if part.y is None else part.y.astype(str), part.groups


def _numbered(path: Path, labels: np.ndarray, chosen: Columns) -> np.ndarray:
    """Labels as class numbers: a name has its place among the classes' names."""
    places = {name: float(place) for place, name in enumerate(chosen.names)}
    try:
        return np.array([places[label] if label in places else float(label) for label in map(str, labels)])
    except ValueError:
        strange = next(label for label in map(str, labels) if label not in places)
        known = f"the classes are {', '.join(places)}" if places else "the names of the classes are not known"
        raise UserError(
            f"{path} has the label {strange!r}, and {known}; list them all in order with --names, or choose another"
            " column with --label."
        ) from None
