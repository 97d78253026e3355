"""The publishers' mirrors, as sources.toml lists them with the checksums that the files must have."""

import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from cop2l.console import Bar
from cop2l.streams.download import Source, UnavailableError

CONNECT_SECONDS, READ_SECONDS = 5, 60
Keep = Callable[[PurePosixPath], bool]

SOURCES = tomllib.loads((resources.files("cop2l.streams") / "sources.toml").read_text(encoding="utf-8"))


def fetch(url: str, known_hash: str | None, file: Path) -> None:
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


def _mirrors(
    urls: Sequence[str], megabytes: int, md5: Any, folder: str = "", keep: Sequence[str] = ()
) -> tuple[Source, ...]:
    """The sources of a table of sources.toml."""
    if isinstance(md5, dict):
        return tuple(_idx(url, md5, folder, megabytes) for url in urls)
    kept: Keep = (lambda name: name.name in keep) if keep else _pictures
    return tuple(_packed(url, md5, megabytes, kept, folder) for url in urls)


MIRRORS = {name: _mirrors(**table) for name, table in SOURCES["mirrors"].items()}
