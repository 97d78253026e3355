"""Average accuracy, forgetting and plasticity, from the accuracy matrix.

`matrix[s-1][t-1]` is A(t, theta_s): the accuracy on task t's test part after learning task s, for t <= s.
"""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """mean_t A(t, theta_T).

    >>> average_accuracy([[1.0], [0.5, 1.0]])
    0.75
    """
    last = matrix[-1]
    return sum(last) / len(last)


def forgetting(matrix: Matrix) -> float | None:
    """mean_{t<T} [A(t, theta_t) - A(t, theta_T)]; None for one task.

    >>> forgetting([[1.0], [0.5, 1.0]])
    0.5
    """
    tasks = len(matrix)
    if tasks < 2:
        return None
    return sum(matrix[t][t] - matrix[-1][t] for t in range(tasks - 1)) / (tasks - 1)


def plasticity(matrix: Matrix) -> float:
    """mean_t A(t, theta_t).

    >>> plasticity([[1.0], [0.5, 0.5]])
    0.75
    """
    return sum(row[-1] for row in matrix) / len(matrix)
