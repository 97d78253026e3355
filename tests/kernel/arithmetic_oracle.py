"""The bounds of docs/theory.md once more, at 60 digits with mpmath: each as an increasing function of a risk.

A stated value follows from a record iff that function is not negative there. Nothing here is shared with the kernel or with
`cop2l.bounds`: coefficients are gamma functions and tails are incomplete beta functions, not sums.
"""

from fractions import Fraction

from mpmath import betainc, exp, log, loggamma, mp, mpf, pi

mp.dps = 60


def real(x):
    x = Fraction(x)
    return mpf(x.numerator) / x.denominator


def ln_zeta(k):
    """zeta(k) = (6/pi^2) (k + 1)^-2."""
    return log(6 / pi**2) - 2 * log(mpf(k + 1))


def ln_choose(n, k):
    return loggamma(mpf(n + 1)) - loggamma(mpf(k + 1)) - loggamma(mpf(n - k + 1))


def kl(q, p):
    left = q * log(q / p) if q > 0 else mpf(0)
    return left + ((1 - q) * log((1 - q) / (1 - p)) if q < 1 else mpf(0))


def lower_tail(n, x, p):
    """P[Bin(n, p) <= x] = I_{1-p}(n - x, x + 1), for x < n."""
    return betainc(n - x, x + 1, 0, 1 - p, regularized=True)


def ln_price(options, iterations):
    """ln zeta(K), or -ln N on a grid of N numbers (section 4)."""
    return -log(mpf(len(options.grid_points))) if options.grid else ln_zeta(iterations)


def preference_excess(e, n, k, ln_delta):
    """delta P[X > k] - n e P[X = k], for X ~ Bin(n, e) (section 5, "Computing it"), over delta n e P[X = k]."""
    more = betainc(k + 1, n - k, 0, e, regularized=True)
    at = exp(ln_choose(n, k) + k * log(e) + (n - k) * log(1 - e))
    return more - exp(-ln_delta) * n * e * at


def excess(value, kind, record, messages, options):
    """Not negative iff "risk <= value" is what the theorem gives, for 0 < value < 1 and where the bound is below one."""
    v, T = real(value), len(messages)
    ln_share = log(real(options.delta)) - log(mpf(options.siblings)) - log(mpf(T))
    if options.tasks is None:  # section 6: 6/(pi T)^2 of delta at time T
        ln_share += log(6 / (pi * T) ** 2)
    if kind == "holdout":
        return exp(ln_share) - lower_tail(record["n"], record["errors"], v)
    if kind == "kl":
        n, I, J, q = record["n"], record["compression"], record["evicted"], record["errors"]
        eps = ln_choose(n, I) + ln_choose(n - I, J) - ln_zeta(I) - ln_zeta(J) - ln_share
        eps += J * log(mpf(T - 1)) if J else 0
        eps -= sum(ln_price(options, iterations) for iterations in messages)
        rest = n - I - J
        return rest * kl(mpf(q) / rest, v) - eps if mpf(q) / rest < v else mpf(-1)
    n, k = record["n"], record["picked"] + record["errors_not_picked"]
    if kind == "buffer":
        n, k = record["selected"], record["compressed"]
    return preference_excess(v, n, k, ln_share + ln_price(options, record["iterations"]))
