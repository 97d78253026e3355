"""The names of the files of a run directory, and the fields of a record and of the summary. Needs no torch.

The run writes these classes and the report reads them; docs/configuration.md explains the fields.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from cop2l.files import DamagedError, read_json, read_lines

CONFIG, ENVIRONMENT, RECORDS, SUMMARY = "config.json", "environment.json", "records.jsonl", "summary.json"
STATE, CERTIFICATES, AFTER = "state", "certificates", "after-"

T = TypeVar("T", "Record", "Summary")
Rate = float
Count = int
COUNTS = ("n", "compression", "evicted", "errors", "picked", "errors_not_picked", "iterations")
"""The counts of a task in a certificate of CoP2L."""
LEFT_OUT_IF_EMPTY = ("test_groups", "holdout")


class Statement(TypedDict):
    """A claim of a certificate beside the bounds of the tasks."""

    family: Literal["average", "forgetting", "classes", "groups"]
    task: Count | None
    subject: str | int | None
    kind: str
    value: Rate


@dataclass(kw_only=True)
class Withheld:
    """How many examples were withheld from learning, and how many of them are misclassified."""

    n: Count
    errors: Count


@dataclass(kw_only=True)
class TaskRow:
    """One task, measured after the newest one; a count that does not apply to the method is None."""

    task: Count
    n: Count | None = None
    compression: Count | None = None
    evicted: Count | None = None
    errors: Count | None = None
    picked: Count | None = None
    errors_not_picked: Count | None = None
    iterations: Count | None = None
    bounds: dict[str, Rate] = field(default_factory=dict)
    test_error: Rate | None = None
    test_n: Count | None = None
    test_groups: dict[str, Rate] = field(default_factory=dict)
    holdout: Withheld | None = None

    @property
    def certified_on(self) -> int | None:
        """The number of examples that certify the claim."""
        return self.n if self.picked is not None else self.holdout.n if self.holdout else None


@dataclass(kw_only=True)
class Record:
    """A line of records.jsonl: the measurements and claims after a task."""

    task: Count
    accuracy: list[Rate]
    classes: dict[str, Rate] = field(default_factory=dict)
    kind: str | None = None
    claims: list[Statement] = field(default_factory=list)
    not_valid: list[str] = field(default_factory=list)
    tasks: list[TaskRow]
    seconds: float = 0.0
    learn_seconds: float = 0.0
    peak_memory: Count | None = None
    peak_cuda_allocated: Count | None = None
    peak_cuda_reserved: Count | None = None
    total_cuda_allocated: float | None = None
    memory_used: Count | None = None


@dataclass(kw_only=True)
class Summary:
    """summary.json: a function of the records and the configuration."""

    accuracy: Rate
    forgetting: float | None
    plasticity: Rate
    seconds: float
    tasks: list[TaskRow]
    matrix: list[list[Rate]]
    """matrix[s-1][t-1] is the accuracy on task t after task s."""
    method: str
    stream: str
    scenario: str
    model: str
    seed: Count
    memory: Count
    delta: float | None
    kind: str | None
    claims: list[Statement] = field(default_factory=list)
    not_valid: list[str]
    sentences: list[str] = field(default_factory=list)
    task_names: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)


def as_json(value: Record | Summary) -> dict[str, Any]:
    """A record or a summary as it is written."""
    content = asdict(value)
    for row in content["tasks"]:
        for name in LEFT_OUT_IF_EMPTY:
            if not row[name]:
                del row[name]
    return content


def read_records(folder: Path) -> list[Record]:
    """The records of a run directory."""
    path = folder / RECORDS
    return [decode_record(Record, line, path) for line in read_lines(path)]


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run."""
    return decode_record(Summary, read_json(folder / SUMMARY), folder / SUMMARY)


def decode_record(kind: type[T], content: Mapping[str, Any], path: str | Path) -> T:
    """The JSON object of a file as a record or a summary; another form is damage."""
    try:
        tasks = [
            TaskRow(**{**row, "holdout": Withheld(**row["holdout"]) if "holdout" in row else None})
            for row in content["tasks"]
        ]
        return kind(**{**content, "tasks": tasks})
    except (TypeError, KeyError, ValueError) as error:
        raise DamagedError(path, f"not in the form of this version: {error}") from None
