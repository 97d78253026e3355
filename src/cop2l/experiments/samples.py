"""Examples from a user's file, for a learner that is already there: inputs, and labels where there are any."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams import from_arrays
from cop2l.streams.files import arrays
from cop2l.streams.task import Task
from cop2l.streams.text import SIZE, hashed

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


def read(path: str | Path, classes: int, chosen: Columns = USUAL, more: str = "") -> tuple[Any, Any, Any]:
    """Inputs as models take them, class numbers or None, and groups or None; labels count the model's outputs from 0.

    Groups are no input; an .npz file has an array `group`. `more` is what to do if there are more classes.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {path}; give examples as {KINDS}.")
    reader = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".parquet": _parquet}.get(path.suffix)
    if reader is None:
        raise UserError(f"{path} is not a kind of file that is known; give examples as {KINDS}.")
    x, y, groups = reader(path, chosen)
    x = np.atleast_1d(x)  # a single number has no rows: refused below
    if y is not None and y.dtype.kind not in "biuf":
        y = _numbered(path, y, chosen)
    given = np.zeros(len(x), np.int64) if y is None else y
    if more and given.dtype.kind in "iuf" and len(given) and (last := given.max()) >= classes:
        raise UserError(
            f"{path} has the label {last:g}, and the model has the classes 0 to {classes - 1}; {more.format(int(last))}."
        )
    # The first example doubles as the test part, which nobody reads.
    task: Task = from_arrays(x, given, x[:1], given[:1], name=str(path), classes=classes, tasks=1)[0]
    return task.x, None if y is None else task.y, groups


def _npz(path: Path, chosen: Columns) -> Read:  # noqa: ARG001
    found = arrays(path)
    if "x" not in found:
        raise UserError(f"{path} has no array x; it has: {', '.join(found)}.")
    return found["x"], found.get("y"), found.get("group")


def _npy(path: Path, chosen: Columns) -> Read:  # noqa: ARG001
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False), None, None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a readable .npy file; write it again.") from error


def _csv(path: Path, chosen: Columns) -> Read:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin it with a mark
            names, *rows = [line for line in csv.reader(file) if line] or [[]]
    except (csv.Error, UnicodeDecodeError):
        raise UserError(f"{path} is not readable as CSV; write it again as UTF-8 text.") from None
    if any(len(row) != len(names) for row in rows):
        raise UserError(f"{path} has lines of different lengths; give every line {len(names)} values.")
    return _columns(path, {name: [row[i] for row in rows] for i, name in enumerate(names)}, chosen)


def _parquet(path: Path, chosen: Columns) -> Read:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading Parquet files") from None
    try:
        return _columns(path, parquet.read_table(path).to_pydict(), chosen)
    except ArrowException as error:
        raise UserError(f"{path} is not a readable Parquet file; write it again.") from error


def _columns(path: Path, columns: dict[str, list[Any]], chosen: Columns) -> Read:
    labels = columns.pop(chosen.label, None)
    groups = columns.pop(chosen.group, None) if chosen.group else None
    names = (
        [*chosen.inputs, *(name for name in chosen.text if name not in chosen.inputs)]
        if chosen.inputs
        else [*columns]
    )
    if strange := [name for name in (*names, *chosen.text) if name not in columns]:
        raise UserError(f"{path} has no column {strange[0]!r} of inputs; it has: {', '.join(columns)}.")
    try:
        parts = [
            hashed(columns[name], chosen.text_size) if name in chosen.text else _rows(columns[name])
            for name in names
        ]
        x = np.concatenate(parts, axis=1)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} must hold numbers in its columns of inputs; name the column of labels with --label, those of inputs with"
            " --columns, and those of text with --text."
        ) from error
    return x, None if labels is None else np.array([str(value) for value in labels]), groups


def _rows(column: Sequence[Any]) -> np.ndarray:
    """A column of numbers, or of arrays, as one row per example."""
    values = np.array(column, np.float32)
    return values if values.ndim > 1 else values[:, None]


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
