"""The run directory of `docs/configuration.md`, written so that a kill at any moment does no harm.

The learner's state is the commit point. Everything else of a task (certificate, trace, record) is written
before it, and whatever is newer than the state is dropped and made again when the run is resumed. What a kill
cannot leave is damage: it is refused before anything is deleted or rewritten.
"""

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from cop2l.certify.certificate import Certificate
from cop2l.certify.commitment import differing_keys
from cop2l.errors import UserError
from cop2l.experiments.config import Config
from cop2l.experiments.grid import flatten
from cop2l.experiments.records import (
    AFTER,
    CERTIFICATES,
    CONFIG,
    ENVIRONMENT,
    FILES,
    RECORDS,
    STATE,
    SUMMARY,
    TRACE,
    Record,
    as_json,
    read_records,
    read_summary,
)
from cop2l.files import (
    DamagedError,
    Lock,
    append_lines,
    is_leftover,
    last_complete,
    numbered_folders,
    read_json,
    read_lines,
    recover,
    remove,
    replace_folder,
    require,
    write_json,
    write_lines,
)
from cop2l.kernel import form
from cop2l.kernel.options import Refusal
from cop2l.methods.protocol import Method

OURS_BEFORE_CONFIG = ("lock", ENVIRONMENT, "error.txt")


