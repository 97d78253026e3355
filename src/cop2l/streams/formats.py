"""Readers of the data sets' files: IDX (the MNIST family), CIFAR (pickled or binary), and folders of pictures."""

import gzip
import io
import pickle
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cop2l.errors import UserError
from cop2l.streams.pictures import Pictures, from_folders

PIXELS = 3 * 32 * 32
Arrays = tuple[Any, np.ndarray, Any, np.ndarray]
"""Training pictures and labels, test pictures and labels; pictures are bytes (n, channels, height, width) or `Pictures`."""


def _idx(_: Path, files: Sequence[Path]) -> Arrays:
    x, y, x_test, y_test = (_values(file) for file in files)
    for pictures, labels, file in ((x, y, files[0]), (x_test, y_test, files[2])):
        if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
            raise UserError(
                f"{file} does not fit its file of labels ({len(labels)} labels); get both files again."
            )
    if x.shape[1:] != x_test.shape[1:]:
        raise UserError(f"The pictures of {files[0]} and {files[2]} differ in size; get both files again.")
    return x[:, None], y.astype(np.int64), x_test[:, None], y_test.astype(np.int64)


def _letters(folder: Path, files: Sequence[Path]) -> Arrays:
    """EMNIST letters, which are stored transposed and with labels from 1."""
    x, y, x_test, y_test = _idx(folder, files)
    return x.swapaxes(2, 3), y - 1, x_test.swapaxes(2, 3), y_test - 1


def _values(file: Path) -> np.ndarray:
    """The unsigned bytes of an IDX file: 0, 0, the type 8, the number of dimensions, the sizes, the data."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            content = stream.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{file} is a corrupt or truncated gzip file; delete it, and get it again."
        ) from error
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:3] != b"\0\0\x08" or not dimensions or len(content) < start:
        raise UserError(f"{file} is not an IDX file of unsigned bytes; put the original file in its place.")
    shape = tuple(int(n) for n in np.frombuffer(content, ">i4", dimensions, 4))
    if min(shape) < 1 or len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{file} does not hold the {shape} bytes that its header announces; get it again.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _cifar(_: Path, files: Sequence[Path], label: str, label_bytes: int) -> Arrays:
    """CIFAR; the last file is the test part, and the labels of CIFAR-100 are the fine ones."""
    parts = [_cifar_binary(f, label_bytes) if f.suffix == ".bin" else _cifar_pickle(f, label) for f in files]
    x, y = (np.concatenate([part[i] for part in parts[:-1]]) for i in (0, 1))
    return x, y, *parts[-1]


def _cifar_binary(file: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """A binary batch: rows of label bytes (the fine label last) and pixels."""
    content = np.fromfile(file, np.uint8)
    width = label_bytes + PIXELS
    if not len(content) or len(content) % width:
        raise UserError(f"{file} is truncated or not a CIFAR file; get it again.")
    rows = content.reshape(-1, width)
    pixels = np.ascontiguousarray(rows[:, label_bytes:])
    return pixels.reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].astype(np.int64)


def _cifar_pickle(file: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickle(file)
    fields = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
    data, labels = fields.get("data"), np.asarray(fields.get(label, ()))
    if (
        not isinstance(data, np.ndarray)
        or (data.dtype, data.ndim) != (np.uint8, 2)
        or (data.shape[1], labels.shape) != (PIXELS, data.shape[:1])
        or labels.dtype.kind not in "iu"
    ):
        raise UserError(f"{file} is not the CIFAR batch of its name; put the original file in its place.")
    return np.ascontiguousarray(data).reshape(-1, 3, 32, 32), labels.astype(np.int64)


def unpickle(file: Path) -> dict[Any, Any]:
    """The dictionary in a pickle that may hold only numbers, texts, bytes, lists and numeric arrays."""
    try:
        # Python 2 stored the bytes of arrays as texts; latin-1 keeps each byte.
        content = _RestrictedUnpickler(io.BytesIO(file.read_bytes()), encoding="latin1").load()
    except UserError:
        raise
    except Exception as error:  # a broken pickle can raise nearly any error
        raise UserError(f"{file} is truncated or not a pickle; delete it, and get it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a CIFAR batch; put the original file in its place.")
    return content


class _RestrictedUnpickler(pickle.Unpickler):
    """Builds arrays of numbers, and refuses all other classes and functions."""

    constructors: ClassVar[dict[str, Callable[..., Any]]] = {
        "numpy.core.multiarray._reconstruct": lambda _, shape, code: np.ndarray(shape, _number_type(code)),
        "numpy.ndarray": np.ndarray,
        "numpy.dtype": lambda code, *_: _number_type(code),
        "_codecs.encode": lambda text, _: text.encode("latin1"),
    }

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}".replace("numpy._core", "numpy.core")  # the name in new versions of numpy
        if path not in self.constructors:
            raise UserError(f"A data file asks for {path}, which no CIFAR file does; do not use this file.")
        return self.constructors[path]


def _number_type(code: str | bytes) -> np.dtype:
    kind = np.dtype(code.decode("latin1") if isinstance(code, bytes) else code, copy=True)
    if kind.kind not in "biuf":
        raise UserError(
            "A data file holds an array of objects, which no CIFAR file does; do not use this file."
        )
    return kind


def wnids(folder: Path) -> tuple[str, ...]:
    """The classes of TinyImageNet in the order of the labels."""
    return tuple(sorted((folder / "wnids.txt").read_text().split()))


def _tiny(folder: Path, _: Sequence[Path]) -> Arrays:
    """TinyImageNet; the validation part is the test part, because the original test part has no labels."""
    names = wnids(folder)
    annotations = folder / "val" / "val_annotations.txt"
    if len(names) != 200 or not annotations.is_file():
        raise UserError(
            f"{folder} lacks wnids.txt with 200 classes or val_annotations.txt; get TinyImageNet again."
        )
    lines = [line.split("\t") for line in annotations.read_text().splitlines() if line]
    number = {name: label for label, name in enumerate(names)}
    try:
        y_test = np.array([number[line[1]] for line in lines], np.int64)
    except (KeyError, IndexError) as error:
        raise UserError(f"{annotations} does not fit wnids.txt; get TinyImageNet again.") from error
    tests = [folder / "val" / "images" / line[0] for line in lines]
    absent = next((file for file in tests if not file.is_file()), None)
    if absent:
        raise UserError(f"There is no file {absent}; get TinyImageNet again.")
    return *from_folders(folder / "train", names, "images"), Pictures(tests), y_test


def _imagenet(folder: Path, files: Sequence[Path]) -> Arrays:
    """Imagenette and Imagewoof: a folder of pictures per class in train and in val, labelled in the order of their names."""
    names = sorted({file.name for file in files})
    return *from_folders(folder / "train", names), *from_folders(folder / "val", names)


READERS: dict[str, Callable[[Path, Sequence[Path]], Arrays]] = {
    "idx": _idx,
    "letters": _letters,
    "cifar10": partial(_cifar, label="labels", label_bytes=1),
    "cifar100": partial(_cifar, label="fine_labels", label_bytes=2),
    "tinyimagenet": _tiny,
    "imagenet": _imagenet,
}
"""Readers by format, from the folder and the files of a data set."""
