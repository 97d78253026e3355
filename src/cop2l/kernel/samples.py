"""What a sample is: its fingerprint."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

ROWS = 4096


def blocks_of(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """A sample in blocks of rows; at least one block, so that an empty sample has a shape."""
    for start in range(0, max(1, len(x)), ROWS):
        yield x[start : start + ROWS], y[start : start + ROWS]


def fingerprint(n: int, blocks: Iterable[tuple[Any, Any]], groups: np.ndarray | None = None) -> str:
    """SHA-256 over the dtype, the shape and the bytes of x, and over labels and numbers of groups as 64-bit integers.

    Blocks may be of any sizes; a numpy array, a memory map and a tensor with the same content give the same.
    """
    whole, labels, known = hashlib.sha256(b"cop2l data 1\n"), [np.empty(0, "<i8")], ""
    for x, y in blocks:
        rows = numbers(x)
        if known != (form := f"{rows.dtype.str} {(n, *rows.shape[1:])}\n"):  # the same bytes may mean other numbers
            whole.update(form.encode())
        known = form
        whole.update(rows.reshape(-1).view(np.uint8).data)
        labels.append(numbers(y).astype("<i8"))
    for column in (np.concatenate(labels), *([] if groups is None else [groups.astype("<i8")])):
        whole.update(f"{column.dtype.str} {column.shape}\n".encode() + column.tobytes())
    return whole.hexdigest()


def numbers(block: Any) -> np.ndarray:
    """The block as a little-endian numpy array; bfloat16, which numpy lacks, as two bytes that are no number."""
    if isinstance(block, torch.Tensor):
        block = block.detach().cpu()
        block = block.view(torch.int16).numpy().view("V2") if block.dtype == torch.bfloat16 else block.numpy()
    block = np.asarray(block)
    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("<"))
