"""Run directories, read and checked: what is finished becomes a Run, what is not becomes a sentence."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cop2l.certify.certificate import Certificate, read_certificate
from cop2l.errors import UserError
from cop2l.experiments.records import (
    AFTER,
    CERTIFICATES,
    CONFIG,
    ENVIRONMENT,
    RECORDS,
    SUMMARY,
    Record,
    Summary,
    decode_record,
    read_records,
    read_summary,
)
from cop2l.files import (
    MAX_JSON_BYTES,
    MAX_LINES_BYTES,
    DamagedError,
    numbered_folders,
    parse,
    read_bytes,
    read_json,
)
from cop2l.kernel.form import TEXT_FILE
from cop2l.text import Names

SAVED = "certificate"
"""Where a saved learner has its certificate."""


@dataclass(kw_only=True)
class Run(Summary):
    """A finished run: its summary, and what its other files hold."""

    folder: Path
    records: list[Record]
    config: dict[str, Any]
    environment: dict[str, Any]
    certificate: Path | None = None
    """The newest certificate's folder."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """How the certificate says that its data can be had again."""

    @property
    def names(self) -> Names:
        """What the user calls the tasks and the classes."""
        return Names(self.task_names, self.class_names)

    @property
    def classes(self) -> list[dict[int, float]]:
        """classes[s-1] maps a class to its accuracy after task s; may be empty."""
        return [{int(c): rate for c, rate in record.classes.items()} for record in self.records]

    def over_tasks(self, name: str, how: Callable[[list[float]], float] = max) -> float | None:
        """One number from a field of all records, such as peak_memory; None if none has it."""
        found = [value for record in self.records if (value := getattr(record, name)) is not None]
        return how(found) if found else None

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
    sentence: str


@dataclass(frozen=True)
class SavedLearner:
    """A learner that was saved with its certificate, outside a run: `cop2l learn` makes one."""

    folder: Path
    certificate: Certificate


@dataclass(frozen=True)
class Found:
    """Everything that was found under the paths a user gave."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...] = ()
    learners: tuple[SavedLearner, ...] = ()

    def finished(self) -> tuple[Run, ...]:
        """The finished runs; an error if there is none."""
        if not self.runs:
            raise UserError("None of these runs is finished; finish one first.")
        return self.runs


def find_runs(paths: Iterable[str | Path]) -> Found:
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
    results: list[Run | SavedLearner | LeftOut] = [read_run(folder) for folder in _once(found)]
    results += [result for file in _once(files) for result in collection(file)]
    return Found(
        tuple(r for r in results if isinstance(r, Run)),
        tuple(r for r in results if isinstance(r, LeftOut)),
        tuple(r for r in results if isinstance(r, SavedLearner)),
    )


def read_run(folder: str | Path) -> Run | SavedLearner | LeftOut:
    """One run directory, or one saved learner."""
    folder = Path(folder)
    try:
        if not _is_run(folder):
            return SavedLearner(folder, read_certificate(folder / SAVED))
        if not (folder / SUMMARY).exists():
            return LeftOut(folder, _unfinished(folder))
        return _run(folder)
    except DamagedError as damage:
        words = f"{damage.path.name} ({damage.reason})"
        return LeftOut(folder, f"{folder} is damaged: {words}; delete it and run its command again.")
    except UserError as error:
        return LeftOut(folder, str(error))
    except OSError as error:
        reason = error.strerror or error
        return LeftOut(folder, f"{folder} cannot be read ({reason}); check its permissions and files.")


def collection(file: Path) -> list[Run | LeftOut]:
    """The runs of a file of collected runs: one finished run per line, without weights or checksums."""
    results: list[Run | LeftOut] = []
    try:
        for line in map(parse, read_bytes(file, MAX_LINES_BYTES).rstrip(b"\n").split(b"\n")):
            summary = decode_record(Summary, line["summary"], file)
            rows = zip(summary.matrix, line["records"], strict=True)
            records = [
                decode_record(Record, {"task": s, "accuracy": row, "tasks": [], **record}, file)
                for s, (row, record) in enumerate(rows, 1)
            ]
            more = {name: dict(line[name]) for name in ("config", "environment")}
            results.append(_assembled(Path(line["folder"]), summary, records, **more))
    except (DamagedError, KeyError, TypeError, ValueError) as error:
        reason = error.reason if isinstance(error, DamagedError) else f"a line is no run: {error}"
        results.append(LeftOut(file, f"{file} is damaged: {reason}; collect it again."))
    return results


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.glob("*.jsonl") if file.is_file())


def _is_collection(file: Path) -> bool:
    with file.open(encoding="utf-8", errors="replace") as lines:
        return file.suffix == ".jsonl" and '"summary"' in lines.readline(MAX_LINES_BYTES)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, RECORDS, SUMMARY))


def folders(path: Path) -> Iterator[Path]:
    """The run directories and saved learners at a path and below it."""
    if not path.is_dir():
        return
    if _is_run(path) or (path / SAVED / TEXT_FILE).is_file():
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
    # A last line without its end is being written at this moment, or was split short.
    done = read_bytes(records, MAX_LINES_BYTES).count(b"\n") if records.exists() else 0
    count = f"{done} task{'s' if done != 1 else ''} recorded so far" if done else "no task recorded yet"
    return f"{folder} is not finished ({count}); run its command again to continue."


def _run(folder: Path) -> Run:
    summary, records, config = read_summary(folder), read_records(folder), read_json(folder / CONFIG)
    environment = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).exists() else {}
    if [record.task for record in records] != [row.task for row in summary.tasks]:
        raise DamagedError(folder / RECORDS, f"{len(records)} lines for {len(summary.matrix)} tasks")
    run = _assembled(folder, summary, records, config=config, environment=environment)
    if issued := numbered_folders(folder / CERTIFICATES, AFTER):
        run.certificate, run.recipe = issued[-1], _recipe(issued[-1])
    return run


def _assembled(folder: Path, summary: Summary, records: list[Record], **more: dict[str, Any]) -> Run:
    known: dict[str, Any] = {f.name: getattr(summary, f.name) for f in fields(summary)} | more
    return Run(folder=folder, records=records, **known)


def _recipe(certificate: Path) -> dict[str, Any]:
    """What the page's command needs; whether it is true is for `cop2l verify` to say."""
    try:
        content = parse(read_bytes(certificate / TEXT_FILE, MAX_JSON_BYTES))
    except (UserError, OSError, ValueError):
        return {}
    claimed = content.get("data") if isinstance(content, dict) else None
    return claimed if isinstance(claimed, dict) else {}
