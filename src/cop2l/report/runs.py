"""Run directories, read and checked: what is finished becomes a Run, what is not becomes a sentence."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cop2l.errors import UserError
from cop2l.files import (
    MOST_JSON,
    MOST_LINES,
    DamagedError,
    numbered,
    parse,
    read_bytes,
    read_json,
    read_lines,
)
from cop2l.kernel.form import TEXT_FILE

NOT_TASKS = ("average", "forgetting", "classes", "groups")
SUMMARY, RECORDS = "summary.json", "records.jsonl"
MARKS_OF_A_RUN = ("config.json", RECORDS, SUMMARY)


@dataclass(frozen=True)
class TaskRecord:
    """What a finished run says about one task; counts that do not apply are None."""

    task: int
    n: int | None
    test_error: float | None
    bounds: dict[str, float]
    prior: int | None = None
    compression: int | None = None
    evicted: int | None = None
    errors: int | None = None
    picked: int | None = None
    missed: int | None = None
    iterations: int | None = None
    test_n: int | None = None
    """How many test examples the test error is of."""
    withheld: int | None = None
    """How many examples the hold-out bound is of."""
    groups: dict[str, float] = field(default_factory=dict)
    """The test error of each group, where there are groups."""

    @property
    def trained_freely(self) -> int | None:
        """How many examples were learned from without a price: for other methods than CoP2L, all but the withheld ones."""
        return self.n if self.picked is None else self.prior

    @property
    def certified_on(self) -> int | None:
        """How many examples the claim is made of."""
        return self.withheld if self.picked is None else self.n


@dataclass(frozen=True)
class Step:
    """One mP2L iteration: a line of trace.jsonl."""

    task: int
    iteration: int
    bound: float
    picked: int | None = None
    errors: int | None = None


@dataclass(frozen=True)
class Run:
    """One finished run directory."""

    folder: Path
    method: str
    stream: str
    scenario: str
    model: str
    seed: int
    delta: float | None
    kind: str | None
    not_valid: tuple[str, ...]
    accuracy: float
    forgetting: float | None
    plasticity: float
    seconds: float
    matrix: tuple[tuple[float, ...], ...]
    """matrix[s-1][t-1] is the accuracy on task t after task s."""
    tasks: tuple[TaskRecord, ...]
    classes: tuple[dict[int, float], ...]
    """classes[s-1] maps a class to its accuracy after task s; may be empty."""
    peak_memory: float | None
    trace: tuple[Step, ...]
    config: dict[str, Any]
    environment: dict[str, Any]
    certificate: Path | None
    """The newest certificate's folder."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """How the certificate says that its data can be had again."""
    notes: tuple[str, ...] = ()
    """What is odd about this run and does not keep it out of the tables."""
    peak_cuda_allocated: float | None = None
    peak_cuda_reserved: float | None = None
    claims: tuple[dict[str, Any], ...] = ()
    """What is claimed beside the bound of each task: family, task, subject, kind and value."""
    task_cuda_allocated: float | None = None
    """The bytes of all allocations of a task, whether freed or not; mean over tasks."""
    memory_used: float | None = None
    """How many examples were kept, at most."""
    numbers_stored: float | None = None
    """How many numbers were kept beside the model and the examples, at most."""

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration with the keys of its tables (options, data, ...) beside the others, by their bare names if free."""
        flat: dict[str, Any] = {}
        for key, value in self.config.items():
            if isinstance(value, Mapping):
                flat |= {
                    inner if inner not in self.config else f"{key}.{inner}": v for inner, v in value.items()
                }
            else:
                flat[key] = value
        return flat


@dataclass(frozen=True)
class LeftOut:
    """A run directory that cannot be counted, and why, in one sentence."""

    folder: Path
    state: str
    sentence: str


@dataclass(frozen=True)
class Found:
    """Everything that was found under the paths a user gave."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...] = ()

    def finished(self) -> tuple[Run, ...]:
        """The finished runs; an error if there is none."""
        if not self.runs:
            raise UserError("None of these runs is finished; finish one first.")
        return self.runs


