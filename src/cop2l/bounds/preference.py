"""The preference bound of Campi and Garatti, and the certificates that use it."""

import math
from functools import lru_cache

from cop2l.bounds.binomial import decay, log_mass, tail_factor
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.kl import TINY, upper_inverse
from cop2l.bounds.outer import SLACK, WIDTH, point_above_root, sum_below
from cop2l.bounds.sharing import log_weight, per_task


def preference_epsilon(k: int, n: int, log_delta: float) -> float:
    """An upper bound on the probability that a new example changes a compression of n examples to k, rounded up.

    For every distribution and every compression c with the preference property (c(S) in V in S implies c(V) = c(S)):
    with probability at least 1 - delta over a sample S of n i.i.d. examples,

      P_z[ c(c(S) u {z}) != c(S) ] <= eps(|c(S)|, n, delta).

    eps(n, n, delta) = 1. For k < n, eps(k, n, delta) is the root e of

      (delta/n) sum_{m=k..n-1} C(m,k)/C(n,k) (1-e)^-(n-m) = 1.

    k: |c(S)|; log_delta: ln delta. The result is never below eps and at most 1e-9 above it. Theorem 1 of docs/theory.md
    (Campi and Garatti, 2023).

    Computation: C(m,k) e^(k+1) (1-e)^(m-k) is the probability that the (k+1)-th success comes at trial m+1. So the sum is
    P[X > k]/(e P[X = k]) for X ~ Bin(n, e), and the equation is ln delta + ln P[X > k] - ln(n e) - ln P[X = k] = 0.

    >>> [round(preference_epsilon(k, 10_000, math.log(0.05)), 7) for k in (100, 300)]
    [0.0133541, 0.0357832]
    """
    n = count("n", n, least=1)
    return epsilon(within("k", k, "n", n), n, log_confidence(log_delta))


@lru_cache(maxsize=4096)
def epsilon(k: int, n: int, log_delta: float) -> float:
    """`preference_epsilon` without checks."""
    if k == n:
        return 1.0
    if k == 0 and log_delta == 0.0:
        return 0.0

    def excess(e: float) -> tuple[float, float]:
        """A lower estimate of the logarithm of the left side, and its slope; a sum of exp(-j ln(1-e)), so convex."""
        r = 1.0 - e
        odds = r / e
        mass, margin = log_mass(n, k, e, r)
        probability = math.exp(mass)  # P[X = k]
        slope = (n * e - k) / (e * r) - 1.0 / e
        if k == 0:
            upper_tail = -math.expm1(mass)  # P[X > k]
            error = SLACK * upper_tail
        else:
            # A relative error f of the tail factor moves the root by f P[X <= k]/slope. The slope is at least one,
            # because every j is.
            precision = WIDTH * max(slope, 1.0) * decay(n, k, odds) / max(probability, TINY)
            _, factor = tail_factor(n, k, odds, min(precision, 0.2))
            lower_tail = probability * factor * math.exp(margin)
            upper_tail = 1.0 - lower_tail
            error = SLACK * (1.0 + lower_tail * (1.0 + abs(mass)))
        log_tail, log_scale = math.log(upper_tail), math.log(n * e)
        slack = (
            margin
            + error / upper_tail
            + SLACK * (abs(log_tail) + abs(log_scale) + abs(log_delta) + abs(mass))
        )
        slope += (n - k) * probability / (r * upper_tail)
        return log_delta + log_tail - log_scale - mass - slack, slope

    # For e >= k/n, P[X > k] is at least 1/4 and P[X = k] at most exp(-n kl(k/n, e)). So this start is above the root.
    start = upper_inverse(k / n, (math.log(4.0 * n) - log_delta) / n)
    return point_above_root(excess, k / n, start)


def preference_certificate(
    n: int,
    picked: int,
    errors_not_picked: int,
    iterations: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """Our certificate for one task of T, learned with the threshold buffer.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |G| + |M|, n, (delta/T) w(K) ),   eps = `preference_epsilon`, w(K) = `log_weight`.

    n: the size of the sample of task t. picked: |G|; G holds its examples that were picked at task t in the K kept
    iterations, or at a later task in any iteration, kept or not. errors_not_picked: |M|; M holds the examples outside G
    that theta_T misclassifies. iterations: K, which may be chosen after seeing the data. tasks: T. log_delta: ln delta.
    grid: N, if K is one of N numbers declared in advance. Not in the paper.

    >>> round(float(preference_certificate(10_000, 300, 120, 75, tasks=5, log_delta=math.log(0.05))), 7)
    0.0543949
    """
    n = count("n", n)
    G = within("picked", picked, "n", n)
    M = within("errors_not_picked", errors_not_picked, "n - picked", n - G)
    terms: dict[str, float] = {"picked": G, "errors_not_picked": M}
    return preferent("preference", n, G + M, log_weight(iterations, grid), tasks, log_delta, terms)


def buffer_certificate(
    n_selected: int,
    compressed: int,
    iterations: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """Our certificate for one task of T whose data is gone, from the examples with small marks.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |c n R|, |R|, (delta/T) w(K) ),   eps = `preference_epsilon`, w(K) = `log_weight`.

    R holds the examples of task t with mark u < m'/(T n), picked or not. That threshold is fixed in advance and at most the
    threshold of the buffer (docs/theory.md, theorem `buffer`). c = G u M, as in `preference_certificate`. n_selected: |R|.
    compressed: |c n R|. iterations, tasks, log_delta, grid: as in `preference_certificate`. Not in the paper.

    >>> round(float(buffer_certificate(400, 30, 75, tasks=5, log_delta=math.log(0.05))), 7)
    0.1694434
    """
    n = count("n_selected", n_selected)
    k = within("compressed", compressed, "n_selected", n)
    return preferent("buffer", n, k, log_weight(iterations, grid), tasks, log_delta, {})


def preferent(
    kind: str, n: int, k: int, log_weight: float, tasks: int, log_delta: float, terms: dict[str, float]
) -> Bound:
    """The bound eps(k, n, (delta/T) w(K)) for log_weight = ln w(K), with its terms."""
    T = count("tasks", tasks, least=1)
    log_delta = log_confidence(log_delta)
    share = sum_below(per_task(log_delta, T) + log_weight)
    terms |= {
        "compressed": k,
        "examples": n,
        "ln(T/delta)": math.log(T) - log_delta,
        "messages": 0.0 - log_weight,
        "epsilon": -share,
    }
    return make_bound(kind, epsilon(k, n, share), k, n, terms)
