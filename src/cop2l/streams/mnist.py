"""The MNIST family: files in the IDX format, and the permuted and rotated domains."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from cop2l.errors import UserError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(file: Path) -> np.ndarray:
    """The unsigned bytes of one IDX file, plain or gzip."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{file} is a corrupt or truncated gzip file ({error}); delete it and get it again."
        ) from error
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:3] != b"\0\0\x08" or not dimensions or len(content) < start:
        raise UserError(f"{file} is not an IDX file of unsigned bytes; give the original file.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">i4", dimensions, 4))
    if len(content) - start != np.prod(shape):
        raise UserError(f"{file} is truncated or too long for its header {shape}; get it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read(files: tuple[Path, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training pictures and labels, test pictures and labels; pictures (n, 1, height, width), bytes."""
    x, y, x_test, y_test = (idx(file) for file in files)
    for pictures, labels, file in ((x, y, files[0]), (x_test, y_test, files[2])):
        if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
            raise UserError(
                f"{file} holds {pictures.shape} pictures for {labels.shape} labels; get both again."
            )
    return x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64)
