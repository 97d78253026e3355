"""What several counts say together: the average over tasks, and what was lost since a task was learned."""

import math
from collections.abc import Sequence
from fractions import Fraction

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.combined import VACUOUS
from cop2l.bounds.outer import SLACK
from cop2l.bounds.preference import NO_EXAMPLE
from cop2l.errors import UserError

LOG_QUARTER = math.log(0.25)


def float_above(exact: Fraction) -> float:
    """The least float in [0, 1] that is not below an exact number (1 if that is larger).

    >>> float_above(Fraction(1, 3)) >= Fraction(1, 3), float_above(Fraction(3, 2))
    (True, 1.0)
    """
    nearest = float(min(max(exact, Fraction(0)), Fraction(1)))
    return nearest if Fraction(nearest) >= min(exact, Fraction(1)) else math.nextafter(nearest, 1.0)


def pooled_certificate(counts: Sequence[tuple[int, int]], log_delta: float) -> Bound:
    """The average over tasks whose samples the parameters do not depend on: withheld, or never picked from.

    With probability at least 1 - delta over the draw of all samples: sum_t n_t risk_t / N <= U(X), where N = sum n_t, X is the
    number of errors on all of them, U(x) = sup{p : P[Bin(N, p) <= x] >= min(delta, 1/4)} for x <= N - 2, and 1 from N - 1 on.
    The N indicators are independent but not identical; Hoeffding (1956, theorem 4) makes the binomial tail the
    larger one where x <= N risk - 1, and Greenberg and Mohri (2014) see to that. Theorem `average` of docs/theory.md.

    counts: (n_t, errors) of every task. Not in the paper.

    >>> round(float(pooled_certificate([(500, 100)] * 20, log_delta=math.log(0.05))), 4)
    0.2067
    """
    sizes = [count("n", n) for n, _ in counts]
    N = sum(sizes)
    X = sum(within("errors", errors, "n", n) for n, (_, errors) in zip(sizes, counts, strict=True))
    share = min(log_confidence(log_delta), LOG_QUARTER)
    terms: dict[str, float] = {"errors": X, "examples": N, "ln(1/delta)": -share, "epsilon": -share}
    if not N:
        return Bound(1.0, "average", NO_EXAMPLE, terms)
    if X >= N - 1:
        return Bound(1.0, "average", "All examples but at most one are errors: then the bound is one.", terms)
    return make_bound("average", tail_inverse(X, N, share), terms, VACUOUS)


def average_of(parts: Sequence[tuple[int, float]]) -> float:
    """The mean of bounds that hold at once, weighted by numbers of examples, rounded up.

    >>> average_of([(100, 0.25), (300, 0.5)])
    0.4375
    """
    whole = sum(count("n", n) for n, _ in parts)
    if not whole:
        raise UserError("There is no example to average over.")
    return float_above(sum((n * Fraction(value) for n, value in parts), Fraction(0)) / whole)


def log_set_weight(tasks: int, pooled: int) -> float:
    """The logarithm of the weight, fixed in advance, of the set of tasks that are pooled: 3/4 for all, else (1/4)/(T C(T, |A|)).

    It is rounded down. Needed where the data decides which tasks are in the hold-out case.

    >>> round(log_set_weight(10, 10), 4), round(log_set_weight(10, 9), 4)
    (-0.2877, -5.9915)
    """
    T = count("tasks", tasks, least=1)
    whole = within("pooled", pooled, "tasks", T) == T
    weight = math.log(0.75) if whole else math.log(0.25 / T) - math.log(math.comb(T, pooled))
    return weight * (1.0 + SLACK)


def gained_at_least(gained: int, n: int, log_delta: float) -> float:
    """The smallest p that gives `gained` or more in n trials with probability delta, rounded down.

    >>> round(gained_at_least(50, 1000, math.log(0.05)), 4)
    0.0392
    """
    size = count("n", n, least=1)
    upper = tail_inverse(size - within("gained", gained, "n", size), size, log_confidence(log_delta))
    return max(0.0, math.nextafter(1.0 - upper, 0.0))


def net_forgetting(lost: float, gained: float) -> float:
    """By how much an error rate rose at most: a bound on what was lost less one on what was gained, rounded up; at least 0.

    With probability at least 1 - delta, risk_t(theta_T) - risk_t(theta_t) <= lost - gained if each holds at delta/2.
    """
    return float_above(Fraction(lost) - Fraction(gained))
