"""Average accuracy, forgetting and plasticity, from the accuracy matrix.

`matrix[s-1][t-1]` is A(t, theta_s): the accuracy on task t's test part after learning task s, for t <= s.
"""

from collections.abc import Sequence
from statistics import fmean

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """mean_t A(t, theta_T).

    >>> average_accuracy([[1.0], [0.5, 1.0]])
    0.75
    """
    return fmean(matrix[-1])


def forgetting(matrix: Matrix) -> float | None:
    """mean_{t<T} [A(t, theta_t) - A(t, theta_T)]; None for one task.

    >>> forgetting([[1.0], [0.5, 1.0]])
    0.5
    """
    falls = [row[-1] - last for row, last in zip(matrix[:-1], matrix[-1], strict=False)]
    return fmean(falls) if falls else None


def plasticity(matrix: Matrix) -> float:
    """mean_t A(t, theta_t).

    >>> plasticity([[1.0], [0.5, 0.5]])
    0.75
    """
    return fmean(row[-1] for row in matrix)
