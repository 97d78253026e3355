"""The fingerprint of a sample."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

ROWS = 4096


def blocks_of(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """A sample in blocks of rows; an empty sample has one empty block, which shows its shape."""
    for start in range(0, max(1, len(x)), ROWS):
        yield x[start : start + ROWS], y[start : start + ROWS]


def fingerprint(n: int, blocks: Iterable[tuple[Any, Any]], groups: np.ndarray | None = None) -> str:
    """SHA-256 over the dtype, the shape and the bytes of x, and over labels and numbers of groups as 64-bit integers.

    It does not depend on the sizes of the blocks, and is the same for a numpy array, a memory map and a tensor.
    """
    hasher, labels, previous_header = hashlib.sha256(b"cop2l data 1\n"), [np.empty(0, "<i8")], ""
    for x, y in blocks:
        rows = numbers(x)
        header = f"{rows.dtype.str} {(n, *rows.shape[1:])}\n"
        if header != previous_header:  # with another type the same bytes are other numbers
            hasher.update(header.encode())
        previous_header = header
        hasher.update(rows.reshape(-1).view(np.uint8).data)
        labels.append(numbers(y).astype("<i8"))
    for column in (np.concatenate(labels), *([] if groups is None else [groups.astype("<i8")])):
        hasher.update(f"{column.dtype.str} {column.shape}\n".encode() + column.tobytes())
    return hasher.hexdigest()


def numbers(block: Any) -> np.ndarray:
    """The block as a little-endian numpy array; of bfloat16, which numpy lacks, the two raw bytes of each number."""
    if isinstance(block, torch.Tensor):
        block = block.detach().cpu()
        block = block.view(torch.int16).numpy().view("V2") if block.dtype == torch.bfloat16 else block.numpy()
    block = np.asarray(block)
    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
