"""Binomial coefficients and binomial tails, in logarithms, rounded outwards."""

import math
from functools import lru_cache

import numpy as np

from cop2l.bounds.checks import count, log_confidence, probability, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import SLACK, WIDTH, point_above_root, sum_above
from cop2l.errors import UserError

LOG_HALF = math.log(0.5)
DEEPEST = 128
"""Largest depth of the continued fraction, unless k is smaller."""

# ln n! minus Stirling's formula (n + 1/2) ln n - n + ln(2 pi)/2, for n = 1..15.
STIRLING_ERRORS = (
    0.0810614667953272582,
    0.0413406959554092941,
    0.0276779256849983391,
    0.0207906721037650931,
    0.0166446911898211922,
    0.0138761288230707480,
    0.0118967099458917701,
    0.0104112652619720965,
    0.00925546218271273292,
    0.00833056343336287126,
    0.00757367548795184079,
    0.00694284010720952987,
    0.00640899418800420707,
    0.00595137011275884774,
    0.00555473355196280137,
)


def _stirling_error(n: int) -> float:
    """The error of Stirling's formula: ln n! minus the formula, for n >= 1.

    For n >= 16 it is the first terms of a series whose error is below the first omitted term, 2e-3/n^11 < 2^-52.
    """
    if n < 16:
        return STIRLING_ERRORS[n - 1]
    r = 1.0 / (float(n) * n)
    return (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680 - r / 1188)))) / n


def _stirling(n: int, k: int) -> float:
    """The part of ln C(n, k) beside k ln(n/k) + (n - k) ln(n/(n - k)), for 0 < k < n; margin: SLACK (1 + |part|)."""
    failures = n - k
    correction = _stirling_error(n) - _stirling_error(k) - _stirling_error(failures)
    return 0.5 * math.log(n / (2.0 * math.pi * k * failures)) + correction


@lru_cache(maxsize=4096)
def log_binomial(n: int, k: int) -> float:
    """The logarithm ln C(n, k) for 0 <= k <= n, rounded up.

      ln C(n, k) = k ln(n/k) + (n - k) ln(n/(n - k)) + ln(n / (2 pi k (n - k))) / 2 + three small corrections.

    No large terms cancel, as they would in a difference of log-gamma functions: for k from 2 to n - 2 the sum is at least
    0.6 times its first two terms.

    >>> round(log_binomial(10_000, 300), 6)
    1343.665804
    """
    k = min(k, n - k)
    if k < 2:
        return sum_above(math.log(n)) if k else 0.0
    return sum_above(k * math.log(n / k) - (n - k) * math.log1p(-k / n) + _stirling(n, k))


def log_mass(n: int, k: int, p: float, r: float) -> tuple[float, float]:
    """The logarithm ln P[X = k] for X ~ Bin(n, p), k < n, 0 < p < 1, r = 1 - p, and a margin of its error.

      ln P[X = k] = k log1p(d/k) + (n - k) log1p(-d/(n - k)) + (Stirling part),   d = n p - k.

    The smaller of p and r must be exact. d is computed from it, so the error of d is below u (n min(p, r) + |d|). The sum of
    the two logarithms moves by |d|/(n p r) times the error of d, at most 4 u |d|; and one of the two is at least |d|.
    """
    if k == 0:
        value = n * (math.log1p(-p) if p <= 0.5 else math.log(r))
        return value, -SLACK * value
    failures = n - k
    d = n * p - k if p <= 0.5 else failures - n * r
    x, y = d / k, d / failures
    first = k * (math.log1p(x) if x >= -0.5 else math.log(n * p / k))
    second = failures * (math.log1p(-y) if y <= 0.5 else math.log(n * r / failures))
    stirling = _stirling(n, k)
    return first + second + stirling, SLACK * (abs(first) + abs(second) + abs(stirling) + 2.0)


def decay(n: int, k: int, odds: float) -> float:
    """1 minus the ratio of the first two terms of the series in `tail_factor`; the factor is at most 1/decay."""
    return 1.0 - k * odds / (n - k + 1.0)


