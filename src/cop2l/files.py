"""Files that are written whole or not at all, with a checksum, and read with care; and locks."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
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


# ---- files and folders that are replaced whole


def replace_file(path: str | Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a new file, and move it to `path` once it is on the disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    with _removed_on_error(new):
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
    """Move a finished file to `path` on the same disk; on return, the disk has it."""
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
    with _removed_on_error(new):
        fill(new)
        for path in (*new.rglob("*"), new):
            _sync(path)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    _sync(folder.parent)
    with suppress(OSError):
        remove(old)


def last_complete(folder: Path) -> Path:
    """The folder itself, or `.NAME.old` if a kill came between the two renames."""
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
    """Whether `replace_file` was writing this file when it was killed."""
    return re.fullmatch(rf"\..+\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}", path.name) is not None


def remove(path: Path) -> None:
    """Remove a file, a folder or a link (never what it points to), if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def numbered_folders(folder: Path, prefix: str) -> list[Path]:
    """The folders named `prefix` and a number, in the order of the numbers."""
    numbers = {path: path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*") if path.is_dir()}
    return sorted(
        (path for path in numbers if numbers[path].isdecimal()), key=lambda path: int(numbers[path])
    )


def _beside(folder: Path) -> tuple[Path, Path]:
    """The names of the new and the old folder during a replacement; hidden names, which no pattern finds."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}{TEMPORARY}"), folder.with_name(f".{folder.name}.old")


@contextmanager
def _removed_on_error(new: Path) -> Iterator[None]:
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
    """Wait until the disk has a file, or the list of a folder; Windows cannot open folders, and needs not."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- reading


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedError(path, "missing") from None
    except OSError as error:
        raise UserError(
            f"Cannot read {path} ({error.strerror}); check that it is a file that you may read."
        ) from None


def parse(content: bytes) -> Any:
    """The JSON value of some bytes, or a ValueError in a few words."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


# ---- JSON with a checksum


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all, with its `json_digest` as `sha256`."""
    write_text(path, json.dumps(_stamped(value), indent=1) + "\n")


def read_json(path: str | Path) -> dict[str, Any]:
    """The object that `write_json` wrote, without its checksum."""
    content = read_bytes(path)
    try:
        return _checked(parse(content))
    except ValueError as error:
        raise DamagedError(path, error) from None


def append_line(path: str | Path, value: Mapping[str, Any]) -> None:
    """Add a JSON line with its checksum to a file; on return, the disk has it."""
    path = Path(path)
    with path.open("ab") as file:
        file.write(_line(value))
    _sync(path)
    _sync(path.parent)


def write_lines(path: str | Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines whole or not at all."""
    write_bytes(path, b"".join(map(_line, values)))


def read_lines(path: str | Path) -> list[dict[str, Any]]:
    """The JSON lines of a file, none if it does not exist; a last line that a kill cut short is left out."""
    if not Path(path).exists():
        return []
    values = []
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], 1):
        try:
            values.append(_checked(parse(line)))
        except ValueError as error:
            raise DamagedError(path, f"line {number} is {error}") from None
    return values


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(_stamped(value)) + "\n").encode()


def _as_read(value: Any) -> Any:
    """A value as it will be read: keys are text, tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False))


def _stamped(value: Mapping[str, Any]) -> dict[str, Any]:
    content = _as_read(value)
    return {**content, "sha256": json_digest(content)}


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
    content = _as_read(note)
    # One entry only: several would be written in an order that changes from process to process.
    metadata = {"cop2l": json.dumps({"note": content, "sha256": json_digest([content, digest(plain)])})}
    replace_file(path, lambda new: save_file(plain, new, metadata))


def read_tensors(path: str | Path) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """The tensors and the note of a file that `write_tensors` wrote, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from cop2l.kernel.exact import digest

    content = read_bytes(path)
    try:
        size = int.from_bytes(content[:8], "little")
        metadata = parse(parse(content[8 : 8 + size])["__metadata__"]["cop2l"].encode())
        note, expected = metadata["note"], metadata["sha256"]
        tensors = load(content)
        fits = expected == json_digest([note, digest(tensors)]) and isinstance(note, dict)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError):
        raise DamagedError(path, "not a complete file of tensors with a note") from None
    if not fits:
        raise DamagedError(path, "its checksum does not fit")
    return tensors, note


# ---- locking


class Lock:
    """A lock that one process holds at a time; `busy` is the error for the others, and names the {holder}.

    The file stays when the lock is released: removing it would let two processes hold two files of one name.
    """

    def __init__(self, path: str | Path, busy: str) -> None:
        from filelock import FileLock

        self.path, self.busy = Path(path), busy
        self._lock = FileLock(str(path), timeout=0, thread_local=False)

    def __enter__(self) -> Self:
        from filelock import Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
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
