"""The CIFAR files: the python version (pickles, read by a restricted unpickler) and the binary version."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.errors import UserError
from cop2l.streams.idx import Arrays

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
PIXELS = 3 * 32 * 32


def find10(folder: Path) -> tuple[Path, ...] | None:
    """The six files of CIFAR-10, of the python or of the binary version."""
    return _all(folder, BATCHES) or _all(folder, tuple(f"{name}.bin" for name in BATCHES))


def find100(folder: Path) -> tuple[Path, ...] | None:
    """The two files of CIFAR-100, of the python or of the binary version."""
    return _all(folder, ("train", "test")) or _all(folder, ("train.bin", "test.bin"))


def _all(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...] | None:
    files = tuple(folder / name for name in names)
    return files if all(file.is_file() for file in files) else None


def read10(files: tuple[Path, ...]) -> Arrays:
    """CIFAR-10: the last file is the test part."""
    return _read(files, label="labels", label_bytes=1)


def read100(files: tuple[Path, ...]) -> Arrays:
    """CIFAR-100 with its 100 fine labels."""
    return _read(files, label="fine_labels", label_bytes=2)


def _read(files: tuple[Path, ...], label: str, label_bytes: int) -> Arrays:
    parts = [_binary(f, label_bytes) if f.suffix == ".bin" else _pickled(f, label) for f in files]
    x, y = (np.concatenate([part[i] for part in parts[:-1]]) for i in (0, 1))
    return x, y, *parts[-1]


def _binary(file: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of label bytes (the fine label last) and pixels."""
    content = np.fromfile(file, np.uint8)
    width = label_bytes + PIXELS
    if not len(content) or len(content) % width:
        raise UserError(f"{file} is truncated or not a CIFAR file; get it again.")
    rows = content.reshape(-1, width)
    return _pictures(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)


def _pickled(file: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    batch = unpickle(file)
    fields = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
    data, labels = fields.get("data"), np.asarray(fields.get(label, ()))
    if (
        not isinstance(data, np.ndarray)
        or (data.dtype, data.ndim) != (np.uint8, 2)
        or (data.shape[1], labels.shape) != (PIXELS, data.shape[:1])
        or labels.dtype.kind not in "iu"
    ):
        raise UserError(f"{file} is not the CIFAR batch it should be; put the original file in its place.")
    return _pictures(data), labels.astype(np.int64)


def _pictures(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).reshape(-1, 3, 32, 32)


def unpickle(file: Path) -> dict[Any, Any]:
    """The dictionary in a pickle, which may hold numbers, texts, bytes, lists and numeric arrays only."""
    try:
        # Python 2 wrote these files: its texts, array bytes among them, are read as latin-1.
        content = _Plain(io.BytesIO(file.read_bytes()), encoding="latin1").load()
    except UserError:
        raise
    except Exception as error:  # a broken pickle can raise nearly anything
        raise UserError(f"{file} is truncated or not a pickle; delete it and get it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a CIFAR batch; put the original file in its place.")
    return content


class _Plain(pickle.Unpickler):
    """Knows how to build arrays of numbers, and nothing else that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("multiarray", "_reconstruct"): _empty_array,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): _number,
            ("_codecs", "encode"): _latin1,
        }
        # numpy has moved its inner module: numpy.core.multiarray, numpy._core.multiarray.
        inner = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (inner, name) not in known:
            raise UserError(
                f"A data file asks for {module}.{name}, which no CIFAR file does; do not use this file."
            )
        return known[inner, name]


def _empty_array(_: type, shape: tuple[int, ...], code: Any) -> np.ndarray:
    return np.ndarray(shape, _number(code))


def _number(code: Any, *_: Any) -> np.dtype:
    text = code.decode("latin1") if isinstance(code, bytes) else code
    kind = np.dtype(text)
    if kind.kind not in "biuf":
        raise UserError(
            "A data file holds an array of objects, which no CIFAR file does; do not use this file."
        )
    return np.dtype(text, copy=True)


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")
