"""The inverse of the binary kl divergence, rounded up."""

import math
from functools import lru_cache

from cop2l.bounds.outer import BELOW_ONE, SLACK, TOLERANCE, ULP, sum_above

TINY = 1e-300  # above the error of gradual underflow


def _divergence(q: float, p: float) -> tuple[float, float]:
    """The divergence kl(q, p) for q and p in (0, 1), and a margin of its error.

    Near p = q both logarithms are log1p of a multiple of d = p - q, so the error is of the order u |d|, not u.
    Farther away the quotients are accurate: y > 1/2 implies p >= 1/2, and then 1 - p is exact.
    """
    d = p - q
    x, y = q / p, d / (1.0 - q)
    first = -q * math.log1p(d / q) if 0.5 <= x <= 2.0 else q * math.log(x)
    second = (1.0 - q) * (math.log((1.0 - q) / (1.0 - p)) if y > 0.5 else -math.log1p(-y))
    return first + second, SLACK * (abs(first) + abs(second)) + TINY


def upper_inverse(q: float, epsilon: float) -> float:
    """The inverse kl^-1(q, epsilon) of the binary divergence, rounded up, for q in [0, 1] and epsilon >= 0.

      kl^-1(q, epsilon) = sup{p : kl(q, p) <= epsilon},
      kl(q, p) = q ln(q/p) + (1 - q) ln((1 - q)/(1 - p)),   0 ln 0 = 0.

    The result is never below the supremum and at most 1e-9 above it.

    >>> round(upper_inverse(0.1, 0.02), 9)
    0.170383628
    """
    if q >= 1.0 or epsilon == math.inf:
        return 1.0
    if epsilon == 0.0:
        return q
    if q == 0.0:
        return min(1.0, sum_above(-math.expm1(-epsilon)))
    # Three points above the root. kl(q, p) is the integral of (s - q)/(s (1 - s)) over s from q to p. There s (1 - s) is at
    # most v: the first point. It is also less than p, which gives (p - q)^2 <= 2 p epsilon: the second. The third:
    # -(1 - q) ln(1 - p) is at most epsilon plus the entropy of q.
    v = 0.25 if q < 0.5 else q * (1.0 - q)
    entropy = -q * math.log(q) - (1.0 - q) * math.log1p(-q)
    p = min(
        q + math.sqrt(2.0 * v * epsilon),
        q + epsilon + math.sqrt(epsilon * (epsilon + 2.0 * q)),
        -math.expm1(-(epsilon + entropy) / (1.0 - q)),
        BELOW_ONE,
    )
    # kl(q, .) is convex and increasing above q, so Newton's steps from above stay above the root. Rounding may break this,
    # so p is returned only if kl(q, p) minus its margin is at least epsilon.
    scale = 1.0
    while p < 1.0:
        tolerance = scale * max(TOLERANCE * (1.0 - p), ULP)
        if p > q:
            value, margin = _divergence(q, p)
            excess = value - margin - epsilon
            step = excess * p * (1.0 - p) / (p - q)
            if excess >= 0.0:
                if step <= tolerance:
                    return p
                p -= step
                continue
            p -= step
        p = max(p, q) + tolerance
        scale += scale
    return 1.0


@lru_cache(maxsize=4096)
def ratio_inverse(errors: int, n: int, epsilon: float) -> float:
    """The inverse kl^-1(errors/n, epsilon/n), rounded up; both quotients are rounded up, because it increases in both."""
    if errors == n:
        return 1.0
    q = math.nextafter(errors / n, 1.0) if errors else 0.0
    return upper_inverse(q, math.nextafter(epsilon / n, math.inf))
