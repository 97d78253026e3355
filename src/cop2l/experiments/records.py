"""The names of the files of a run directory, and the fields of a record and of the summary. Needs no torch.

The run writes these classes and the report reads them; docs/configuration.md explains the fields.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from cop2l.files import DamagedError, read_json, read_lines

CONFIG, ENVIRONMENT, RECORDS, SUMMARY = "config.json", "environment.json", "records.jsonl", "summary.json"
STATE, CERTIFICATES, AFTER = "state", "certificates", "after-"

T = TypeVar("T")
Rate = Annotated[float, (0, 1)]
Count = Annotated[int, (0, math.inf)]
COUNTS = ("prior", "n", "compression", "evicted", "errors", "picked", "errors_not_picked", "iterations")
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
    prior: Count | None = None
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
    def prior_examples(self) -> int | None:
        """The number of training-only examples; for other methods than CoP2L, all but the withheld ones."""
        return self.n if self.picked is None else self.prior

    @property
    def certified_on(self) -> int | None:
        """The number of examples that certify the claim."""
        return self.n if self.picked is not None else self.holdout.n if self.holdout else None


@dataclass(kw_only=True)
class Record:
    """A line of records.jsonl: the measurements and claims after a task."""

    task: Count
    withheld_errors: str | None = None
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

    def __post_init__(self) -> None:
        tasks = range(1, len(self.matrix) + 1)
        if not tasks or [len(row) for row in self.matrix] != [*tasks]:
            raise ValueError("its matrix is not a triangle")
        if [row.task for row in self.tasks] != [*tasks]:
            raise ValueError("its tasks are not those of its matrix")
        if any(claim["task"] not in (None, *tasks) for claim in self.claims):
            raise ValueError("it claims something of other tasks")


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


def decode_record(kind: type[T], value: Any, path: str | Path) -> T:
    """The JSON object of a file as an instance of a class; a field that does not fit is damage."""
    try:
        record: T = _typed(kind, value, "it")
    except (ValueError, OverflowError) as error:
        raise DamagedError(path, error) from None
    return record


def _typed(kind: Any, value: Any, name: str) -> Any:
    """A JSON value as a declared type; a ValueError names the field that does not fit."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        kinds = [part for part in parts if part is not NoneType]
        return _typed(next((k for k in kinds if type(value) is k), kinds[0]), value, name)
    if origin is Annotated:
        number, (low, high) = _typed(parts[0], value, name), parts[1]
        if not low <= number <= high:
            raise ValueError(f"{name!r} is not between {low} and {high}")
        return number
    if is_dataclass(kind) or is_typeddict(kind):
        return kind(**_fields(kind, value, name))
    if kind is float and type(value) is int:
        return float(value)
    if not (value in parts if origin is Literal else type(value) is (origin or kind)):
        raise ValueError(f"{name!r} is not of its type")
    if origin is list:
        return [_typed(parts[0], item, name) for item in value]
    return {key: _typed(parts[1], item, name) for key, item in value.items()} if origin is dict else value


def _fields(kind: Any, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r} is not an object")  # noqa: TRY004
    hints, required = _hints(kind)
    if missing := required - value.keys():
        raise ValueError(f"{min(missing)!r} is missing")
    if unknown := value.keys() - hints.keys():
        raise ValueError(f"{min(unknown)[:60]!r} is no documented field")
    return {key: _typed(hints[key], item, key) for key, item in value.items()}


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The type of each field, and the names of the required fields."""
    hints = get_type_hints(kind, include_extras=True)
    declared = fields(kind) if is_dataclass(kind) else ()
    optional = {f.name for f in declared if (f.default, f.default_factory) != (MISSING, MISSING)}
    return hints, frozenset(hints.keys() - optional)
