"""The publishers' mirrors, with the checksums that the files must have.

MNIST, EMNIST, CIFAR, Imagenette: the checksums that torchvision verifies. TinyImageNet: as in Avalanche.
Imagewoof: as in Catalyst. The files of MNIST and Fashion-MNIST are verified one by one.
"""

import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cop2l.streams.cifar import BATCHES
from cop2l.streams.download import Source, UnavailableError
from cop2l.streams.idx import FILES, LETTERS
from cop2l.streams.progress import bar

CONNECT_SECONDS, READ_SECONDS = 5, 60
Keep = Callable[[PurePosixPath], bool]

MNIST = dict(
    zip(
        FILES,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        strict=True,
    )
)
FASHION = dict(
    zip(
        FILES,
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        strict=True,
    )
)


def fetch(url: str, known_hash: str | None, file: Path) -> None:
    """Download one file; it exists afterwards only if its checksum is right. None: whoever asked compares it."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise UnavailableError("the package pooch is not installed") from error
    pooch.get_logger().setLevel("WARNING")
    with bar(file.name, size=True) as shown:
        downloader = pooch.HTTPDownloader(
            progressbar=shown, timeout=(CONNECT_SECONDS, READ_SECONDS), chunk_size=1 << 16
        )
        try:
            pooch.retrieve(url, known_hash, fname=file.name, path=file.parent, downloader=downloader)
        except requests.exceptions.HTTPError as error:
            status = "an error" if error.response is None else error.response.status_code
            raise UnavailableError(f"the server answered {status}") from error
        except requests.exceptions.RequestException as error:
            raise UnavailableError("it cannot be reached, or the connection broke") from error
        except ValueError as error:
            raise UnavailableError(f"{file.name} does not have the right checksum") from error


def _files(base: str, checksums: dict[str, str], folder: str, content: Path) -> None:
    (content / folder).mkdir(parents=True)
    for name, md5 in checksums.items():
        fetch(f"{base}{name}.gz", f"md5:{md5}", content / folder / f"{name}.gz")


def _archive(url: str, md5: str, keep: Keep, below: str, content: Path) -> None:
    archive = content.parent / PurePosixPath(urlsplit(url).path).name
    fetch(url, f"md5:{md5}", archive)
    unpack(archive, keep, content / below)


def unpack(archive: Path, keep: Keep, folder: Path) -> None:
    """The files of an archive that are to be kept; nothing leaves the folder.

    Not by pooch: before Python 3.12 it unpacks a tar without its filter.
    """

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        return not path.is_absolute() and ".." not in path.parts and keep(path)

    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder, [name for name in zipped.namelist() if wanted(name)])  # noqa: S202
        return
    with tarfile.open(archive) as tarred:
        tarred.extractall(folder, [m for m in tarred if m.isfile() and wanted(m.name)], filter="data")


def _idx(base: str, checksums: dict[str, str], folder: str, megabytes: int) -> Source:
    return Source(urlsplit(base).netloc, megabytes, partial(_files, base, checksums, folder))


def _packed(url: str, md5: str, megabytes: int, keep: Keep, below: str = "") -> Source:
    return Source(urlsplit(url).netloc, megabytes, partial(_archive, url, md5, keep, below))


def _pictures(name: PurePosixPath) -> bool:
    return name.suffix.lower() in (".jpeg", ".jpg", ".png", ".txt") and not name.name.startswith(".")


TORONTO = "https://www.cs.toronto.edu/~kriz/"
FAST_AI = "https://s3.amazonaws.com/fast-ai-imageclas/"
MIRRORS: dict[str, tuple[Source, ...]] = {
    "mnist": (
        _idx("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST, "MNIST/raw", 12),
        _idx("https://storage.googleapis.com/cvdf-datasets/mnist/", MNIST, "MNIST/raw", 12),
    ),
    "fashion-mnist": (
        _idx("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION, "FashionMNIST/raw", 31),
    ),
    "emnist-letters": (
        _packed(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "58c8d27c78d21e728a6bc7b3cc06412e",
            562,
            lambda name: name.name.removesuffix(".gz") in LETTERS,
            "EMNIST/raw",
        ),
    ),
    "cifar10": (
        _packed(
            f"{TORONTO}cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            170,
            lambda name: name.name in BATCHES,
        ),
    ),
    "cifar100": (
        _packed(
            f"{TORONTO}cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            169,
            lambda name: name.name in ("train", "test"),
        ),
    ),
    "tinyimagenet": (
        _packed(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            248,
            _pictures,
        ),
    ),
    "imagenette": (
        _packed(f"{FAST_AI}imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3", 341, _pictures),
    ),
    "imagewoof": (
        _packed(f"{FAST_AI}imagewoof2-320.tgz", "0f46d997ec2264e97609196c95897a44", 328, _pictures),
    ),
}
