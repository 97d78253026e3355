"""Bounds on the average risk over tasks, and on forgetting."""

import math
from collections.abc import Sequence
from fractions import Fraction

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.errors import UserError

LOG_QUARTER = math.log(0.25)


def float_above(exact: Fraction) -> float:
    """An exact number rounded up to a float, clipped to [0, 1].

    >>> float_above(Fraction(1, 3)) >= Fraction(1, 3), float_above(Fraction(3, 2))
    (True, 1.0)
    """
    nearest = float(min(max(exact, Fraction(0)), Fraction(1)))
    return nearest if Fraction(nearest) >= min(exact, Fraction(1)) else math.nextafter(nearest, 1.0)


def pooled_certificate(counts: Sequence[tuple[int, int]], log_delta: float) -> Bound:
    """Our certificate for the average risk over tasks, if theta_T does not depend on their samples.

    With probability at least 1 - delta over the draw of all samples:

      sum_t n_t risk_t(theta_T) / N <= U(X),   N = sum_t n_t,   X = the number of errors on all N examples,
      U(x) = bin^-1(x, N, min(delta, 1/4)) for x <= N - 2,   U(x) = 1 for x >= N - 1.

    counts: for every task (n_t, errors): the size of its withheld sample and the errors of theta_T on it. log_delta: ln delta.
    The N indicators of errors are independent but not identically distributed. By Hoeffding (1956, theorem 4) P[X <= x] is at
    most the binomial tail if x <= E[X] - 1; by Greenberg and Mohri (2014) this holds for every x that violates the bound.
    Theorem `average` of docs/theory.md; not in the paper.

    >>> round(float(pooled_certificate([(500, 100)] * 20, log_delta=math.log(0.05))), 4)
    0.2067
    """
    sizes = [count("n", n) for n, _ in counts]
    N = sum(sizes)
    X = sum(within("errors", errors, "n", n) for n, (_, errors) in zip(sizes, counts, strict=True))
    share = min(log_confidence(log_delta), LOG_QUARTER)
    terms: dict[str, float] = {"errors": X, "examples": N, "ln(1/delta)": -share, "epsilon": -share}
    value = tail_inverse(X, N, share) if X < N - 1 else 1.0
    return make_bound("average", value, X, N, terms)


def average_of(parts: Sequence[tuple[int, float]]) -> float:
    """The mean of bounds that hold at once, weighted by numbers of examples, rounded up; parts: (examples, bound) per task.

    >>> average_of([(100, 0.25), (300, 0.5)])
    0.4375
    """
    N = sum(count("n", n) for n, _ in parts)
    if not N:
        raise UserError("There is no example to average over.")
    return float_above(sum((n * Fraction(value) for n, value in parts), Fraction(0)) / N)


def gained_at_least(gained: int, n: int, log_delta: float) -> float:
    """A lower bound on the probability p of a success, from `gained` successes in n independent trials, rounded down.

    For every p and n: with probability at least 1 - delta over X ~ Bin(n, p), p >= gained_at_least(X, n, ln delta).

    >>> round(gained_at_least(50, 1000, math.log(0.05)), 4)
    0.0392
    """
    size = count("n", n, least=1)
    upper = tail_inverse(size - within("gained", gained, "n", size), size, log_confidence(log_delta))
    return max(0.0, math.nextafter(1.0 - upper, 0.0))


def net_forgetting(lost: float, gained: float) -> float:
    """An upper bound on risk_t(theta_T) - risk_t(theta_t), clipped to [0, 1] and rounded up: lost - gained.

    It holds with probability at least 1 - delta if each of these holds with probability at least 1 - delta/2: `lost` is at
    least the probability that theta_t is right and theta_T wrong; `gained` is at most that of the reverse.
    """
    return float_above(Fraction(lost) - Fraction(gained))
