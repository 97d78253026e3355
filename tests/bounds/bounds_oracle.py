"""An independent implementation of every formula, at 50 digits, straight from its definition.

A root is never looked for: the functions are monotone, so a returned value is right if the equation's sign there,
and a billionth below, says so.
"""

from fractions import Fraction

from mpmath import exp, expm1, log, loggamma, mp, mpf, pi

mp.dps = 50
SHIFT = 240  # bits of the fixed-point sums
HAIR = Fraction(1, 10**9)


def real(x):
    """A float, an int or a Fraction as an mpf, exactly."""
    x = Fraction(x)
    return mpf(x.numerator) / x.denominator


def kl(q, p):
    """With as many digits as the smallest of the numbers needs: at least 50 are left of the difference."""
    q, p = Fraction(q), Fraction(p)
    smallest = min(x for x in (q, p, 1 - q, 1 - p, abs(p - q), Fraction(1)) if x)
    with mp.workprec(200 + 2 * (smallest.denominator.bit_length() - smallest.numerator.bit_length())):
        q, p = real(q), real(p)
        left = q * log(q / p) if q > 0 else mpf(0)
        return left + ((1 - q) * log((1 - q) / (1 - p)) if q < 1 else 0)


def log_binomial(n, k):
    return loggamma(mpf(n) + 1) - loggamma(mpf(k) + 1) - loggamma(mpf(n) - k + 1)


def log_zeta(k):
    return log(6 / pi**2) - 2 * log(mpf(k) + 1)


def _sum_below(n, k, odds):
    """sum_{i <= k} P[X = i] / P[X = k], term by term, for odds = (1 - p)/p."""
    a, b = odds.numerator, odds.denominator
    term = total = 1 << SHIFT
    for j in range(k):
        term = term * ((k - j) * a) // ((n - k + 1 + j) * b)
        total += term
        if term << 180 < total and (k - j) * a < (n - k + 1 + j) * b:
            break
    return mpf(total) / (1 << SHIFT)


def log_mass(n, k, p):
    """ln P[X = k] for X ~ Bin(n, p)."""
    value = log_binomial(n, k)
    if k:
        value += k * log(real(p))
    return value + (n - k) * log(real(1 - Fraction(p))) if k < n else value


def log_at_most(n, k, p):
    """ln P[X <= k], by the shorter of the two sums."""
    p = Fraction(p)
    if k == n:
        return mpf(0)
    if n * p >= k:
        return log_mass(n, k, p) + log(_sum_below(n, k, (1 - p) / p))
    return log(-expm1(log_more(n, k, p)))


def log_more(n, k, p):
    """ln P[X > k]."""
    p = Fraction(p)
    if n * p <= k + 1:
        return log_mass(n, k + 1, p) + log(_sum_below(n, n - k - 1, p / (1 - p)))
    return log(-expm1(log_at_most(n, k, p)))


def tail_excess(n, k, log_delta):
    """The increasing function of p whose root is the binomial tail inverse; a delta above 1/2 counts as 1/2."""
    log_delta = min(mpf(log_delta), log(mpf(1) / 2))
    return lambda p: log_delta - log_at_most(n, k, p)


def preference_sum(k, n, e):
    """(1/n) sum_{m=k}^{n-1} C(m,k)/C(n,k) (1-e)^-(n-m), term by term."""
    e = real(e)
    term, total = mpf(1), mpf(0)
    for m in range(n - 1, k - 1, -1):
        term *= mpf(m + 1 - k) / (m + 1) / (1 - e)
        total += term
    return total / n


def preference_beta(k, n, e):
    """The same through the incomplete beta function: I_e(k+1, n-k)/(n e [I_e(k, n-k+1) - I_e(k+1, n-k)])."""
    return exp(log_more(n, k, e) - log_mass(n, k, e)) / (n * real(e))


def is_outer(value, excess, low=0):
    """Whether `value` is at or above the root of the increasing `excess` on (low, 1), by at most a billionth."""
    value, low = Fraction(value), Fraction(low)
    not_below = value >= 1 or (value > low and excess(value) >= 0) or (value == low == 0)
    near = value - HAIR <= low or excess(value - HAIR) < 0
    return bool(not_below and near)
