"""Files of feedback: one 0 or 1 per line, or CSV with a column `error`, or columns `predicted` and `label`."""

import csv
from itertools import chain
from pathlib import Path

from cop2l.errors import UserError
from cop2l.monitor.monitor import Monitor

FORMS = "give one 0 or 1 per line, or CSV with a column 'error', or with columns 'predicted' and 'label'"

COLUMNS = {"error", "predicted", "label", "task", "group"}


def read_feedback(
    path: Path, monitor: Monitor, size: int | None = None, *, includes_counted: bool = False
) -> list[list[int]]:
    """The batches of 0 and 1 in a file, every line checked: a blank line ends a batch, or `size` examples do.

    Rows about another task, group or class than the monitor's are left out; columns `task`, `group` and (for a claim about
    a class) `label` say what a row is about. includes_counted: the file begins with the examples that were counted before;
    they must agree with the counts, and are left out.
    """
    batches = _read_batches(path, monitor)
    if includes_counted:
        _remove_counted(batches, monitor, path)
    elif not any(batches):
        raise UserError(f"{path} has no feedback for this claim; {FORMS}.")
    if size is not None:
        errors = list(chain(*batches))
        batches = [errors[start : start + size] for start in range(0, len(errors), size)]
    return [batch for batch in batches if batch]


def has_inputs(path: Path) -> bool:
    """Whether a CSV file has columns beside the feedback."""
    with path.open(encoding="utf-8-sig") as lines:
        return path.suffix == ".csv" and not {*next(csv.reader(lines), ())} <= COLUMNS


def _read_batches(path: Path, monitor: Monitor) -> list[list[int]]:
    """The errors of the file's rows about the claim; a blank line begins another batch."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); {FORMS}.") from None
    header: list[str] | None = None
    batches: list[list[int]] = [[]]
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in next(csv.reader([line]), [])]
        if not any(cells):
            batches.append([])
            continue
        if header is None:
            header = [cell.lower() for cell in cells]
            if "error" in header or {"predicted", "label"} <= set(header):
                if len({*header}) < len(header):
                    raise UserError(f"{path} has two columns of one name; remove one of them.")
                continue
            header = ["error"]
        try:
            if len(cells) != len(header):
                raise UserError(f"It has {len(cells)} columns; {FORMS}.")
            batches[-1] += _errors(dict(zip(header, cells, strict=True)), monitor)
        except UserError as error:
            raise UserError(f"Line {number} of {path} cannot be counted: {error}") from None
    return batches


def _remove_counted(batches: list[list[int]], monitor: Monitor, path: Path) -> None:
    """Remove the first examples, which must be those that the monitor has counted."""
    counted = list(chain(*batches))[: monitor.n]
    if (len(counted), sum(counted)) != (monitor.n, monitor.errors):
        raise UserError(
            f"{path} does not begin with the {monitor.n} examples and {monitor.errors} errors counted so far; "
            "give the log that they came from."
        )
    for batch in batches:
        first = min(len(batch), len(counted))
        del batch[:first], counted[:first]


def _errors(row: dict[str, str], monitor: Monitor) -> list[int]:
    """The error of a row; empty if the row is not about the claim."""
    family, task, subject = (monitor.statement[name] for name in ("family", "task", "subject"))
    if task and "task" in row and monitor.names.task_number(row["task"]) != task:
        return []
    column = {"groups": "group", "classes": "label"}.get(family, "")
    if column in row:
        cell = row[column]
        row_subject = monitor.names.class_number(cell) if family == "classes" else cell
        if str(row_subject) != str(subject):
            return []
    if "error" not in row:
        cells = (row[name] if monitor.names.classes else _label(row[name]) for name in ("predicted", "label"))
        return [int(monitor.is_error(*cells))]
    if row["error"] not in ("0", "1"):
        raise UserError(f"An error is 0 or 1, not {row['error']!r}; {FORMS}.")
    return [int(row["error"])]


def _label(cell: str) -> int | str:
    """A class number if the cell is one, else a name."""
    return int(cell) if cell.isdecimal() and str(int(cell)) == cell else cell
