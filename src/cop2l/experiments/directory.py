"""The run directory of `docs/configuration.md`: a run that is killed at any moment continues with the same bits.

The learner's state is written last: the certificate and the record of a task come before it. When a run is
resumed, what is newer than the state is deleted and made again. What else does not fit is damage: it is refused
before anything is deleted or rewritten.
"""

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from cop2l.certificates.certificate import Certificate, read_certificate
from cop2l.certificates.commitment import differing_keys
from cop2l.errors import UserError
from cop2l.experiments.config import Config
from cop2l.experiments.grid import flatten
from cop2l.experiments.records import (
    AFTER,
    CERTIFICATES,
    CONFIG,
    ENVIRONMENT,
    RECORDS,
    STATE,
    SUMMARY,
    Record,
    as_json,
    read_records,
    read_summary,
)
from cop2l.files import (
    DamagedError,
    Lock,
    append_line,
    is_leftover,
    last_complete,
    numbered_folders,
    read_json,
    recover,
    remove,
    replace_folder,
    write_json,
    write_lines,
)
from cop2l.methods.base import Method

WRITTEN_BEFORE_CONFIG = ("lock", ENVIRONMENT, "error.txt")


class RunDirectory:
    """One run's folder, held by a lock while it is open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        busy = f"Another process ({{holder}}) is running in {self.path}; wait for it, or choose --out."
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
        """Release the lock; a run that could not begin leaves nothing behind."""
        with suppress(OSError):
            if [file.name for file in self.path.iterdir()] == ["lock"]:
                (self.path / "lock").unlink()  # a process that waits for the lock notices
                if self._new:
                    self.path.rmdir()
        self._lock.__exit__()

    @property
    def state(self) -> Path:
        """The learner after the last finished task."""
        return self.path / STATE

    @property
    def certificates(self) -> Path:
        """What was issued, one folder per certified task."""
        return self.path / CERTIFICATES

    def check(self, config: Config, commitment: str | None = None) -> None:
        """Refuse a directory that holds other files, another run, or this run with another commitment or none."""
        file = self.path / CONFIG
        if not file.exists():
            others = [p for p in self.path.iterdir() if p.name not in WRITTEN_BEFORE_CONFIG]
            if names := sorted(p.name for p in others if not is_leftover(p)):
                raise UserError(
                    f"{self.path} holds other files ({names[0]}, ...); choose an empty folder with --out."
                )
            return
        stored = read_json(file)
        if stored.get("hash") != config.hash:
            settings = config.as_record()
            # The stored configuration has values for the keys that this one leaves open.
            set_here = flatten({key: value for key, value in settings.items() if value is not None})
            names = [name for name in differing_keys(settings, stored) if name in set_here and name != "hash"]
            raise UserError(
                f"{self.path} holds another run (it differs in {', '.join(names) or 'a key that is not set here'});"
                " choose another folder with --out."
            )
        if stored.get("commitment") != commitment:
            raise UserError(
                f"{self.path} holds a run with another commitment, or with none; choose another folder with --out."
            )

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is not finished."""
        return as_json(read_summary(self.path)) if (self.path / SUMMARY).exists() else None

    def begin(self, config: dict[str, Any], environment: dict[str, Any], needed: int) -> None:
        """Write the configuration and the environment, if there is room for the `needed` bytes of the run."""
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
        """Restore the learner from the stored state, if there is one, and return the records of its tasks.

        Damage is refused first; then what is newer than the state is deleted.
        """
        self._environment()
        state = last_complete(self.state)
        if state.exists():
            check_certificate(state / "certificate")
            learner.restore(state)
        records = read_records(self.path)[: learner.tasks_seen]
        self._check(records, learner.tasks_seen)
        self._repair(learner.tasks_seen)
        if (self.path / RECORDS).exists():
            write_lines(self.path / RECORDS, [as_json(record) for record in records])
        return records

    def store(self, record: Record, certificate: Certificate | None, learner: Any) -> None:
        """Write the certificate and the record of one more task, and the learner's state last."""
        if certificate is not None:
            replace_folder(self._issued(record.task), certificate.save)
        append_line(self.path / RECORDS, as_json(record))
        has_certificate = getattr(learner, "certificate", None) is not None
        save = partial(learner.save, certificate=False) if has_certificate else learner.save
        replace_folder(self.state, save)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary: the run is finished."""
        write_json(self.path / SUMMARY, summary)

    def _environment(self) -> dict[str, Any]:
        """Where the run began and was resumed; empty before it began."""
        file = self.path / ENVIRONMENT
        return read_json(file) if file.exists() else {}

    def _issued(self, task: int) -> Path:
        return self.certificates / f"{AFTER}{task:02d}"

    def _check(self, records: list[Record], finished: int) -> None:
        """Refuse a directory that lacks the record or the certificate of a finished task."""
        if [record.task for record in records] != list(range(1, finished + 1)):
            raise UserError(
                f"{self.path} is damaged: {finished} tasks are learned and {len(records)} recorded;"
                " delete it and run again."
            )
        for record in records:
            if record.kind is not None:
                issued = last_complete(self._issued(record.task))
                if not issued.exists():
                    raise DamagedError(issued, "missing")
                check_certificate(issued)

    def _repair(self, finished: int) -> None:
        """Undo the replacements that a kill interrupted, and delete what is newer than the state."""
        recover(self.state)
        for left in (*self.certificates.glob(f".{AFTER}*.old"), *self.certificates.glob(f".{AFTER}*.new")):
            recover(left.with_name(left.stem.removeprefix(".")))
        for folder in numbered_folders(self.certificates, AFTER):
            if int(folder.name.removeprefix(AFTER)) > finished:
                remove(folder)
        for left in filter(is_leftover, self.path.iterdir()):
            remove(left)


def check_certificate(folder: Path) -> None:
    """Refuse a certificate's folder whose files were changed; `verify` checks what they say."""
    if folder.exists():
        try:
            read_certificate(folder)
        except UserError as error:
            raise DamagedError(folder, str(error).rstrip(".")) from None
