"""A fingerprint of labelled data: equal data, equal text, whatever holds it."""

import hashlib
from typing import Any

import numpy as np
import torch

BLOCK_BYTES = 1 << 22


class Fingerprint:
    """SHA-256 over the dtype, the shape and the bytes of x, and over the labels as 64-bit integers.

    The number of examples is said first; blocks of rows follow, of any sizes.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._digest = hashlib.sha256(b"cop2l data 1\n")
        self._labels: list[np.ndarray] = []
        self._kind: tuple[str, tuple[int, ...]] | None = None

    def add(self, x: Any, y: Any) -> None:
        """The next rows."""
        rows = _plain(x)
        kind = (rows.dtype.str, rows.shape[1:])
        if self._kind is None:
            self._kind = kind
            self._digest.update(f"{kind[0]} {(self._n, *kind[1])}\n".encode())
        if kind != self._kind:
            raise ValueError(f"A block of examples has dtype and shape {kind}, the first had {self._kind}.")
        self._digest.update(rows.data if rows.size else b"")
        self._labels.append(_plain(y).astype("<i8"))

    def hexdigest(self) -> str:
        """The fingerprint, once all rows were added."""
        labels = np.concatenate(self._labels) if self._labels else np.empty(0, "<i8")
        whole = self._digest.copy()
        whole.update(f"{labels.dtype.str} {labels.shape}\n".encode())
        whole.update(labels.data if labels.size else b"")
        return whole.hexdigest()


def fingerprint(x: Any, y: Any) -> str:
    """The fingerprint of a whole array; it is read in blocks of a few megabytes.

    A numpy array, a memory map and a torch tensor with the same content give the same value.

    >>> x, y = np.arange(6, dtype=np.float32).reshape(3, 2), [0, 1, 0]
    >>> fingerprint(x, y) == fingerprint(torch.from_numpy(x), torch.tensor(y))
    True
    >>> fingerprint(x, y) == fingerprint(x.astype(np.float64), y)
    False
    """
    found = Fingerprint(len(x))
    rows = max(1, BLOCK_BYTES // max(1, x[:1].nbytes))
    for start in range(0, max(1, len(x)), rows):
        found.add(x[start : start + rows], y[start : start + rows])
    return found.hexdigest()


def _plain(block: Any) -> np.ndarray:
    """The block as a little-endian numpy array; bfloat16, which numpy lacks, as its 16-bit patterns."""
    if isinstance(block, torch.Tensor):
        block = block.detach().cpu()
        block = (block.view(torch.int16) if block.dtype == torch.bfloat16 else block).numpy()
    block = np.asarray(block)
    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
