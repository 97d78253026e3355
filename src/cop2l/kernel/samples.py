"""What a sample is: its fingerprint, and the rows that it has more than once or shares with another task."""

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

    >>> x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 0])
    >>> fingerprint(3, blocks_of(x, y)) == fingerprint(3, [(torch.from_numpy(x[:2]), [0, 1]), (x[2:], [0])])
    True
    >>> fingerprint(3, blocks_of(x, y)) == fingerprint(3, blocks_of(x.astype(np.float64), y))
    False
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


class Copies:
    """Counts inputs that a model of some precision sees as equal, inside a task and between tasks.

    By 64-bit hashes: equal ones are never missed, and two others are taken for equal with probability 2^-64.
    """

    def __init__(self, kind: torch.dtype = torch.float32) -> None:
        self._kind, self._earlier = kind, set[int]()

    def _seen(self, part: Any) -> Any:
        """Rows as the model sees them, in one type for real numbers and integers (exact up to 2^53); -0 is 0."""
        rows = (part.cpu() if isinstance(part, torch.Tensor) else torch.tensor(numbers(part)))[..., None].flatten(1)
        return (rows.to(self._kind) if rows.is_floating_point() else rows).double() + 0

    def add(self, x: Any, y: Any) -> tuple[int, int]:
        """The next task: how many of its rows repeat another row of it, and how many an earlier task has too."""
        hashes = [hash(row.tobytes()) for block, _ in blocks_of(x, y) for row in numbers(self._seen(block))]
        distinct, shared = set(hashes), sum(found in self._earlier for found in hashes)
        self._earlier |= distinct
        return len(hashes) - len(distinct), shared
