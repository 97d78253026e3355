"""The publishers' mirrors, as sources.toml lists them with the checksums that the files must have."""

import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cop2l.console import Bar
from cop2l.streams.download import Source, UnavailableError

CONNECT_SECONDS, READ_SECONDS = 5, 60
PICTURES = (".jpeg", ".jpg", ".png", ".txt")

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


def mirror(
    url: str, megabytes: int, md5: str | dict[str, str], folder: str = "", keep: Sequence[str] = ()
) -> Source:
    """A source of sources.toml."""
    return Source(urlsplit(url).netloc, megabytes, partial(_get, url, md5, folder, keep))


def _get(url: str, md5: str | dict[str, str], folder: str, keep: Sequence[str], content: Path) -> None:
    """One file for each checksum, or the files of an archive that are to be kept."""
    if isinstance(md5, str):
        archive = content.parent / PurePosixPath(urlsplit(url).path).name
        fetch(url, f"md5:{md5}", archive)
        unpack(archive, keep, content / folder)
        return
    (content / folder).mkdir(parents=True)
    for name, digits in md5.items():
        fetch(f"{url}{name}.gz", f"md5:{digits}", content / folder / f"{name}.gz")


def unpack(archive: Path, keep: Sequence[str], folder: Path) -> None:
    """The files of an archive that are named, or else its pictures and lists; nothing leaves the folder.

    Not by pooch: before Python 3.12 it unpacks a tar without its filter.
    """

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        known = path.name in keep if keep else path.suffix.lower() in PICTURES and path.name[0] != "."
        return known and not path.is_absolute() and ".." not in path.parts

    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(folder, [name for name in zipped.namelist() if wanted(name)])  # noqa: S202
        return
    with tarfile.open(archive) as tarred:
        tarred.extractall(folder, [m for m in tarred if m.isfile() and wanted(m.name)], filter="data")


MIRRORS = {
    name: tuple(
        mirror(url, **{key: value for key, value in table.items() if key != "urls"}) for url in table["urls"]
    )
    for name, table in SOURCES["mirrors"].items()
}