class RunDirectory:
    """One run's folder, held by a lock while it is open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        busy = f"Another process ({{holder}}) is at work in {self.path}; wait for it, or choose --out."
        self._lock, self._new = Lock(self.path / "lock", busy), False

    def __enter__(self) -> Self:
        self._new = not self.path.exists()
        try:
            self._lock.__enter__()
        except OSError as error:
            raise UserError(
                f"Cannot write in {self.path} ({error.strerror}); choose another folder with --out."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Release it; a run that could not begin leaves nothing behind."""
        with suppress(OSError):
            if [file.name for file in self.path.iterdir()] == ["lock"]:
                (self.path / "lock").unlink()  # who waits for it notices
                if self._new:
                    self.path.rmdir()
        self._lock.__exit__()

    @property
    def state(self) -> Path:
        """The learner after the last finished task."""
        return self.path / STATE

    @property
    def certificates(self) -> Path:
        """What was issued, one folder per finished task."""
        return self.path / CERTIFICATES

    def check(self, config: Config, commitment: str | None = None) -> None:
        """Refuse a directory that holds something else than this configuration's run, or a link in it.

        A run that was begun with another commitment, or without one, is another run.
        """
        for name in FILES:
            require(self.path / name)
        for folder in (self.state, last_complete(self.state), self.certificates):
            require(folder, "folder")
        file = self.path / CONFIG
        if not file.exists():
            others = [p for p in self.path.iterdir() if p.name not in OURS_BEFORE_CONFIG]
            if names := sorted(p.name for p in others if not is_leftover(p)):
                raise UserError(
                    f"{self.path} holds other files ({names[0]}, ...); choose an empty folder with --out."
                )
            return
        found = read_json(file)
        if found.get("hash") != config.hash:
            wanted = config.as_record()
            # What is not given was resolved, and may be anything.
            given = flatten(
                {key: value for key, value in wanted.items() if value is not None and key != "hash"}
            )
            names = [name for name in differing_keys(wanted, found) if name in given] or [
                "what it leaves open"
            ]
            raise UserError(
                f"{self.path} holds another run (it differs in {', '.join(names)});"
                " choose another folder with --out."
            )
        if found.get("commitment") != commitment:
            raise UserError(
                f"{self.path} holds a run with another commitment, or with none; choose another folder with --out."
            )

    def summary(self, config: Config) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is not finished."""
        if not (self.path / SUMMARY).exists():
            return None
        found = read_summary(self.path)
        known = ("method", "stream", "model", "seed", "memory", "delta")
        if any(getattr(found, key) != getattr(config, key) for key in known):
            raise DamagedError(self.path / SUMMARY, "not the summary of this run")
        return as_json(found)

    def begin(self, config: dict[str, Any], environment: dict[str, Any], needed: int) -> None:
        """Put down what is run and where, if there is room for the bytes that the run will write."""
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise UserError(
                f"{self.path} has {free >> 20} MiB free and the run needs about {needed >> 20} MiB;"
                " make room or choose another folder with --out."
            )
        if first := self._environment():
            environment = {**first, "resumed": [*first.get("resumed", []), environment]}
        write_json(self.path / ENVIRONMENT, environment)
        if not (self.path / CONFIG).exists():
            write_json(self.path / CONFIG, config)

    def resume(self, learner: Method) -> list[Record]:
        """Put the learner into the stored state, if there is one; the records of the tasks it has learned.

        Damage is refused first; then what a kill left beyond the state is dropped from the disk.
        """
        self._environment()
        state = last_complete(self.state)
        if state.exists():
            check_certificate(state / "certificate")
            learner.restore(state)
        records, trace = read_records(self.path)[: learner.tasks_seen], read_lines(self.path / TRACE)
        self._check(records, trace, learner.tasks_seen)
        self._repair(learner.tasks_seen)
        if (self.path / RECORDS).exists():
            write_lines(self.path / RECORDS, [as_json(record) for record in records])
        if (self.path / TRACE).exists():
            write_lines(self.path / TRACE, trace[: sum(record.trace for record in records)])
        return records

    def store(
        self, record: Record, trace: list[dict[str, Any]], certificate: Certificate | None, learner: Any
    ) -> None:
        """Everything about one more finished task; the state last, since it is the commit."""
        if certificate is not None:
            replace_folder(self._issued(record.task), certificate.save)
        record.trace = len(trace)
        append_lines(self.path / TRACE, trace)
        append_lines(self.path / RECORDS, [as_json(record)])
        own = getattr(learner, "certificate", None) is not None  # it was just written
        replace_folder(self.state, partial(learner.save, certificate=False) if own else learner.save)

    def finish(self, summary: dict[str, Any]) -> None:
        """The summary; its presence says that the run is finished."""
        write_json(self.path / SUMMARY, summary)

    def _environment(self) -> dict[str, Any]:
        """Where the run began and was resumed; empty before it began."""
        file = self.path / ENVIRONMENT
        found = read_json(file) if file.exists() else {}
        if not isinstance(found.get("resumed", []), list):
            raise DamagedError(file, "not the environment of a run")
        return found

    def _issued(self, task: int) -> Path:
        return self.certificates / f"{AFTER}{task:02d}"

    def _check(self, records: list[Record], trace: list[dict[str, Any]], finished: int) -> None:
        """Refuse a directory that lacks something of a finished task."""
        if [record.task for record in records] != list(range(1, finished + 1)):
            raise UserError(
                f"{self.path} is damaged: {finished} tasks are learned and {len(records)} recorded;"
                " delete it and run again."
            )
        for record in records:
            if record.trace != sum(line.get("task") == record.task for line in trace):
                raise DamagedError(self.path / TRACE, f"lines of task {record.task} are missing")
            if record.kind is not None:
                issued = last_complete(self._issued(record.task))
                require(issued, "folder")
                if not issued.exists():
                    raise DamagedError(issued, "missing")
                check_certificate(issued)

    def _repair(self, finished: int) -> None:
        """Undo the replacements that a kill interrupted, and drop what is newer than the state."""
        recover(self.state)
        for left in (*self.certificates.glob(f".{AFTER}*.old"), *self.certificates.glob(f".{AFTER}*.new")):
            recover(left.with_name(left.stem.removeprefix(".")))
        for folder in numbered_folders(self.certificates, AFTER):
            if int(folder.name.removeprefix(AFTER)) > finished:
                remove(folder)
        for left in filter(is_leftover, self.path.iterdir()):
            remove(left)


def check_certificate(folder: Path) -> None:
    """Refuse a certificate's folder whose files are not those that were written; `verify` checks what they say."""
    if folder.exists():
        for file in folder.iterdir():
            require(file)
        try:
            form.read_certificate(folder)
        except Refusal as refusal:
            raise DamagedError(folder, str(refusal).rstrip(".")) from None
