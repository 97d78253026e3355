"""How delta is shared: between sizes and numbers of iterations (zeta), between tasks, and over time."""

import math

from cop2l.bounds.checks import count, log_confidence, points
from cop2l.bounds.outer import down

LOG_ZETA_0 = math.log(6.0 / math.pi**2)


def log_zeta(k: int) -> float:
    """The logarithm of zeta(k), rounded down: the weights of a union over k = 0, 1, 2, ...

    zeta(k) = (6/pi^2) (k + 1)^-2, which sums to one. The paper prints (6/pi) (k + 1)^-1, which does not.

    >>> round(log_zeta(0), 7), round(log_zeta(9), 7)
    (-0.4977003, -5.1028705)
    """
    return down(LOG_ZETA_0 - 2.0 * math.log(count("k", k) + 1.0))


def log_weight(iterations: int, grid: int | None = None) -> float:
    """The logarithm of what the choice of K = iterations leaves of delta, rounded down: ln zeta(K), or ln 1/N on a grid.

    grid: N, how many numbers of iterations may be kept at all, if those were declared before the data was seen.

    >>> round(log_weight(75), 7), round(log_weight(75, grid=21), 7)
    (-9.159167, -3.0445224)
    """
    kept, N = count("iterations", iterations), points(grid, iterations)
    return log_zeta(kept) if N is None else one_of(N)


def one_of(N: int) -> float:
    """The logarithm of 1/N, rounded down."""
    return down(-math.log(N)) if N > 1 else 0.0


def anytime_log_delta(log_delta: float, tasks: int) -> float:
    """The share of delta for the certificates issued after task T of a stream with no fixed end, rounded down.

    delta_T = delta 6/(pi^2 T^2), which sums to delta over T = 1, 2, ...: used in place of log_delta, with tasks = T,
    with probability at least 1 - delta every certificate ever issued holds.

    >>> round(anytime_log_delta(math.log(0.05), 1), 7)
    -3.4934326
    """
    T = count("tasks", tasks, least=1)
    return down(log_confidence(log_delta) + LOG_ZETA_0 - 2.0 * math.log(T))


def per_task(log_delta: float, tasks: int) -> float:
    """The logarithm of delta/T, rounded down, so that T certificates hold at once."""
    return down(log_delta - math.log(tasks)) if tasks > 1 else log_delta
