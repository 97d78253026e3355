"""The files of a run directory: their names, and what a record and the summary hold. Needs no torch.

The run writes these classes, `verify` compares them with the certificates, and the report reads them;
docs/configuration.md says what each field means.
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
"""What a certificate of CoP2L counts of a task."""
WHERE_GIVEN = ("test_groups", "holdout")
"""Fields of a task that are left out where there is no such thing."""


class Statement(TypedDict):
    """A claim beside the bound of each task, as the certificate makes it."""

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
    """One task after the newest one was learned; a count that does not apply to the method is None."""

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
        """How many examples were trained on and do not certify: for other methods than CoP2L, all but the withheld ones."""
        return self.n if self.picked is None else self.prior

    @property
    def certified_on(self) -> int | None:
        """How many examples the claim is made of."""
        return self.n if self.picked is not None else self.holdout.n if self.holdout else None


@dataclass(kw_only=True)
class Record:
    """A line of records.jsonl: what was measured and claimed after a task."""

    task: Count
    wrong: str | None = None
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
    numbers_stored: Count | None = None
    """Of collected runs: how many numbers were kept beside the examples."""


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
        known = range(1, len(self.matrix) + 1)
        if not known or [len(row) for row in self.matrix] != [*known]:
            raise ValueError("its matrix is not a triangle")
        if [row.task for row in self.tasks] != [*known]:
            raise ValueError("its tasks are not those of its matrix")
        if any(one["task"] not in (None, *known) for one in self.claims):
            raise ValueError("it claims something of other tasks")


def as_json(value: Record | Summary) -> dict[str, Any]:
    """A record or a summary as it is written."""
    found = asdict(value)
    found.pop("numbers_stored", None)
    for row in found["tasks"]:
        for name in WHERE_GIVEN:
            if not row[name]:
                del row[name]
    return found


def read_records(folder: Path) -> list[Record]:
    """The records of a run directory; none before its first task is finished."""
    path = folder / RECORDS
    return [decode_record(Record, line, path) for line in read_lines(path)]


def read_summary(folder: Path) -> Summary:
    """The summary of a finished run."""
    return decode_record(Summary, read_json(folder / SUMMARY), folder / SUMMARY)


def decode_record(kind: type[T], value: Any, path: str | Path) -> T:
    """What a JSON object of a file says, as a class declares it; anything else is damage."""
    try:
        made: T = _typed(kind, value, "it")
    except (ValueError, OverflowError) as error:
        raise DamagedError(path, error) from None
    return made


def _typed(kind: Any, value: Any, name: str) -> Any:
    """A JSON value as a declared type; a ValueError names the field that is none."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        kinds = [part for part in parts if part is not NoneType]
        return _typed(next((k for k in kinds if type(value) is k), kinds[0]), value, name)
    if origin is Annotated:
        found, (low, high) = _typed(parts[0], value, name), parts[1]
        if not low <= found <= high:
            raise ValueError(f"{name!r} is not between {low} and {high}")
        return found
    if is_dataclass(kind) or is_typeddict(kind):
        return kind(**_fields(kind, value, name))
    if kind is float and type(value) is int:
        return float(value)
    good = value in parts if origin is Literal else type(value) is (origin or kind)
    if not good:
        raise ValueError(f"{name!r} is not of its type")
    if origin is list:
        return [_typed(parts[0], item, name) for item in value]
    return {key: _typed(parts[1], item, name) for key, item in value.items()} if origin is dict else value


def _fields(kind: Any, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name!r} is not an object")  # noqa: TRY004
    hints, needed = _hints(kind)
    if missing := needed - value.keys():
        raise ValueError(f"{min(missing)!r} is missing")
    if unknown := value.keys() - hints.keys():
        raise ValueError(f"{min(unknown)[:60]!r} is no documented field")
    return {key: _typed(hints[key], item, key) for key, item in value.items()}


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The type of each field, and the fields that must be there."""
    hints = get_type_hints(kind, include_extras=True)
    declared = fields(kind) if is_dataclass(kind) else ()
    given = {f.name for f in declared if (f.default, f.default_factory) != (MISSING, MISSING)}
    return hints, frozenset(hints.keys() - given)
