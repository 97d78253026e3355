"""A fingerprint of labelled data: equal data, equal text, whatever holds it."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

BLOCK_BYTES = 1 << 22


def fingerprint(x: Any, y: Any) -> str:
    """SHA-256 over the dtype, the shape and the bytes of x, and over the labels as 64-bit integers.

    A numpy array, a memory map and a torch tensor with the same content give the same value; the data is
    read in blocks of a few megabytes.

    >>> x, y = np.arange(6, dtype=np.float32).reshape(3, 2), [0, 1, 0]
    >>> fingerprint(x, y) == fingerprint(torch.from_numpy(x), torch.tensor(y))
    True
    >>> fingerprint(x, y) == fingerprint(x.astype(np.float64), y)
    False
    """
    labels = np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
    digest = hashlib.sha256(b"cop2l data 1\n")
    for array, kind in ((x, None), (labels, np.dtype("<i8"))):
        for number, block in enumerate(_blocks(array)):
            plain = _plain(block, kind)
            if number == 0:
                digest.update(f"{plain.dtype.str} {tuple(array.shape)}\n".encode())
            digest.update(plain.data if plain.flags.c_contiguous else plain.tobytes())
    return digest.hexdigest()


def _blocks(array: Any) -> Iterator[Any]:
    """The array in blocks of rows; at least one block, so that an empty array still names its dtype."""
    rows = len(array)
    size = max(1, rows)
    if rows:
        width = array[:1].nbytes
        size = max(1, BLOCK_BYTES // max(1, width))
    for start in range(0, max(1, rows), size):
        yield array[start : start + size]


def _plain(block: Any, kind: np.dtype | None) -> np.ndarray:
    """The block as a little-endian numpy array; bfloat16, which numpy lacks, as its 16-bit patterns."""
    if isinstance(block, torch.Tensor):
        block = block.detach().cpu()
        block = (block.view(torch.int16) if block.dtype == torch.bfloat16 else block).numpy()
    block = np.asarray(block)
    return np.ascontiguousarray(block, dtype=kind or block.dtype.newbyteorder("<"))
