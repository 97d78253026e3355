"""Encoded pictures, decoded one by one or all at one size."""

import hashlib
import io
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.console import Bar
from cop2l.errors import UserError
from cop2l.files import write_array
from cop2l.streams.folders import home

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


class Scaled:
    """(x / top - mean) / std for each channel, in float32, by a table of the 256 values of a byte.

    >>> Scaled()(np.array([[[[0, 255]]]], np.uint8))
    array([[[[-1.,  1.]]]], dtype=float32)
    """

    def __init__(self, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,), top: int = 255) -> None:
        byte = np.arange(256, dtype=np.float64) / top
        self.tables = [((byte - m) / s).astype(np.float32) for m, s in zip(mean, std, strict=True)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(x.shape, np.float32)
        for channel in range(x.shape[1]):
            # A single mean serves all channels.
            out[:, channel] = self.tables[channel % len(self.tables)][x[:, channel]]
        return out


class Pictures(Sequence[np.ndarray]):
    """Encoded pictures in files or bytes; picture i is decoded to bytes (channels, height, width).

    `mode` is L (one channel) or RGB; by default it is that of the first picture.
    """

    def __init__(self, sources: Sequence[Path | bytes], mode: str | None = None) -> None:
        self.sources = sources
        self._mode = mode

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Pictures(self.sources[index])
        if isinstance(index, np.ndarray):
            return Pictures([self.sources[i] for i in index])
        return self.decode(index)

    @property
    def mode(self) -> str:
        """L (grey) or RGB."""
        if self._mode is None:
            with self._open(0) as picture:
                self._mode = "L" if picture.mode in ("1", "L", "LA") else "RGB"
        return self._mode

    def decode(self, index: int, side: int | None = None) -> np.ndarray:
        """One picture, at its own size or resized (bicubic) to a square of this side."""
        from PIL import Image

        try:
            with self._open(index) as picture:
                converted = picture.convert(self.mode)
                if side and converted.size != (side, side):
                    converted = converted.resize((side, side), Image.Resampling.BICUBIC)
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(
                f"{self._label(index)} is not a readable picture; remove or replace it."
            ) from error
        pixels = np.asarray(converted)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def array(self, side: int | None = None) -> np.ndarray:
        """All pictures as bytes (n, channels, height, width); those of files are cached."""
        if not all(isinstance(source, Path) for source in self.sources):
            return self._decode_all(side)
        file = home() / "pictures" / f"{self._key(side)}.npy"
        if not file.is_file():
            write_array(file, self._decode_all(side))
        decoded: np.ndarray = np.load(file, mmap_mode="r")
        return decoded

    def fingerprint(self, y: Any) -> str:
        """SHA-256 of the encoded pictures and of their labels."""
        digest = hashlib.sha256(b"cop2l pictures 1\n")
        for source, label in zip(self.sources, y, strict=True):
            content = source if isinstance(source, bytes) else source.read_bytes()
            digest.update(f"{int(label)} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def _decode_all(self, side: int | None) -> np.ndarray:
        first = self.decode(0, side)
        out = np.empty((len(self), *first.shape), np.uint8)
        with Bar("decoding", len(self)) as bar:
            for index in range(len(self)):
                picture = self.decode(index, side)
                if picture.shape != first.shape:
                    raise UserError(
                        f"{self._label(index)} is {_size(picture)} pixels, {self._label(0)} is {_size(first)}; resize all"
                        " with size=, such as size=64."
                    )
                out[index] = picture
                bar.update()
        return out

    def _open(self, index: int) -> Any:
        from PIL import Image

        source = self.sources[index]
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)

    def _label(self, index: int) -> str:
        source = self.sources[index]
        return f"Picture {index}" if isinstance(source, bytes) else str(source)

    def _key(self, side: int | None) -> str:
        """The name of the cached pictures: a hash of side, mode, and each file's path, size and time of change."""
        digest = hashlib.sha256(f"{side} {self.mode}\n".encode())
        for source in self.sources:
            assert isinstance(source, Path)
            stat = source.stat()
            digest.update(f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:32]


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[2]} x {picture.shape[1]}"


def picture_files(folder: Path) -> list[Path]:
    """The pictures in a folder, in the order of their names, without hidden files."""
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(p for p in files if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))


def class_folders(folder: Path) -> list[str]:
    """Names of the subfolders with pictures, one per class, in order."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".") and picture_files(p))


def from_folders(folder: Path, names: Sequence[str], inside: str = "") -> tuple[Pictures, np.ndarray]:
    """The pictures in folder/<name>/<inside> class by class, and their labels."""
    files = [picture_files(folder / name / inside) for name in names]
    labels = np.repeat(np.arange(len(names)), [*map(len, files)])
    if not len(labels):
        raise UserError(f"There are no pictures in the folders of {folder}; get the data set again.")
    return Pictures([*chain(*files)]), labels
