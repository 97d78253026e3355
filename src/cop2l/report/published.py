"""Published numbers from a file of the user; a table shows them beside the runs that they are about."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cop2l.errors import UserError, unknown
from cop2l.report.groups import Benchmark, Group
from cop2l.report.metric import METRICS, SCALES
from cop2l.report.runs import Run

NEEDED = ("stream", "tasks", "scenario", "model", "method", "metric", "value")
OPTIONAL = ("sd", "source")
"""Any further column is a key of the configuration: the number is about runs with the value of the cell, if it has one."""
MOST_DIGITS = 12


class Published(NamedTuple):
    """A published mean and its standard deviation, in the units of summaries, and where it was published."""

    mean: float
    sd: float | None
    source: str = ""


@dataclass(frozen=True)
class Row:
    """One published number, and which runs it is about."""

    where: str
    """The line of the file, for messages."""
    benchmark: Benchmark
    method: str
    metric: str
    settings: tuple[tuple[str, str], ...]
    number: Published

    def is_about(self, group: Group) -> bool:
        """Whether stream, tasks, scenario, model, method and settings are those of every run of a group."""
        if (self.benchmark, self.method) != (group.benchmark, group.method):
            return False
        return all(self._has(run, key, value) for run in group.runs for key, value in self.settings)

    def _has(self, run: Run, key: str, value: str) -> bool:
        settings = run.settings
        if key not in settings:
            raise UserError(
                f"The column {key} ({self.where}) is no key of the configuration of {run.folder};"
                " correct its name, or leave the cell empty."
            )
        setting = settings[key]
        if isinstance(setting, int | float) and not isinstance(setting, bool):
            return _float(value) == setting
        return value == (setting if isinstance(setting, str) else json.dumps(setting))


def read_published(path: str | Path) -> tuple[Row, ...]:
    """Read a CSV file of published numbers; docs/report.md describes its columns."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {path}; give published numbers as CSV, see docs/report.md.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            header, *table = [(lines.line_num, cells) for cells in lines if cells] or [(1, [])]
    except (csv.Error, UnicodeDecodeError):
        raise UserError(f"{path} is not readable as CSV; write it again as UTF-8 text.") from None
    names = [name.strip() for name in header[1]]
    if missing := [name for name in NEEDED if name not in names]:
        raise UserError(f"{path} has no column {missing[0]}; it needs {', '.join(NEEDED)}.")
    if len(set(names)) < len(names):
        raise UserError(f"{path} has two columns of one name; keep one of them.")
    return tuple(_row(f"line {number} of {path}", names, cells) for number, cells in table)


def _row(where: str, names: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(names):
        raise UserError(f"In {where} are {len(cells)} cells for {len(names)} columns; give it {len(names)}.")
    row = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    for name in NEEDED:
        if not row[name]:
            raise UserError(f"In {where} the column {name} is empty; fill it, or remove the line.")
    if row["metric"] not in METRICS:
        raise UserError(f"In {where}: {unknown('metric', row['metric'], METRICS)}")
    if not row["tasks"].isdecimal() or len(row["tasks"]) > MOST_DIGITS:
        raise UserError(f"In {where} the number of tasks is {row['tasks']!r}; give a whole number.")
    further = [name for name in names if name not in (*NEEDED, *OPTIONAL)]
    return Row(
        where,
        Benchmark(row["stream"], row["scenario"], row["model"], int(row["tasks"])),
        row["method"],
        row["metric"],
        tuple((name, row[name]) for name in further if row[name]),
        Published(
            _in_summary_unit(where, row, "value"),
            _in_summary_unit(where, row, "sd") if row.get("sd") else None,
            row.get("source", ""),
        ),
    )


def _in_summary_unit(where: str, row: Mapping[str, str], name: str) -> float:
    """A printed number in the unit of summaries, where rates are between 0 and 1."""
    number = _float(row[name])
    if number is None or abs(number) > 10**MOST_DIGITS or (name == "sd" and number < 0):
        raise UserError(f"In {where} the {name} is {row[name]!r}; give a number such as 95.12.")
    return round(number / float(SCALES[METRICS[row["metric"]].unit]), 6)


def _float(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def published(rows: Sequence[Row], group: Group, metric: str) -> Published | None:
    """The published number for a group of runs; two are an error."""
    matches = [row for row in rows if row.metric == metric and row.is_about(group)]
    if len(matches) > 1:
        raise UserError(
            f"The {metric} of {group.method} on {group.benchmark.stream} stands in {matches[0].where} and in"
            f" {matches[1].where}; remove one, or add a column for the setting that tells them apart."
        )
    return matches[0].number if matches else None


def sources(numbers: Sequence[Published]) -> str:
    """The sources of numbers, for a sentence; empty if the file names none."""
    return "; ".join(dict.fromkeys(number.source for number in numbers if number.source))
