"""Files that are whole, or not there: written at once, carrying a checksum, read without trust, locked."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cop2l.errors import UserError
from cop2l.kernel.form import canonical_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

TEMPORARY = ".new"
RETIRED = ".old"
MOST_JSON = 2**28
"""Bytes of a JSON file; one that is larger was not written by us, and would fill the memory."""
MOST_LINES = 2**30
"""Bytes of a file of JSON lines: those of a run grow with the square of its tasks."""
# Opening a FIFO must not wait for its other end; Windows knows neither these, nor text mode for our bytes.
PLAIN = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class DamagedError(UserError):
    """A file that is not what was written; `reason` says in a few words what is wrong with it."""

    def __init__(self, path: str | Path, reason: object) -> None:
        super().__init__(path, reason)
        self.path, self.reason = Path(path), str(reason)

    def __str__(self) -> str:
        return f"{self.path} is damaged ({self.reason}); restore it from a copy."


# ---- hashing


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value: keys sorted, no spaces, ASCII."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


# ---- whole files and folders


def replace_file(path: str | Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a new file, and put it in the place of the old one once it is on the disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    with _discarded_on_error(new):
        fill(new)
        move(new, path)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    replace_file(path, lambda new: new.write_bytes(content))


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_array(path: str | Path, array: "np.ndarray") -> None:
    """Write a `.npy` file whole or not at all."""
    import numpy as np

    def fill(new: Path) -> None:
        with new.open("xb") as file:
            np.save(file, array)

    replace_file(path, fill)


def move(source: Path, path: Path) -> None:
    """Put a finished file in its place on the same disk, and see it there."""
    _sync(source)
    source.replace(path)
    _sync(path.parent)


def replace_folder(folder: str | Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a new folder, and put it in the place of the old one once it is complete.

    A kill leaves the old folder, or the new one, or (between two renames) the old one as `.NAME.old`: see `recover`.
    """
    folder = Path(folder)
    new, old = _beside(folder)
    recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _discarded_on_error(new):
        fill(new)
        for written in (*new.rglob("*"), new):
            _sync(written)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    _sync(folder.parent)
    with suppress(OSError):
        remove(old)


def last_complete(folder: Path) -> Path:
    """Where a folder's last whole content lies: in `.NAME.old`, if a kill came between two renames."""
    old = _beside(folder)[1]
    return old if old.exists() and not folder.exists() else folder


def recover(folder: Path) -> None:
    """Undo a replacement of the folder that a kill interrupted."""
    new, old = _beside(folder)
    if last_complete(folder) == old:
        old.rename(folder)
    remove(old)
    remove(new)


def is_leftover(path: Path) -> bool:
    """Whether a file is one that `replace_file` was writing when it was killed."""
    return re.fullmatch(rf"\..+\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}", path.name) is not None


def remove(path: Path) -> None:
    """Remove a file, a folder or a link (never what it points to), if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def numbered_folders(folder: Path, prefix: str) -> list[Path]:
    """The folders called `prefix` and digits, in the order of their numbers; what else is there is not meant."""
    found = [p for p in folder.glob(f"{prefix}*") if re.fullmatch("[0-9]+", p.name.removeprefix(prefix))]
    return sorted((p for p in found if p.is_dir()), key=lambda p: (int(p.name.removeprefix(prefix)), p.name))


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where the new and the old folder are meanwhile: hidden, so that they are nobody's copies."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}{TEMPORARY}"), folder.with_name(f".{folder.name}{RETIRED}")


@contextmanager
def _discarded_on_error(new: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            remove(new)
        if os.strerror(errno.ENOSPC) in str(error):  # safetensors wraps the system's error in its own
            raise UserError(
                f"The disk of {new.parent} is full; make room and run the same command again to continue."
            ) from error
        raise


def _sync(path: Path) -> None:
    """See a file, or what a folder lists, onto the disk; Windows cannot open folders, and needs not."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- reading


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """The bytes of a regular file, `most` at most; a FIFO, a folder or a device is refused at once."""
    try:
        handle = os.open(path, os.O_RDONLY | PLAIN)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise DamagedError(path, "not a regular file")
            if most is not None and os.fstat(handle).st_size > most:
                raise DamagedError(path, f"larger than {most} bytes")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedError(path, "missing") from None
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror}); check its permissions.") from None


