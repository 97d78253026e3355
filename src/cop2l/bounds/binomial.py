"""Binomial coefficients and binomial tails, in logarithms, rounded outwards."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import SLACK, outer, up

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
LOG_HALF = math.log(0.5)
LONGEST_FRACTION = 64


@lru_cache(maxsize=64)
def _small_stirling_error(n: int) -> float:
    return math.log(math.factorial(n)) - ((n + 0.5) * math.log(n) - n + HALF_LOG_TAU)


def _stirling_error(n: int) -> float:
    """ln n! less Stirling's (n + 1/2) ln n - n + ln(2 pi)/2, for n >= 1.

    The series envelops its sum: the error is below the first term left out, 2e-3/n^11 < 2^-53 for n >= 16.
    """
    if n < 16:
        return _small_stirling_error(n)
    r = 1.0 / (float(n) * n)
    return (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680 - r / 1188)))) / n


def _log_coefficient(n: int, k: int) -> float:
    """ln C(n, k), relative error below SLACK: in this form nothing large cancels.

    ln C(n, k) = k ln(n/k) + (n - k) ln(n/(n - k)) + ln(n / (2 pi k (n - k))) / 2 + Stirling errors. The first two terms
    are non-negative and the sum is at least 0.18 of them (the worst case is n = 2); the others are below
    ln(2 pi n)/2 + 1/6 in size.
    """
    k = min(k, n - k)
    if k == 0:
        return 0.0
    if k == 1:
        return math.log(n)
    rest = n - k
    entropy = k * math.log(n / k) - rest * math.log1p(-k / n)
    correction = _stirling_error(n) - _stirling_error(k) - _stirling_error(rest)
    return entropy + 0.5 * math.log(n / (2.0 * math.pi * k * rest)) + correction


def log_binomial(n: int, k: int) -> float:
    """ln C(n, k), the nearest we can.

    >>> round(log_binomial(5, 2), 12) == round(math.log(10), 12)
    True
    """
    n = count("n", n)
    return _log_coefficient(n, within("k", k, "n", n))


def log_binomial_above(n: int, k: int) -> float:
    """ln C(n, k), rounded up: the form that bounds use.

    >>> log_binomial_above(10_000, 300) >= log_binomial(10_000, 300)
    True
    """
    value = log_binomial(n, k)
    return up(value) if value else 0.0


def log_mass(n: int, k: int, p: float, r: float) -> tuple[float, float]:
    """ln P[X = k] for X ~ Bin(n, p), 0 < p < 1, r = 1 - p, and a margin that its error does not exceed.

    = Stirling terms - n kl(k/n, p), with the divergence as k log1p(d/k) and (n - k) log1p(-d/(n - k)) for
    d = n p - k. The smaller of p and r must be exact; taking d from it keeps its error below u n min(p, r), which
    moves the divergence by at most 2 u |d|, less than SLACK times the terms.
    """
    if k in {0, n}:
        if k == 0:
            value = n * (math.log1p(-p) if p <= 0.5 else math.log(r))
        else:
            value = n * (math.log(p) if p <= 0.5 else math.log1p(-r))
        return value, SLACK * -value
    rest = n - k
    d = n * p - k if p <= 0.5 else rest - n * r
    x, y = d / k, d / rest
    first = k * (math.log1p(x) if x >= -0.5 else math.log(n * p / k))
    second = rest * (math.log1p(-y) if y <= 0.5 else math.log(n * r / rest))
    half = 0.5 * math.log(n / (2.0 * math.pi * k * rest))
    correction = _stirling_error(n) - _stirling_error(k) - _stirling_error(rest)
    margin = SLACK * (abs(first) + abs(second) + abs(half) + 1.0)
    return first + second + half + correction, margin


def _fraction(n: int, k: int, odds: float, depth: int) -> tuple[float, float]:
    """Bounds on 1/S from Gauss's continued fraction of S = 2F1(-k, 1; n - k + 1; -odds), cut at `depth`.

    1/S = T_0 and T_m = 1 - a_m/(1 + b_m/T_{m+1}) = ((1 - a_m) T_{m+1} + b_m)/(T_{m+1} + b_m) with
    a_m = (k - m)(n - k + m)/((n - k + 2m)(n - k + 2m + 1)) odds and
    b_m = (m + 1)(n + m + 1)/((n - k + 2m + 1)(n - k + 2m + 2)) odds.
    a_m decreases in m and a_0 < 1 where (n + 1) p > k, so 1 - a_m <= T_m <= 1, and T_m decreases in T_{m+1}: either
    end at the bottom gives one end at the top, and nothing is subtracted on the way but in 1 - a_m.
    """
    base = float(n - k)
    least = greatest = 1.0
    if depth < k:
        c = base + 2 * depth
        least = 1.0 - (k - depth) * (base + depth) / (c * (c + 1.0)) * odds
    else:
        depth = k
    for m in range(depth - 1, -1, -1):
        c = base + 2 * m + 1.0
        s = odds / c
        b = s * (m + 1.0) * (n + m + 1.0) / (c + 1.0)
        a = 1.0 - s * (k - m) * (base + m) / (c - 1.0)
        least, greatest = (a * greatest + b) / (greatest + b), (a * least + b) / (least + b)
    return least, greatest


def _series(n: int, k: int, odds: float) -> tuple[float, float]:
    """Bounds on S by its sum, for where the fraction is slow: p within a fraction of a deviation of k/n."""
    decay = 1.0 - odds * k / (n - k + 1.0)
    curve = n / (float(k) * (n - k))
    length = min(k, int((math.sqrt(decay * decay + 80.0 * curve) - decay) / curve) + 16)
    j = np.arange(1.0, length + 1.0)
    terms = np.cumprod((k + 1.0 - j) / (n - k + j) * odds)
    total = 1.0 + float(terms.sum())
    rest = 0.0
    if length < k:
        ratio = odds * (k - length) / (n - k + length + 1.0)
        rest = float(terms[-1]) * ratio / (1.0 - ratio)
    slack = (length + 8) * 2.0**-50
    return total * (1.0 - slack), (total + rest) * (1.0 + slack)


def tail_factor(n: int, k: int, odds: float, precision: float) -> tuple[float, float]:
    """Bounds on S = P[X <= k] / P[X = k] for X ~ Bin(n, p), odds = (1 - p)/p, where (n + 1) p > k and k < n.

    S = 1 + k odds/(n-k+1) + ...: positive terms whose ratios decrease and are below one. The bounds hold whatever
    `precision` (the relative width aimed at) is.
    """
    if k == 0:
        return 1.0, 1.0
    gap = 1.0 - k * odds / (n - k + 1.0)
    depth = 8
    while gap > 0.0 and depth <= LONGEST_FRACTION:
        least, greatest = _fraction(n, k, odds, depth)
        if greatest - least <= precision * least:
            # Each level adds a few roundings, and 1 - a_m loses at most u/(1 - a_0) of itself.
            slack = (8 * depth + 16) * 2.0**-53 * (1.0 + 1.0 / gap)
            if slack <= max(precision, 1e-9):
                return (1.0 - slack) / greatest, (1.0 + slack) / least
        depth *= 2
    return _series(n, k, odds)


def binomial_tail_inverse(errors: int, n: int, log_delta: float) -> float:
    """The largest p that still gives `errors` or fewer in n trials with probability delta, rounded up.

    For every p and n: with probability at least 1 - delta over X ~ Bin(n, p), p <= binomial_tail_inverse(X, n, ln delta).

    sup{p : P[Bin(n, p) <= errors] >= delta}: never below it, at most 1e-9 above; 1 if errors = n. It is never
    larger than kl^-1(errors/n, ln(1/delta)/n), because P[Bin(n, p) <= errors] <= exp(-n kl(errors/n, p)).

    >>> binomial_tail_inverse(0, 100, math.log(0.05))
    0.029513...
    >>> binomial_tail_inverse(10, 1000, math.log(0.05))
    0.016...
    """
    n = count("n", n, least=1)
    return tail_inverse(within("errors", errors, "n", n), n, log_confidence(log_delta))


def tail_inverse(k: int, n: int, log_delta: float) -> float:
    """`binomial_tail_inverse` for arguments that are known to be good."""
    if k == n:
        return 1.0
    if log_delta == 0.0:
        return 0.0
    if k == 0:
        return min(1.0, up(-math.expm1(log_delta / n)))
    if log_delta > LOG_HALF:
        return _inverse_from_above(k, n, log_delta)

    def excess(p: float) -> tuple[float, float]:
        """ln delta - ln P[X <= k] from below: convex in p, because the tail is log-concave in p."""
        r = 1.0 - p
        mass, margin = log_mass(n, k, p, r)
        _, factor = tail_factor(n, k, r / p, 1e-11)
        log_factor = math.log(factor)
        return log_delta - mass - margin - log_factor - SLACK * (log_factor + 1.0), (n - k) / (r * factor)

    # P[Bin(n, p) <= k] > 1/2 for every p <= k/n, so the root is above k/n.
    chernoff = ratio_inverse(k, n, -log_delta)
    return min(chernoff, outer(excess, k / n, chernoff))


def _inverse_from_above(k: int, n: int, log_delta: float) -> float:
    """The same for delta > 1/2, through the upper tail: P[X > k] = P[n - X <= n - k - 1] >= 1 - delta."""
    target = math.log(-math.expm1(log_delta))
    target += SLACK * (abs(target) + 1.0)
    others = n - k - 1

    def excess(p: float) -> tuple[float, float]:
        """ln P[X > k] - ln(1 - delta) from below."""
        if n * p >= (k + 1) * (1.0 + SLACK):
            return 1.0, 0.0  # then P[X > k] >= 1/2 > 1 - delta
        mass, margin = log_mass(n, others, 1.0 - p, p)
        factor, _ = tail_factor(n, others, p / (1.0 - p), 1e-11)
        log_factor = math.log(factor)
        g = mass - margin + log_factor - SLACK * (log_factor + 1.0) - target
        return g, (k + 1) / (p * factor)

    # P[X > k] >= P[X = k + 1] p-free part: (p n)^(k+1)/(k+1)! overestimates it, so its root is a start from below.
    start = math.exp(min(0.0, (target + math.lgamma(k + 2.0)) / (k + 1.0) - math.log(n)))
    return outer(excess, 0.0, min(start, (k + 1.0) / n))
