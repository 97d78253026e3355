"""Examples with their marks: z = (x, y, u), and where each comes from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cop2l.randomness import marks


@dataclass(frozen=True)
class Examples:
    """Rows of one or several tasks. The identity of an example is (task, row); its mark breaks ties.

    `x` is a tensor, or a numpy array or memory map that is read block by block.
    """

    x: Any
    y: Tensor
    task: np.ndarray
    row: np.ndarray
    mark: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: np.ndarray) -> "Examples":
        """The rows at these positions, copied, on the device of y."""
        at = torch.from_numpy(np.ascontiguousarray(index)).to(self.y.device)
        return Examples(
            self.inputs(at),
            self.y.index_select(0, at),
            self.task[index],
            self.row[index],
            self.mark[index],
        )

    def inputs(self, at: Tensor, room: Tensor | None = None) -> Tensor:
        """The inputs at these positions, copied (into the room, if given), row by row, on the device of y."""
        if isinstance(self.x, Tensor) and self.x.device == self.y.device:
            return torch.index_select(self.x, 0, at, out=room)
        rows = self.x[at.cpu() if isinstance(self.x, Tensor) else at.cpu().numpy()]
        found = row_major(torch.as_tensor(rows)).to(self.y.device)
        return found if room is None else room.copy_(found)


def row_major(x: Tensor) -> Tensor:
    """The same values in the plain memory layout: kernels may round another layout (channels last) differently."""
    plain = torch.empty(x.shape, dtype=x.dtype, device="meta").stride()
    return x if x.stride() == plain else torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)


def sample(x: Any, y: Tensor, task: int, seed: int, rows: np.ndarray | None = None) -> Examples:
    """Task `task`'s sample (or these rows of it), each example with its mark.

    A mark is a 64-bit function of (seed, task, row): drawn independently of the data, part of the example, and
    made again by the verifier.
    """
    x = row_major(x) if isinstance(x, Tensor) else x
    rows = np.arange(len(y), dtype=np.int64) if rows is None else rows
    every = marks(seed, "mark", task, n=int(rows.max()) + 1 if len(rows) else 0)
    return Examples(x, y, np.full(len(rows), task, np.int64), rows, every[rows])


def join(parts: list[Examples]) -> Examples | None:
    """All examples of the parts, in order; None if there are none."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return None
    return Examples(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("task", "row", "mark")),
    )


def prior_rows(n: int, share: float, seed: int, task: int) -> np.ndarray:
    """Which rows of a task are its prior part P_t: those whose second mark is below the share (a mask).

    The second marks are independent of the first and of the data, so that, given the prior parts, the certified
    part is an i.i.d. sample.
    """
    if share == 0:
        return np.zeros(n, bool)
    return np.asarray(marks(seed, "prior", task, n=n) < np.uint64(int(share * 2.0**64)))
