"""Feedback as people have it: one 0 or 1 per line, or CSV with a column `error`, or columns `predicted` and `label`."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from cop2l.errors import UserError
from cop2l.monitor.monitor import Monitor

FORMS = "give one 0 or 1 per line, or CSV with a column 'error', or with columns 'predicted' and 'label'"


def batches(lines: Iterable[str], monitor: Monitor, size: int | None = None) -> Iterator[list[int]]:
    """The batches of 0 and 1: a blank line ends one, or `size` examples do.

    Rows of other tasks, groups or classes than the monitor's are left out, where a column `task`, `group` or (for a claim
    about a class) `label` says what they are.
    """
    header: list[str] | None = None
    batch: list[int] = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in next(csv.reader([line.lstrip("\ufeff")]), [])]
        if not any(cells):
            if batch and size is None:
                yield batch
                batch = []
            continue
        if header is None:
            names = [cell.lower() for cell in cells]
            known = "error" in names or {"predicted", "label"} <= set(names)
            header = names if known else ["error"]
            if known:
                continue
        try:
            found = _error(dict(zip(header, cells, strict=True)), monitor)
        except ValueError as error:
            reason = error if isinstance(error, UserError) else f"it has {len(cells)} columns; {FORMS}."
            raise UserError(
                f"Line {number} of the feedback cannot be counted: {_after_colon(reason)}"
            ) from None
        batch += found
        if size is not None and len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def of_file(path: Path, monitor: Monitor, size: int | None = None, *, whole: bool = False) -> list[list[int]]:
    """All batches of a file, every line checked before the first is counted.

    whole: the file begins with what was counted already, which is left out; it must fit the counts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; {FORMS}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {FORMS}.") from None
    found = list(batches(text.splitlines(), monitor, size))
    if whole:
        every = [error for batch in found for error in batch]
        if len(every) < monitor.n or sum(every[: monitor.n]) != monitor.errors:
            raise UserError(
                f"{path} does not begin with the {monitor.n} examples and {monitor.errors} errors counted so far; "
                "give the log that they came from."
            )
        return list(_without(found, monitor.n))
    if not found:
        raise UserError(f"{path} has no feedback for this claim; {FORMS}.")
    return found


def _without(found: Iterable[list[int]], counted: int) -> Iterator[list[int]]:
    for batch in found:
        rest, counted = batch[counted:], max(0, counted - len(batch))
        if rest:
            yield rest


def _error(row: dict[str, str], monitor: Monitor) -> list[int]:
    """The error of a row; empty if it is not about the claim."""
    claim = monitor.statement
    family, task, subject = claim["family"], claim["task"], str(claim["subject"])
    if task and "task" in row and _number(row["task"]) != task:
        return []
    if family == "groups" and row.get("group", subject) != subject:
        return []
    if family == "classes" and row.get("label", subject) != subject:
        return []
    if "error" not in row:
        return [int(monitor.is_error(_number(row["predicted"]), _number(row["label"])))]
    if row["error"] not in ("0", "1"):
        raise UserError(f"an error is 0 or 1, not {row['error']!r}; {FORMS}.")
    return [int(row["error"])]


def _number(cell: str) -> int | str:
    return int(cell) if cell.removeprefix("-").isdecimal() else cell


def _after_colon(reason: object) -> str:
    text = str(reason)
    return text[0].lower() + text[1:]
