"""Readers of run directories: a finished run becomes a Run, any other folder a sentence that says why not."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cop2l.certificates.certificate import Certificate, read_certificate
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
    read_records,
    read_summary,
)
from cop2l.files import DamagedError, numbered_folders, read_bytes, read_json
from cop2l.kernel.form import TEXT_FILE
from cop2l.text import Names, count

SAVED = "certificate"
"""The folder of the certificate of a saved learner."""


@dataclass(kw_only=True)
class Run(Summary):
    """A finished run: its summary and the content of its other files."""

    folder: Path
    records: list[Record]
    config: dict[str, Any]
    environment: dict[str, Any]

    @cached_property
    def certificate(self) -> Certificate | None:
        """The newest certificate; None if there is none that can be read."""
        folders = numbered_folders(self.folder / CERTIFICATES, AFTER)
        try:
            return read_certificate(folders[-1]) if folders else None
        except UserError:
            return None

    @property
    def recipe(self) -> dict[str, Any]:
        """The description of the data in the certificate, from which the command that checks it is made."""
        return (self.certificate and self.certificate.content["data"]) or {}

    @property
    def names(self) -> Names:
        """The names of the tasks and the classes."""
        return Names(self.task_names, self.class_names)

    @property
    def classes(self) -> list[dict[int, float]]:
        """classes[s-1] maps a class to its accuracy after task s; may be empty."""
        return [{int(c): rate for c, rate in record.classes.items()} for record in self.records]

    def over_tasks(self, name: str, aggregate: Callable[[list[float]], float] = max) -> float | None:
        """One number from a field of all records, such as peak_memory; None if no record has it."""
        values = [value for record in self.records if (value := getattr(record, name)) is not None]
        return aggregate(values) if values else None

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration without its tables (options, data, ...): their keys stand beside the other keys.

        A key that occurs twice keeps the name of its table.
        """
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
    """A folder that is not reported, with the reason in one sentence."""

    folder: Path
    sentence: str


@dataclass(frozen=True)
class SavedLearner:
    """A learner that `cop2l learn` saved with its certificate."""

    folder: Path
    certificate: Certificate


@dataclass(frozen=True)
class RunSet:
    """The runs and the saved learners under some paths, and the folders that are left out."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...] = ()
    learners: tuple[SavedLearner, ...] = ()

    def finished(self) -> tuple[Run, ...]:
        """The finished runs; an error if there is none."""
        if not self.runs:
            raise UserError("None of these runs is finished; finish one first.")
        return self.runs


def find_runs(paths: Iterable[str | Path]) -> RunSet:
    """Read every run directory and every saved learner among the paths and below them."""
    folders: dict[Path, Path] = {}  # by their resolved paths: a folder may have several names
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"There is nothing at {path}; give run directories, or a folder that holds some.")
        below = list(_folders(path))
        if not below:
            raise UserError(f"{path} holds no run directory; 'cop2l run' makes one.")
        folders |= {folder.resolve(): folder for folder in below}
    results = [read_run(folder) for folder in folders.values()]
    return RunSet(
        tuple(r for r in results if isinstance(r, Run)),
        tuple(r for r in results if isinstance(r, LeftOut)),
        tuple(r for r in results if isinstance(r, SavedLearner)),
    )


def read_run(folder: str | Path) -> Run | SavedLearner | LeftOut:
    """Read one run directory or one saved learner."""
    folder = Path(folder)
    try:
        if not _is_run(folder):
            return SavedLearner(folder, read_certificate(folder / SAVED))
        if not (folder / SUMMARY).exists():
            return LeftOut(folder, _unfinished(folder))
        return _read_finished_run(folder)
    except DamagedError as damage:
        reason = f"{damage.path.name} ({damage.reason})"
        return LeftOut(folder, f"{folder} is damaged: {reason}; delete it and run its command again.")
    except UserError as error:
        return LeftOut(folder, str(error))
    except OSError as error:
        return LeftOut(
            folder, f"{folder} cannot be read ({error.strerror or error}); check its permissions and files."
        )


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, RECORDS, SUMMARY))


def _folders(path: Path) -> Iterator[Path]:
    """The run directories and saved learners at a path and below it."""
    if not path.is_dir():
        return
    if _is_run(path) or (path / SAVED / TEXT_FILE).is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if not child.name.startswith("."):
            yield from _folders(child)


def _unfinished(folder: Path) -> str:
    """The sentence about a run directory without summary.json."""
    records = folder / RECORDS
    # Complete lines only: the last line may be half written.
    tasks = read_bytes(records).count(b"\n") if records.exists() else 0
    progress = f"{count(tasks, 'task')} recorded so far" if tasks else "no task recorded yet"
    return f"{folder} is not finished ({progress}); run its command again to continue."


def _read_finished_run(folder: Path) -> Run:
    summary, records, config = read_summary(folder), read_records(folder), read_json(folder / CONFIG)
    environment = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).exists() else {}
    if [record.task for record in records] != [row.task for row in summary.tasks]:
        raise DamagedError(folder / RECORDS, f"{len(records)} lines for {len(summary.matrix)} tasks")
    return Run(folder=folder, records=records, config=config, environment=environment, **vars(summary))
