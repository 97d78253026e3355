"""Whether tasks have more inputs in common than independent samples would."""

import hashlib
from collections import Counter
from typing import Any

import numpy as np
from torch import Tensor

ROWS = 4096
SHARE, FEW = 0.01, 10
"""Fewer inputs in common than this share of the task, or than this number, are a doubt and not a proof."""


class Repeats:
    """Counts equal inputs, bit for bit, inside tasks and between them.

    Independent samples from p and q have an input in common for a share sum p q of the pairs, which is at most the
    larger of sum p^2 and sum q^2, the shares of equal pairs inside each. So pictures that two tasks share are found, and
    inputs that are few to begin with (a grid, a table of categories) are not taken for them.
    """

    def __init__(self) -> None:
        self._earlier: Counter[bytes] = Counter()

    def add(self, x: Any) -> tuple[int, bool | None]:
        """The next task: how many of its inputs an earlier one has, and whether the tasks share them (None: perhaps)."""
        now: Counter[bytes] = Counter()
        for start in range(0, len(x), ROWS):
            block = x[start : start + ROWS]
            rows = np.ascontiguousarray(block.cpu().numpy() if isinstance(block, Tensor) else block)
            now.update(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
        before = self._earlier
        shared = sum(number for key, number in now.items() if key in before)
        pairs = sum(number * before[key] for key, number in now.items() if key in before)
        explained = 2 * max(_inside(now), _inside(before)) * now.total() * before.total()
        before.update(now)
        if pairs <= explained:
            return shared, False
        return shared, True if shared >= max(SHARE * now.total(), FEW) else None


def _inside(counted: Counter[bytes]) -> float:
    """The share of equal pairs among all pairs."""
    n = counted.total()
    return sum(c * (c - 1) for c in counted.values()) / (n * (n - 1)) if n > 1 else 0.0
