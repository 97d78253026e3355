"""Files of the MNIST family: the IDX format, plain or gzip."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from cop2l.errors import UserError

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LETTERS = tuple(
    f"emnist-letters-{part}-{kind}-ubyte"
    for part in ("train", "test")
    for kind in ("images-idx3", "labels-idx1")
)


def find(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...] | None:
    """The files of these names, gzip or plain; None unless all are there."""
    found = []
    for name in names:
        here = [file for file in (folder / f"{name}.gz", folder / name) if file.is_file()]
        if not here:
            return None
        found.append(here[0])
    return tuple(found)


def read(files: tuple[Path, ...]) -> Arrays:
    """Training pictures and labels, test pictures and labels; pictures are bytes, (n, 1, height, width)."""
    x, y, x_test, y_test = (_values(file) for file in files)
    for pictures, labels, file in ((x, y, files[0]), (x_test, y_test, files[2])):
        if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
            raise UserError(
                f"{file} does not fit its file of labels ({len(labels)} of them); get both again."
            )
    if x.shape[1:] != x_test.shape[1:]:
        raise UserError(f"The pictures of {files[0]} and {files[2]} have different sizes; get both again.")
    return x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64)


def read_letters(files: tuple[Path, ...]) -> Arrays:
    """EMNIST letters: the pictures are stored transposed, the labels count from 1."""
    x, y, x_test, y_test = read(files)
    return x.swapaxes(2, 3), y - 1, x_test.swapaxes(2, 3), y_test - 1


def _values(file: Path) -> np.ndarray:
    """The unsigned bytes of one IDX file: 0, 0, the type 8, the number of dimensions, the sizes, the data."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is a corrupt or truncated gzip file; delete it and get it again.") from error
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:3] != b"\0\0\x08" or not dimensions or len(content) < start:
        raise UserError(f"{file} is not an IDX file of unsigned bytes; put the original file in its place.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">i4", dimensions, 4))
    if min(shape) < 1 or len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{file} does not hold the {shape} bytes that it announces; get it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