def require(path: Path, kind: str = "file") -> None:
    """Refuse what is there and is not a plain "file" or "folder"; a link is neither."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISDIR if kind == "folder" else stat.S_ISREG)(mode):
        raise DamagedError(path, "not a folder" if kind == "folder" else "not a regular file")


def parse(content: bytes) -> Any:
    """A JSON value, or a ValueError in a few words; a key named twice, or a number that is none, is an error."""
    try:
        value = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
        json.dumps(value, allow_nan=False)  # what cannot be written again was not written by us: 1e999
    except UnicodeDecodeError:
        raise ValueError("not text") from None
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is named twice")
    return found


def _no_number(word: str) -> float:
    raise ValueError(word)


# ---- JSON with a checksum


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all, with `sha256`, the `json_digest` of the rest."""
    write_text(path, json.dumps(_stamped(value), indent=1) + "\n")


def read_json(path: str | Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object that `write_json` wrote, without its checksum."""
    content = read_bytes(path, most)
    try:
        return _checked(parse(content))
    except ValueError as error:
        raise DamagedError(path, error) from None


def append_lines(path: str | Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Add JSON lines, each with its checksum, to a file that ends in a whole line, and see them onto the disk."""
    path = Path(path)
    require(path)
    new = not path.exists()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | PLAIN | NO_LINK, 0o666)
    except OSError as error:
        raise UserError(f"Cannot write {path} ({error.strerror}); remove what is in its place.") from None
    with os.fdopen(handle, "ab") as file:
        file.write(_lines(values))
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync(path.parent)


def write_lines(path: str | Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines whole or not at all."""
    write_bytes(path, _lines(values))


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """The JSON lines of a file, none if it is not there; a last line without its end, as a kill leaves it, is left out."""
    if not Path(path).exists():
        return []
    values = []
    for number, line in enumerate(read_bytes(path, MOST_LINES).split(b"\n")[:-1], 1):
        try:
            values.append(_checked(parse(line)))
        except ValueError as error:
            raise DamagedError(path, f"line {number} is {error}") from None
    return values


def _lines(values: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(_stamped(value)) + "\n" for value in values).encode()


def _as_read(value: Any) -> Any:
    """A value as it will be read: keys are text, tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False))


def _stamped(value: Mapping[str, Any]) -> dict[str, Any]:
    rest = _as_read(value)
    return {**rest, "sha256": json_digest(rest)}


def _checked(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004
    if "sha256" not in value:
        raise ValueError("without its checksum")
    if value.pop("sha256") != json_digest(value):
        raise ValueError("changed: its checksum does not fit")
    return value


# ---- tensors with a checksum


def write_tensors(path: str | Path, tensors: Mapping[str, "Tensor"], note: Mapping[str, Any]) -> None:
    """Write tensors and a JSON note as one safetensors file, whole or not at all, with a checksum over both."""
    from safetensors.torch import save_file

    from cop2l.kernel.exact import digest

    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if address in storages else value  # the format has no shared memory
        storages.add(address)
    text = _as_read(note)
    # One entry only: several would be written in an order that changes from process to process.
    about = {"cop2l": json.dumps({"note": text, "sha256": json_digest([text, digest(plain)])})}
    replace_file(path, lambda new: save_file(plain, new, about))


def read_tensors(path: str | Path) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """The tensors and the note of a file that `write_tensors` wrote, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from cop2l.kernel.exact import digest

    content = read_bytes(path)
    try:
        size = int.from_bytes(content[:8], "little")
        about = parse(parse(content[8 : 8 + size])["__metadata__"]["cop2l"].encode())
        note, expected = about["note"], about["sha256"]
        tensors = load(content)
        fits = expected == json_digest([note, digest(tensors)]) and isinstance(note, dict)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError):
        raise DamagedError(path, "not a complete file of tensors with a note") from None
    if not fits:
        raise DamagedError(path, "its checksum does not fit")
    return tensors, note


# ---- locking


class Lock:
    """Held by one process at a time; `busy` is the sentence for the others, with {holder} for who that is.

    The file stays when the lock is released: removing it would let two processes hold two files of one name.
    """

    def __init__(self, path: str | Path, busy: str) -> None:
        from filelock import FileLock

        self.path, self.busy = Path(path), busy
        self._lock = FileLock(str(path), timeout=0, thread_local=False)

    def __enter__(self) -> Self:
        from filelock import Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
        require(self.path)
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(self.busy.replace("{holder}", self._holder())) from None
        name = f"process {os.getpid()} on {socket.gethostname()}".ljust(300)[:300]
        with suppress(OSError), self.path.open("r+b") as file:
            file.seek(1)  # the first byte is the one that is locked on Windows
            file.write(f"{name}\n".encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _holder(self) -> str:
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(1)
            return file.read(300).decode(errors="replace").strip(" \0\n")
        return "its name cannot be read"
