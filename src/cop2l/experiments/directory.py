"""The run directory of `docs/run_directory.md`, written so that a kill at any moment does no harm.

The learner's state is the commit point. Everything else of a task (certificate, trace, record) is written
before it, and whatever is newer than the state is dropped and made again when the run is resumed.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from cop2l.errors import UserError
from cop2l.experiments.config import Config

TEMPORARY = ".new"
RETIRED = ".old"


class RunDirectory:
    """One run's folder, held by a lock while it is open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(
                f"Cannot write in {self.path} ({error.strerror}); choose another folder with --out."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 100).decode(errors="replace").strip()
            os.close(handle)
            raise UserError(
                f"Another process ({holder}) is at work in {self.path}; wait for it, or choose --out."
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        self._lock = handle
        self._recover()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def state(self) -> Path:
        """The learner after the last finished task."""
        return self.path / "state"

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while it is not finished."""
        file = self.path / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def check(self, config: Config) -> None:
        """Refuse a directory that holds something else than this configuration's run."""
        file = self.path / "config.json"
        if not file.exists():
            ours = ("lock", "environment.json", "error.txt")
            others = sorted(p.name for p in self.path.iterdir() if p.name not in ours)
            if others:
                raise UserError(
                    f"{self.path} holds other files ({others[0]}, ...); choose an empty folder with --out."
                )
            return
        found = json.loads(file.read_text(encoding="utf-8"))
        if found.get("hash") != config.hash:
            differing = differences(config.as_record(), found) or ["what it leaves open"]
            raise UserError(
                f"{self.path} holds another run (it differs in {', '.join(differing)});"
                " choose another folder with --out."
            )

    def begin(self, config: dict[str, Any], environment: dict[str, Any], needed: int) -> None:
        """Put down what is run and where, if there is room for the bytes that the run will write."""
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise UserError(
                f"{self.path} has {free >> 20} MiB free and the run needs about {needed >> 20} MiB;"
                " make room or choose another folder with --out."
            )
        file = self.path / "environment.json"
        if file.exists():
            first = json.loads(file.read_text(encoding="utf-8"))
            resumed = [*first.pop("resumed", []), environment]
            write_json(file, {**first, "resumed": resumed})
        else:
            write_json(file, environment)
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", config)

    def resume(self, learner: Any) -> list[dict[str, Any]]:
        """Put the learner into the stored state, if there is one; the records of the tasks it has learned."""
        if self.state.exists():
            learner.restore(self.state)
        return self.records(learner.tasks_seen)

    def records(self, finished: int) -> list[dict[str, Any]]:
        """The records of the finished tasks; what a kill left beyond them is dropped from the disk."""
        for name in ("records.jsonl", "trace.jsonl"):
            kept = [line for line in read_lines(self.path / name) if line["task"] <= finished]
            write_text(self.path / name, "".join(dumped(line) + "\n" for line in kept))
        records = read_lines(self.path / "records.jsonl")
        if len(records) != finished:
            raise UserError(
                f"{self.path} is damaged: {finished} tasks are learned and {len(records)} recorded;"
                " delete it and run again."
            )
        for folder in self._certificates():
            if int(folder.name.removeprefix("after-")) > finished:
                shutil.rmtree(folder)
        return records

    def store(
        self,
        record: dict[str, Any],
        trace: list[dict[str, Any]],
        certificate: Callable[[Path], None] | None,
        state: Callable[[Path], None],
    ) -> None:
        """Everything about one more finished task; the state last, since it is the commit."""
        if certificate is not None:
            replace_folder(self.path / "certificates" / f"after-{record['task']:02d}", certificate)
        append_lines(self.path / "trace.jsonl", trace)
        append_lines(self.path / "records.jsonl", [record])
        replace_folder(self.state, state)

    def finish(self, summary: dict[str, Any]) -> None:
        """The summary; its presence says that the run is finished."""
        write_json(self.path / "summary.json", summary)

    def _certificates(self) -> Iterator[Path]:
        folder = self.path / "certificates"
        return (p for p in folder.glob("after-*") if p.name.removeprefix("after-").isdigit())

    def _recover(self) -> None:
        """Undo a replacement that a kill interrupted."""
        for folder in (self.state, *(self.path / "certificates").glob(f"after-*{RETIRED}")):
            whole = folder.with_name(folder.name.removesuffix(RETIRED))
            retired = whole.with_name(whole.name + RETIRED)
            if retired.exists() and not whole.exists():
                retired.rename(whole)
            shutil.rmtree(retired, ignore_errors=True)
        for left in (*self.path.glob(f"*{TEMPORARY}"), *(self.path / "certificates").glob(f"*{TEMPORARY}")):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The keys that are given and found otherwise; what is not given was resolved, and may be anything."""
    keys = []
    for key, value in wanted.items():
        there = found.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            keys += [f"{key}.{inner}" for inner in value if there.get(inner) != value[inner]]
        elif key != "hash" and value is not None and there != value:
            keys.append(key)
    return keys


def dumped(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; a last line that was cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def append_lines(path: Path, values: list[dict[str, Any]]) -> None:
    """Add JSON lines and see them onto the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(dumped(value) + "\n" for value in values))
        file.flush()
        os.fsync(file.fileno())


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a new folder, and put it in the place of the old one once it is complete."""
    new, old = (folder.with_name(folder.name + ending) for ending in (TEMPORARY, RETIRED))
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        fill(new)
        for file in new.rglob("*"):
            if file.is_file():
                flush(file)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if os.strerror(errno.ENOSPC) in str(error):  # safetensors wraps the system's error in its own
            raise UserError(
                f"The disk of {folder.parent} is full; make room and run the same command again to continue."
            ) from error
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def flush(file: Path) -> None:
    """See a written file onto the disk."""
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
