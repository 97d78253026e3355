"""A user's own data: from arrays and from files."""

import numpy as np

from cop2l.errors import UserError
from cop2l.streams.scenarios import shuffled


def hold_out(n: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training and of the test part: a random share, drawn from the seed, is for testing."""
    test = round(n * share)
    if not 0 < test < n:
        raise UserError(
            f"A test part of {share} of {n} examples leaves one part empty; choose another share."
        )
    order = shuffled(seed, "test part", n=n)
    return np.sort(order[test:]), np.sort(order[:test])
