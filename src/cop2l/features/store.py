"""The cache: one folder per (data, backbone, resolution), memory-mappable, found again by name.

An entry is a folder of `.npy` files and `entry.json`. Rows stand in class order (the order of the data set
within a class), so that a task of consecutive classes is a slice of the memory map and not a copy.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError
from cop2l.files import file_digest, read_json, replace_folder, write_json
from cop2l.streams import home

PARTS = ("train", "test")
FORMAT = 1
NEEDED = {"key", "spec", "parts", "files", "classes", "pretrained_on"}
CHUNK = 4096
"""Rows that are copied at a time: memory stays small however long a part is."""


def root() -> Path:
    """The folder that holds all entries."""
    return home() / "features"


def content_hash(spec: Mapping[str, Any]) -> str:
    """The key of an entry: a hash of everything its features are a function of."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """One finished cache entry."""

    folder: Path
    about: dict[str, Any]

    @property
    def key(self) -> str:
        """The content hash."""
        return str(self.about["key"])

    @property
    def name(self) -> str:
        """What a stream of these features is called, e.g. cifar10@dinov2-vits14-224."""
        return stream_name(self.about["spec"])

    def part(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Features (a memory map) and labels of "train" or "test", in class order.

        The map is copy-on-write: torch takes it without a copy, and nobody can change the file through it.
        """
        try:
            x = np.load(self.folder / f"x_{part}.npy", mmap_mode="c", allow_pickle=False)
            y = np.load(self.folder / f"y_{part}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise UserError(f"The cached features in {self.folder} are damaged; delete the folder.") from None
        return x, y

    def trained_on(self, data: str | Iterable[str] | None) -> "Entry":
        """The entry, with a new word on what its backbone was trained on, if one is given: that is no part of the key."""
        if data is None or (names := data_names(data)) == self.about["pretrained_on"]:
            return self
        about = {**self.about, "pretrained_on": names}
        write_json(self.folder / "entry.json", about)
        return Entry(self.folder, about)


def data_names(data: str | Iterable[str]) -> list[str]:
    """One name of a data set, or several."""
    return [data] if isinstance(data, str) else list(data)


def stream_name(spec: Mapping[str, Any]) -> str:
    """The name under which an entry is asked for; `data:N` are N pictures of each part."""
    limit = f":{spec['limit']}" if spec.get("limit") else ""
    return f"{spec['dataset']}{limit}@{spec['backbone']}-{spec['size']}"


def entries() -> Iterator[Entry]:
    """All finished entries, by name."""
    for file in sorted(root().glob("[!.]*/entry.json")):
        if (about := _read(file)) is not None:
            yield Entry(file.parent, about)


def find_entry(name: str) -> Entry:
    """The entry with this name; `#` and the first digits of its key choose between several."""
    plain, _, key = name.partition("#")
    found = [entry for entry in entries() if entry.name == plain and entry.key.startswith(key)]
    if not found:
        data, _, rest = plain.partition("@")
        backbone, _, size = rest.rpartition("-")
        command = f"cop2l features {data.replace(':', ' --limit ')} --backbone {backbone} --size {size}"
        raise UserError(
            f"There are no cached features {name!r} (DATA@BACKBONE-PX); make them with: {command}"
        )
    if len(found) > 1:
        keys = " or ".join(f"{e.name}#{e.key[:6]}" for e in found)
        raise UserError(f"There are {len(found)} entries of cached features {name!r}; choose one: {keys}.")
    return found[0]


def lookup(key: str) -> Entry | None:
    """The finished entry with this key, if there is one."""
    return next((entry for entry in entries() if entry.key == key), None)


class Writer:
    """Writes one entry: part by part in the order of the data set, then `finish`.

    Everything goes to a hidden folder, which gets its name when the entry is complete.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = dict(spec)
        self.key = content_hash(spec)
        self.target = root() / f"{stream_name(spec).replace('/', '_').replace(':', '_')}-{self.key}"
        self.folder = root() / f".{self.target.name}.partial"
        self.lock = home() / "locks" / f"{self.target.name}.lock"
        """One process per entry: a second one would write to the same files."""
        self.parts: dict[str, dict[str, int]] = {}

    def write(self, part: str, labels: np.ndarray, chunks: Iterator[np.ndarray]) -> None:
        """Write one part: labels, and features in chunks, both in the order of the data set."""
        self.folder.mkdir(parents=True, exist_ok=True)
        labels = np.asarray(labels).astype(np.int64)
        order = np.argsort(labels, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        x, start = None, 0
        for chunk in chunks:
            if not np.isfinite(chunk).all():
                raise UserError(f"The features of the {part} part are not all finite; nothing was stored.")
            if x is None:
                x = np.lib.format.open_memmap(
                    self.folder / f"x_{part}.npy", "w+", np.float32, (len(labels), chunk.shape[1])
                )
            x[position[start : start + len(chunk)]] = chunk
            start += len(chunk)
        if x is None or start != len(labels):
            raise UserError(f"The {part} part has {len(labels)} labels but features of {start} rows.")
        x.flush()
        np.save(self.folder / f"y_{part}.npy", labels[order])
        self.parts[part] = {"rows": len(labels), "width": x.shape[1]}

    def finish(self, **about: Any) -> Entry:
        """Name the folder: from here on the entry exists."""
        files = {path.name: file_digest(path) for path in sorted(self.folder.glob("*.npy"))}
        text = {"format": FORMAT, "key": self.key, "spec": self.spec, "parts": self.parts, "files": files}
        text |= about
        write_json(self.folder / "entry.json", text)
        replace_folder(self.target, self.folder.rename)  # in the place of a damaged one, if there is any
        return Entry(self.target, text)


def _read(path: Path) -> dict[str, Any] | None:
    """What an entry says about itself; None if it is damaged, or of another version."""
    try:
        about = read_json(path)
    except UserError:
        return None
    return about if about.get("format") == FORMAT and about.keys() >= NEEDED else None