def tail_factor(n: int, k: int, odds: float, precision: float) -> tuple[float, float]:
    """Lower and upper bound on S = P[X <= k]/P[X = k] for X ~ Bin(n, p), odds = (1 - p)/p, k < n and k < (n + 1) p.

      S = 1 + k odds/(n-k+1) + k (k-1) odds^2/((n-k+1)(n-k+2)) + ...

    The ratios of consecutive terms decrease and are below one. `precision` is the relative width aimed at; the bounds hold
    for any value of it.
    """
    if k == 0:
        return 1.0, 1.0
    gap = decay(n, k, odds)
    # The depth that the fraction of a normal tail needs, z standard deviations from the mean, and some more.
    digits = -math.log(precision)
    z = gap * math.sqrt(k / (1.0 + odds) * odds) + 1e-9
    depth = 2.0 + digits / 3.0
    if gap < 0.9:  # else each level multiplies the width by at most a b/(T + b)^2 <= (1 - gap)/(4 gap) < e^-3
        depth += (digits / z) ** 2 / 5.0
    while depth <= DEEPEST or k <= DEEPEST:
        levels = min(int(depth), k)
        least, greatest = _fraction(n, k, odds, levels)
        slack = (10 * levels + 16) * 2.0**-53 * (1.0 + 1.0 / gap)
        if levels == k or (slack <= precision and greatest - least <= precision * least):
            return (1.0 - slack) / greatest, (1.0 + slack) / least
        depth *= 1.5
    return _series(n, k, odds)


def _fraction(n: int, k: int, odds: float, depth: int) -> tuple[float, float]:
    """Bounds on 1/S by Gauss's continued fraction of S = 2F1(-k, 1; n-k+1; -odds), truncated at `depth` <= k.

    1/S = T_0, T_k = 1 and T_m = 1 - a/(1 + b/T_{m+1}) = ((1 - a) T_{m+1} + b)/(T_{m+1} + b) with
    a = (k - m)(n-k+m)/((n-k+2m)(n-k+2m+1)) odds and b = (m + 1)(n+m+1)/((n-k+2m+1)(n-k+2m+2)) odds. a
    decreases in m and is below one for m = 0, so 1 - a <= T_m <= 1. T_m decreases in T_{m+1}, so each bound on T_{m+1} gives
    one on T_m.

    Rounding: the relative error of 1 - a is at most 6 u/(1 - a_0) + u, that of b at most 6 u. A relative error of T_{m+1}
    enters T_m with a factor w - w', where w' <= w <= 1 are the weights of T_{m+1} in the denominator and in the numerator.
    So each level adds at most (6/(1 - a_0) + 10) u to the relative error.
    """
    base = float(n - k)
    least = greatest = 1.0
    if depth < k:
        c = base + 2 * depth
        least = 1.0 - odds / (c + 1.0) * (k - depth) * (base + depth) / c
    for m in range(depth - 1, -1, -1):
        c = base + 2 * m + 1.0
        s = odds / c
        b = s * (m + 1.0) * (n + m + 1.0) / (c + 1.0)
        a = 1.0 - s * (k - m) * (base + m) / (c - 1.0)
        least, greatest = (a * greatest + b) / (greatest + b), (a * least + b) / (least + b)
    return least, greatest


def _series(n: int, k: int, odds: float) -> tuple[float, float]:
    """Bounds on S by summing its terms, for p within a standard deviation of k/n, where the fraction converges slowly.

    The j-th term has at most 6 j roundings. The omitted terms are less than a geometric series.
    """
    fall, bend = decay(n, k, odds), n / (float(k) * (n - k))
    length = min(k, int((math.sqrt(fall * fall + 80.0 * bend) - fall) / bend) + 16)
    j = np.arange(1.0, length + 1.0)
    terms = np.cumprod((k + 1.0 - j) / (n - k + j) * odds)
    total = 1.0 + float(terms.sum())
    ratio = odds * (k - length) / (n - k + length + 1.0)
    omitted = float(terms[-1]) * ratio / (1.0 - ratio)
    slack = (length + 8) * 2.0**-50
    return total * (1.0 - slack), (total + omitted) * (1.0 + slack)