def find(paths: Iterable[str | Path]) -> Found:
    """Read every run directory among the paths and below them, and every file of collected runs."""
    found: dict[Path, None] = {}
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"There is nothing at {path}; give run directories, or a folder that holds some.")
        below = list(folders(path))
        collected = [] if below else [file for file in _files(path) if _is_collection(file)]
        if not below and not collected:
            raise UserError(f"{path} holds no run directory; 'cop2l run' makes one.")
        found.update(dict.fromkeys(below))
        files.update(dict.fromkeys(collected))
    results = [read(folder) for folder in _once(found)]
    results += [result for file in _once(files) for result in collection(file)]
    return Found(
        tuple(r for r in results if isinstance(r, Run)), tuple(r for r in results if isinstance(r, LeftOut))
    )


def read(folder: str | Path, summary: dict[str, Any] | None = None) -> Run | LeftOut:
    """One run directory; `summary` is that of a run which is not finished and is shown as it stands."""
    folder = Path(folder)
    try:
        if summary is None and not (folder / SUMMARY).exists():
            return LeftOut(folder, "unfinished", _unfinished(folder))
        return _run(folder, summary)
    except DamagedError as damage:
        words = f"{damage.path.name} ({damage.reason})"
        return LeftOut(
            folder, "damaged", f"{folder} is damaged: {words}; delete it and run its command again."
        )
    except UserError as error:
        return LeftOut(folder, "damaged", str(error))
    except OSError as error:
        reason = error.strerror or error
        return LeftOut(
            folder, "damaged", f"{folder} cannot be read ({reason}); check its permissions and files."
        )


def collection(file: Path) -> list[Run | LeftOut]:
    """The runs of a file of collected runs: one finished run per line, without weights."""
    results: list[Run | LeftOut] = []
    try:
        for line in _plain_lines(file):
            where = Path(str(line.get("folder", file)))
            parts = [line.get(part) for part in ("summary", "config", "environment")]
            records = line.get("records")
            if not all(isinstance(part, dict) for part in parts) or not isinstance(records, list):
                raise DamagedError(file, "a line lacks summary, config, environment or records")
            summary, config, environment = (dict(part) for part in parts if part is not None)
            results.append(_assembled(where, summary, config, environment, records))
    except DamagedError as damage:
        words = damage.reason if damage.path == file else f"{damage.path.name} ({damage.reason})"
        results.append(LeftOut(file, "damaged", f"{file} is damaged: {words}; collect it again."))
    return results


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.glob("*.jsonl") if file.is_file())


