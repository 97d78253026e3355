"""Examples from a user's file, for a learner that is already there: inputs, and labels where there are any."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError, missing_extra
from cop2l.streams import from_arrays
from cop2l.streams.task import Task

KINDS = ".npz (arrays x and y), .npy, .csv or .parquet"


Read = tuple[np.ndarray, np.ndarray | None, Any]
"""Inputs, labels or None, groups or None."""


def read(
    path: str | Path, classes: int, label: str = "label", group: str | None = None, more: str = ""
) -> tuple[Any, Any, Any]:
    """Inputs as models take them, class numbers or None, and groups or None; labels count the model's outputs from 0.

    `group` names the column of groups, which is no input; an .npz file has an array `group`. `more` is what to do if there are
    more classes.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {path}; give examples as {KINDS}.")
    reader = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".parquet": _parquet}.get(path.suffix)
    if reader is None:
        raise UserError(f"{path} is not a kind of file that is known; give examples as {KINDS}.")
    x, y, groups = reader(path, label, group)
    given = np.zeros(len(x), np.int64) if y is None else y
    if more and given.dtype.kind in "iuf" and len(given) and (last := given.max()) >= classes:
        raise UserError(
            f"{path} has the label {last:g}, and the model has the classes 0 to {classes - 1}; {more.format(int(last))}."
        )
    # The first example doubles as the test part, which nobody reads.
    task: Task = from_arrays(x, given, x[:1], given[:1], name=str(path), classes=classes, tasks=1)[0]
    return task.x, None if y is None else task.y, groups


def _npz(path: Path, label: str, group: str | None) -> Read:  # noqa: ARG001
    arrays = _loaded(path)
    if "x" not in arrays:
        raise UserError(f"{path} has no array x; it has: {', '.join(arrays)}.")
    return arrays["x"], arrays.get("y"), arrays.get("group")


def _npy(path: Path, label: str, group: str | None) -> Read:  # noqa: ARG001
    return _loaded(path), None, None


def _loaded(path: Path) -> Any:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            return dict(content)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a readable file of plain arrays; write it again.") from error


def _csv(path: Path, label: str, group: str | None) -> Read:
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    if any(len(row) != len(names) for row in rows):
        raise UserError(f"{path} has lines of different lengths; give every line {len(names)} values.")
    return _columns(path, {name: [row[i] for row in rows] for i, name in enumerate(names)}, label, group)


def _parquet(path: Path, label: str, group: str | None) -> Read:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading Parquet files") from None
    try:
        return _columns(path, parquet.read_table(path).to_pydict(), label, group)
    except ArrowException as error:
        raise UserError(f"{path} is not a readable Parquet file; write it again.") from error


def _columns(path: Path, columns: dict[str, list[Any]], label: str, group: str | None) -> Read:
    labels, groups = columns.pop(label, None), columns.pop(group, None) if group else None
    try:
        x = np.array(list(columns.values()), np.float32).T
        return x, None if labels is None else np.array([float(value) for value in labels]), groups
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} must hold numbers, and whole numbers in the column {label!r}; name another with --label."
        ) from error
