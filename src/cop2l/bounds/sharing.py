"""How delta is shared: between sizes and numbers of iterations (zeta), between tasks, and over time."""

import math
from collections.abc import Sequence

from cop2l.bounds.checks import count, log_confidence, points, real
from cop2l.bounds.outer import sum_below
from cop2l.errors import UserError
from cop2l.kernel.options import grid_points

LOG_ZETA_0 = math.log(6.0 / math.pi**2)
LONGEST = 10**9


def log_zeta(k: int) -> float:
    """The logarithm of zeta(k), rounded down: the weights of a union over k = 0, 1, 2, ...

    zeta(k) = (6/pi^2) (k + 1)^-2, which sums to one. The paper prints (6/pi) (k + 1)^-1, which does not.

    >>> round(log_zeta(0), 7), round(log_zeta(9), 7)
    (-0.4977003, -5.1028705)
    """
    return sum_below(LOG_ZETA_0 - 2.0 * math.log(count("k", k) + 1.0))


def log_weight(iterations: int, grid: int | None = None) -> float:
    """The logarithm of what the choice of K = iterations leaves of delta, rounded down: ln zeta(K), or ln 1/N on a grid.

    grid: N, how many numbers of iterations may be kept at all, if those were declared before the data was seen.

    >>> round(log_weight(75), 7), round(log_weight(75, grid=21), 7)
    (-9.159167, -3.0445224)
    """
    kept, N = count("iterations", iterations), points(grid, iterations)
    return log_zeta(kept) if N is None else one_of(N)


def grid_size(last: int, iterations: int | Sequence[int]) -> int:
    """How many numbers of iterations the grid up to `last` has, if all those given are among them.

    >>> grid_size(1024, 96)
    21
    """
    if count("grid", last) > LONGEST:
        raise UserError(f"grid must be an integer from 0 to 10^9, not {last}.")
    found = grid_points(last)
    for kept in [iterations] if isinstance(iterations, int) else iterations:
        if kept not in found:
            raise UserError(
                f"iterations must be numbers of the grid {', '.join(map(str, found))}, not {kept}."
            )
    return len(found)


def log_of_delta(delta: float) -> float:
    """The logarithm of a delta in (0, 1], rounded down."""
    if not 0 < (number := real("delta", delta)) <= 1:
        raise UserError(f"delta must be a number above 0 and at most 1, not {delta}.")
    return sum_below(math.log(number)) if number < 1 else 0.0


def one_of(N: int) -> float:
    """The logarithm of 1/N, rounded down."""
    return sum_below(-math.log(N)) if N > 1 else 0.0


def anytime_log_delta(log_delta: float, tasks: int) -> float:
    """The share of delta for the certificates issued after task T of a stream with no fixed end, rounded down.

    delta_T = delta 6/(pi^2 T^2), which sums to delta over T = 1, 2, ...: used in place of log_delta, with tasks = T,
    with probability at least 1 - delta every certificate ever issued holds.

    >>> round(anytime_log_delta(math.log(0.05), 1), 7)
    -3.4934326
    """
    T = count("tasks", tasks, least=1)
    return sum_below(log_confidence(log_delta) + LOG_ZETA_0 - 2.0 * math.log(T))


def per_task(log_delta: float, tasks: int) -> float:
    """The logarithm of delta/T, rounded down, so that T certificates hold at once."""
    return sum_below(log_delta - math.log(tasks)) if tasks > 1 else log_delta