def _is_collection(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return file.suffix == ".jsonl" and '"summary"' in lines.readline(MOST_LINES)


def folders(path: Path) -> Iterator[Path]:
    """The run directories at a path and below it."""
    if not path.is_dir():
        return
    if any((path / name).is_file() for name in MARKS_OF_A_RUN):
        yield path
        return
    for child in sorted(path.iterdir()):
        if not child.name.startswith("."):
            yield from folders(child)


def _once(folders: Iterable[Path]) -> list[Path]:
    """The same directory under two names counts once."""
    return list({folder.resolve(): folder for folder in folders}.values())


def _unfinished(folder: Path) -> str:
    """The sentence for a directory without summary.json."""
    records = folder / RECORDS
    # A last line without its end is being written at this moment, or was cut short.
    done = read_bytes(records, MOST_LINES).count(b"\n") if records.exists() else 0
    count = f"{done} task{'s' if done != 1 else ''} recorded so far" if done else "no task recorded yet"
    return f"{folder} is not finished ({count}); run its command again to continue."


def _run(folder: Path, summary: dict[str, Any] | None) -> Run:
    summary, config = summary or read_json(folder / SUMMARY), read_json(folder / "config.json")
    environment = read_json(folder / "environment.json") if (folder / "environment.json").exists() else {}
    notes: list[str] = []
    records = read_lines(folder / RECORDS)
    run = _assembled(folder, summary, config, environment, records)
    trace = _trace(folder / "trace.jsonl", records, notes)
    certificate = _certificate(folder)
    recipe = _recipe(certificate) if certificate else {}
    return replace(run, trace=trace, certificate=certificate, recipe=recipe, notes=tuple(notes))


def _assembled(
    folder: Path,
    summary: dict[str, Any],
    config: dict[str, Any],
    environment: dict[str, Any],
    records: list[dict[str, Any]],
) -> Run:
    """A run from what its files hold; the trace and the certificate are added where there are files."""
    read_summary = _Reader(summary, SUMMARY)
    matrix = tuple(tuple(_rate(a, SUMMARY, "matrix") for a in row) for row in read_summary.rows("matrix"))
    if not matrix or any(len(row) != s for s, row in enumerate(matrix, 1)):
        raise DamagedError(SUMMARY, "its matrix is not a triangle")
    tasks = tuple(_task(item) for item in read_summary.rows("tasks", dict))
    if [task.task for task in tasks] != list(range(1, len(matrix) + 1)):
        raise DamagedError(SUMMARY, "its tasks are not those of its matrix")
    if len(records) != len(matrix):
        raise DamagedError(RECORDS, f"{len(records)} lines for {len(matrix)} tasks")
    forgetting = summary.get("forgetting")
    return Run(
        folder=folder,
        method=read_summary.text("method"),
        stream=read_summary.text("stream"),
        scenario=read_summary.text("scenario"),
        model=read_summary.text("model"),
        seed=read_summary.count("seed"),
        delta=read_summary.number("delta") if summary.get("delta") is not None else None,
        kind=read_summary.text("kind") if summary.get("kind") is not None else None,
        not_valid=tuple(str(reason) for reason in read_summary.rows("not_valid", str)),
        accuracy=_rate(summary.get("accuracy"), SUMMARY, "accuracy"),
        forgetting=None if forgetting is None else read_summary.number("forgetting"),
        plasticity=_rate(summary.get("plasticity"), SUMMARY, "plasticity"),
        seconds=read_summary.number("seconds"),
        matrix=matrix,
        tasks=tasks,
        claims=_claims(summary.get("claims") or [], len(tasks)),
        classes=tuple(_classes(record) for record in records),
        peak_memory=_over(records, "peak_memory"),
        peak_cuda_allocated=_over(records, "peak_cuda_allocated"),
        peak_cuda_reserved=_over(records, "peak_cuda_reserved"),
        task_cuda_allocated=_over(records, "total_cuda_allocated", fmean),
        memory_used=_over(records, "memory_used"),
        numbers_stored=_over(records, "numbers_stored"),
        trace=(),
        config=config,
        environment=environment,
        certificate=None,
    )


def _task(item: Mapping[str, Any]) -> TaskRecord:
    reader = _Reader(item, SUMMARY)
    bounds = item.get("bounds", {})
    if not isinstance(bounds, dict):
        raise DamagedError(SUMMARY, "its bounds are not an object")
    counts = ("n", "prior", "compression", "evicted", "errors", "picked", "missed", "iterations", "test_n")
    known = {name: reader.count(name) if item.get(name) is not None else None for name in counts}
    error, held = item.get("test_error"), item.get("holdout")
    if held is not None and not isinstance(held, dict):
        raise DamagedError(SUMMARY, "a hold-out is not an object")
    return TaskRecord(
        task=reader.count("task"),
        test_error=None if error is None else _rate(error, SUMMARY, "test_error"),
        bounds={str(k): _rate(v, SUMMARY, f"bound {k}") for k, v in bounds.items() if v is not None},
        withheld=_Reader(held, SUMMARY).count("n") if held else None,
        groups=_rates(item.get("test_groups") or {}, "test_groups"),
        **known,
    )


def _claims(stated: Any, tasks: int) -> tuple[dict[str, Any], ...]:
    """Statements of known families about tasks of the run."""
    try:
        for one in stated:
            good = one["family"] in NOT_TASKS and one["task"] in (None, *range(1, tasks + 1))
            if not (good and isinstance(one["subject"], str | int | None)):
                raise DamagedError(SUMMARY, "its claims are not those of a certificate")
            _rate(one["value"], SUMMARY, "claims")
        return tuple(dict(one) for one in stated)
    except (TypeError, KeyError, AttributeError):
        raise DamagedError(SUMMARY, "its claims are not statements") from None


def _rates(values: Any, name: str) -> dict[str, float]:
    if not isinstance(values, dict):
        raise DamagedError(SUMMARY, f"{name!r} is not an object")
    return {str(key): _rate(value, SUMMARY, name) for key, value in values.items()}


def _classes(record: Mapping[str, Any]) -> dict[int, float]:
    classes = record.get("classes") or {}
    if not isinstance(classes, dict) or not all(name.isdecimal() for name in classes):
        raise DamagedError(RECORDS, "its classes are not a map from class numbers")
    return {int(number): _rate(value, RECORDS, "classes") for number, value in classes.items()}


def _over(
    records: Iterable[Mapping[str, Any]], name: str, how: Callable[[list[float]], float] = max
) -> float | None:
    found = [float(value) for r in records if isinstance(value := r.get(name), int | float)]
    return how(found) if found else None


def _trace(path: Path, records: list[dict[str, Any]], notes: list[str]) -> tuple[Step, ...]:
    """The trace is for one figure only: a bad line costs that figure, not the run."""
    try:
        lines = read_lines(path)
        # A resumed task writes its iterations again: the last line of an iteration is the one that counts.
        steps = {}
        if len(lines) < (_over(records, "trace", sum) or 0):
            raise DamagedError(path, "lines are missing")
        for line in lines:
            reader = _Reader(line, path)
            if line.get("bound") is None:
                continue
            step = Step(
                reader.count("task"),
                reader.count("iteration"),
                reader.number("bound"),
                *(line[key] if isinstance(line.get(key), int) else None for key in ("picked", "errors")),
            )
            steps[step.task, step.iteration] = step
    except UserError as damage:
        notes.append(
            f"The figure of bounds against iterations leaves out {path.parent}: {str(damage).rstrip('.')}."
        )
        return ()
    return tuple(steps[key] for key in sorted(steps))


def _certificate(folder: Path) -> Path | None:
    issued = numbered(folder / "certificates", "after-")
    return issued[-1] if issued else None


def _recipe(certificate: Path) -> dict[str, Any]:
    """What the page's command needs; whether it is true is for `cop2l verify` to say."""
    try:
        content = parse(read_bytes(certificate / TEXT_FILE, MOST_JSON))
    except (UserError, OSError, ValueError):
        return {}
    stated = content.get("data") if isinstance(content, dict) else None
    return stated if isinstance(stated, dict) else {}


class _Reader:
    """Typed access to one JSON object of one file."""

    def __init__(self, values: Mapping[str, Any], file: str | Path) -> None:
        self.values, self.file = values, file

    def _value(self, name: str) -> Any:
        if name not in self.values:
            raise DamagedError(self.file, f"{name!r} is missing")
        return self.values[name]

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise DamagedError(self.file, f"{name!r} is not a string")
        return value

    def number(self, name: str) -> float:
        return _number(self._value(name), self.file, name)

    def count(self, name: str) -> int:
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise DamagedError(self.file, f"{name!r} is not a whole number")
        return value

    def rows(self, name: str, kind: type = list) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise DamagedError(self.file, f"{name!r} is not a list of the right kind")
        return value


def _number(value: Any, file: str | Path, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise DamagedError(file, f"{name!r} is not a number")
    return float(value)


def _rate(value: Any, file: str | Path, name: str) -> float:
    if not 0 <= (number := _number(value, file, name)) <= 1:
        raise DamagedError(file, f"{name!r} is not between 0 and 1")
    return number


def _plain_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a collection: it is text in a repository, whose history keeps it whole."""
    values = []
    for number, line in enumerate(read_bytes(path, MOST_LINES).rstrip(b"\n").split(b"\n"), 1):
        try:
            value = parse(line)
        except ValueError as error:
            raise DamagedError(path, f"line {number} is {error}") from None
        if not isinstance(value, dict):
            raise DamagedError(path, f"line {number} is not an object")
        values.append(value)
    return values
