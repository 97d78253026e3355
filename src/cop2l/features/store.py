"""The cache of features: one folder per data set, backbone and resolution.

An entry is a folder of `.npy` files and `entry.json`. Its rows are sorted by class, and within a class they keep the
order of the data set. So a task of consecutive classes is a slice of the memory map and not a copy.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError
from cop2l.files import read_json, replace_folder, write_json
from cop2l.streams import home

PARTS = ("train", "test")
FORMAT = 1
CHUNK = 4096
"""Rows that are copied at a time, to save memory."""


def root() -> Path:
    """The folder that holds all entries."""
    return home() / "features"


def content_hash(spec: Mapping[str, Any]) -> str:
    """The key of an entry: a hash of everything that its features depend on."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """One finished cache entry."""

    folder: Path
    about: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.about["key"])

    @property
    def name(self) -> str:
        """The name of the stream, such as cifar10@dinov2-vits14-224."""
        return stream_name(self.about["spec"])

    def part(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Features (a memory map) and labels of "train" or "test", sorted by class.

        The map is copy-on-write: torch takes it without a copy, and writing to it does not change the file.
        """
        try:
            x = np.load(self.folder / f"x_{part}.npy", mmap_mode="c", allow_pickle=False)
            y = np.load(self.folder / f"y_{part}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise UserError(f"The cached features in {self.folder} are damaged; delete the folder.") from None
        return x, y

    def trained_on(self, data: str | Iterable[str] | None) -> "Entry":
        """The entry with these data sets as the backbone's training data, if any are given; they are no part of the key."""
        if data is None or (names := data_names(data)) == self.about["pretrained_on"]:
            return self
        about = {**self.about, "pretrained_on": names}
        write_json(self.folder / "entry.json", about)
        return Entry(self.folder, about)


def data_names(data: str | Iterable[str]) -> list[str]:
    """One name of a data set, or several, as a list."""
    return [data] if isinstance(data, str) else list(data)


def stream_name(spec: Mapping[str, Any]) -> str:
    """The name of an entry; `data:N` are N pictures of each part."""
    limit = f":{spec['limit']}" if spec.get("limit") else ""
    return f"{spec['dataset']}{limit}@{spec['backbone']}-{spec['size']}"


def entries() -> Iterator[Entry]:
    """All finished entries, by name."""
    for file in sorted(root().glob("[!.]*/entry.json")):
        if (about := _read_entry(file)) is not None:
            yield Entry(file.parent, about)


def find_entry(name: str) -> Entry:
    """The entry with this name; `#` and the first digits of its key choose between several."""
    stream, _, key = name.partition("#")
    candidates = [entry for entry in entries() if entry.name == stream and entry.key.startswith(key)]
    if not candidates:
        data, _, features = stream.partition("@")
        backbone, _, size = features.rpartition("-")
        command = f"cop2l features {data.replace(':', ' --limit ')} --backbone {backbone} --size {size}"
        raise UserError(
            f"There are no cached features {name!r} (DATA@BACKBONE-PX); make them with: {command}"
        )
    if len(candidates) > 1:
        keys = " or ".join(f"{e.name}#{e.key[:6]}" for e in candidates)
        raise UserError(
            f"There are {len(candidates)} entries of cached features {name!r}; choose one: {keys}."
        )
    return candidates[0]


def lookup(key: str) -> Entry | None:
    """The finished entry with this key, or None."""
    return next((entry for entry in entries() if entry.key == key), None)


class Writer:
    """Writes one entry, part by part, to a hidden folder, which `finish` renames."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = dict(spec)
        self.key = content_hash(spec)
        self.target = root() / f"{stream_name(spec).replace('/', '_').replace(':', '_')}-{self.key}"
        self.folder = root() / f".{self.target.name}.partial"
        self.lock = home() / "locks" / f"{self.target.name}.lock"
        """Only one process at a time writes an entry."""
        self.parts: dict[str, dict[str, int]] = {}

    def write(self, part: str, labels: np.ndarray, chunks: Iterator[np.ndarray]) -> None:
        """Write one part: labels, and chunks of features, in the order of the data set."""
        self.folder.mkdir(parents=True, exist_ok=True)
        labels = np.asarray(labels).astype(np.int64)
        order = np.argsort(labels, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        x, start = None, 0
        for chunk in chunks:
            if x is None:
                x = np.lib.format.open_memmap(
                    self.folder / f"x_{part}.npy", "w+", np.float32, (len(labels), chunk.shape[1])
                )
            x[position[start : start + len(chunk)]] = chunk
            start += len(chunk)
        if x is None or start != len(labels):
            raise UserError(
                f"The {part} part has {len(labels)} labels but {start} rows of features; give one label per row."
            )
        x.flush()
        np.save(self.folder / f"y_{part}.npy", labels[order])
        self.parts[part] = {"rows": len(labels), "width": x.shape[1]}

    def finish(self, **about: Any) -> Entry:
        """Rename the hidden folder; from now on the entry exists."""
        content = {"format": FORMAT, "key": self.key, "spec": self.spec, "parts": self.parts, **about}
        write_json(self.folder / "entry.json", content)
        replace_folder(self.target, self.folder.rename)  # replaces a damaged entry
        return Entry(self.target, content)


def _read_entry(path: Path) -> dict[str, Any] | None:
    """The description of an entry; None if it is damaged or of another version."""
    try:
        about = read_json(path)
    except UserError:
        return None
    return about if about.get("format") == FORMAT else None
