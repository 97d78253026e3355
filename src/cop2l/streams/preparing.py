"""The rows of the first task that do not certify, and may therefore prepare inputs: their scale, categories and gaps."""

from typing import NamedTuple

import numpy as np

from cop2l.kernel.exact import withheld_rows


class Preparing(NamedTuple):
    """Which rows of the first task prepare inputs."""

    seed: int
    share: float
    """The share of the rows that is drawn by marks."""
    drawn: bool
    """Whether the drawn rows prepare (CoP2L sets them aside), or the others (a hold-out withholds the drawn ones)."""

    def rows(self, n: int) -> np.ndarray:
        """The mask of these rows, out of n."""
        return np.asarray(withheld_rows(n, 1, self.share, self.seed) == self.drawn)