def binomial_tail_inverse(errors: int, n: int, log_delta: float) -> float:
    """An upper bound on the probability p of an error, from the number of errors in n independent trials, rounded up.

    For every p and n: with probability at least 1 - delta over X ~ Bin(n, p),

      p <= bin^-1(X, n, delta),   bin^-1(x, n, delta) = sup{p : P[Bin(n, p) <= x] >= delta}.

    errors: x; log_delta: ln delta. The result is never below the supremum and at most 1e-9 above it; it is 1 if errors = n.
    A delta above 1/2 counts as 1/2. The result is at most kl^-1(x/n, ln(1/delta)/n), because P[Bin(n, p) <= x] <=
    exp(-n kl(x/n, p)) for p >= x/n.

    >>> round(binomial_tail_inverse(10, 1000, math.log(0.05)), 9)
    0.016903175
    """
    n = count("n", n, least=1)
    return tail_inverse(within("errors", errors, "n", n), n, log_confidence(log_delta))


def binomial_upper_tail(errors: int, n: int, p: float) -> float:
    """A p-value of the hypothesis "the probability of an error is at most p": P[Bin(n, p) >= errors], rounded up.

    The result is never below the probability. If errors > n p, its relative error is at most 1e-9.

    >>> round(binomial_upper_tail(30, 1000, 0.02), 9)
    0.020696519
    """
    n = count("n", n, least=1)
    errors, p = within("errors", errors, "n", n), probability("p", p)
    if errors == 0 or p == 1.0:
        return 1.0
    if p == 0.0:
        return 0.0
    r = 1.0 - p
    if errors > n * p:  # P[n - X <= n - errors]
        mass, margin = log_mass(n, n - errors, r, p)
        _, factor = tail_factor(n, n - errors, p / r, WIDTH)
        return min(1.0, sum_above(math.exp(mass + margin) * factor))
    mass, margin = log_mass(n, errors - 1, p, r)
    factor, _ = tail_factor(n, errors - 1, r / p, WIDTH)
    return min(1.0, sum_above(1.0 - math.exp(mass - margin) * factor))


def clopper_pearson(errors: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of the probability p of an error, rounded outwards.

    For every p and n: with probability at least `level` over X ~ Bin(n, p), p lies in clopper_pearson(X, n, level). On each
    side it fails with probability at most (1 - level)/2.

    >>> [round(end, 6) for end in clopper_pearson(5, 100)]
    [0.016432, 0.112835]
    """
    if probability("level", level) == 1.0:
        raise UserError("level must be below 1: at 1 every rate is in the interval.")
    log_side = math.log((1.0 - level) / 2.0)
    high = binomial_tail_inverse(errors, n, log_side)
    return max(0.0, 1.0 - binomial_tail_inverse(n - errors, n, log_side)), high


@lru_cache(maxsize=4096)
def tail_inverse(k: int, n: int, log_delta: float) -> float:
    """`binomial_tail_inverse` without checks: the errors k, the trials n, ln delta."""
    if k == n:
        return 1.0
    log_delta = min(log_delta, LOG_HALF)
    if k == 0:
        return min(1.0, sum_above(-math.expm1(log_delta / n)))

    def excess(p: float) -> tuple[float, float]:
        """A lower estimate of ln delta - ln P[X <= k], which is convex as the tail is log-concave in p; and its slope."""
        r = 1.0 - p
        odds = r / p
        mass, margin = log_mass(n, k, p, r)
        _, factor = tail_factor(n, k, odds, _precision((n - k) * decay(n, k, odds) / r))
        log_factor = math.log(factor)
        slack = margin + SLACK * (log_factor + abs(mass) + abs(log_delta) + 1.0)
        return log_delta - mass - log_factor - slack, (n - k) / (r * factor)

    # P[Bin(n, p) <= k] > 1/2 for every p <= k/n, so the root is above k/n. Chernoff's bound is above the root.
    chernoff = ratio_inverse(k, n, -log_delta)
    return min(chernoff, point_above_root(excess, k / n, chernoff))


def _precision(slope: float) -> float:
    """The relative width of a tail factor that moves a root by at most WIDTH, if the slope of ln P is at least `slope`."""
    return min(max(WIDTH * slope, WIDTH), 0.01)
