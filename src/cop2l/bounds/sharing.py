"""How delta is divided: among set sizes and numbers of iterations (zeta), among tasks, and over time."""

import math
from collections.abc import Sequence

from cop2l.bounds.checks import count, log_confidence, points, real
from cop2l.bounds.outer import sum_below
from cop2l.errors import UserError
from cop2l.kernel.options import grid_points

LOG_ZETA_0 = math.log(6.0 / math.pi**2)
LONGEST = 10**9


def log_zeta(k: int) -> float:
    """The logarithm of zeta(k), the weight of k in a union over k = 0, 1, 2, ..., rounded down.

      zeta(k) = (6/pi^2) (k + 1)^-2,   sum_{k>=0} zeta(k) = 1.

    The paper prints (6/pi) (k + 1)^-1 in a proof; the sum of these diverges.

    >>> round(log_zeta(0), 7), round(log_zeta(9), 7)
    (-0.4977003, -5.1028705)
    """
    return sum_below(LOG_ZETA_0 - 2.0 * math.log(count("k", k) + 1.0))


def log_weight(iterations: int, grid: int | None = None) -> float:
    """The logarithm of w(K), the weight of K = iterations in the union over K, rounded down.

    w(K) = zeta(K). With grid = N, w(K) = 1/N: then K is one of N numbers that were declared before the data was seen.

    >>> round(log_weight(75), 7), round(log_weight(75, grid=21), 7)
    (-9.159167, -3.0445224)
    """
    K, N = count("iterations", iterations), points(grid, iterations)
    return log_zeta(K) if N is None else one_of(N)


def grid_size(last: int, iterations: int | Sequence[int]) -> int:
    """The size N of the grid of numbers of iterations up to `last`; refuses iterations that are not on the grid.

    >>> grid_size(1024, 96)
    21
    """
    if count("grid", last) > LONGEST:
        raise UserError(f"grid must be an integer from 0 to 10^9, not {last}.")
    grid = grid_points(last)
    for K in [iterations] if isinstance(iterations, int) else iterations:
        if K not in grid:
            raise UserError(f"iterations must be numbers of the grid {', '.join(map(str, grid))}, not {K}.")
    return len(grid)


def log_of_delta(delta: float) -> float:
    """The logarithm of a delta in (0, 1], rounded down."""
    if not 0 < (number := real("delta", delta)) <= 1:
        raise UserError(f"delta must be a number above 0 and at most 1, not {delta}.")
    return sum_below(math.log(number)) if number < 1 else 0.0


def one_of(N: int) -> float:
    """The logarithm of 1/N, rounded down."""
    return sum_below(-math.log(N)) if N > 1 else 0.0


def anytime_log_delta(log_delta: float, tasks: int) -> float:
    """The logarithm of delta_T, the share of the certificates after task T of a stream without a fixed end, rounded down.

      delta_T = delta 6/(pi^2 T^2),   sum_{T>=1} delta_T = delta.

    If for every T the certificates after task T are computed with this in place of ln delta, and with tasks = T, then with
    probability at least 1 - delta all certificates ever issued hold at once.

    >>> round(anytime_log_delta(math.log(0.05), 1), 7)
    -3.4934326
    """
    T = count("tasks", tasks, least=1)
    return sum_below(log_confidence(log_delta) + LOG_ZETA_0 - 2.0 * math.log(T))


def per_task(log_delta: float, tasks: int) -> float:
    """The logarithm of delta/T, rounded down: the share of each of T certificates that hold at once."""
    return sum_below(log_delta - math.log(tasks)) if tasks > 1 else log_delta
