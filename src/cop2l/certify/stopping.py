"""The criterion of early stopping: what `kernel.learning` has, to the last bit, with a quarter of the logarithms.

The kernel bisects. Far from the answer the outcome of a comparison is known: kl(q, p) grows with p, and is computed to within
`EXACT`. So the answer is found by Newton's method first, and bisected again with comparisons where they are known.
"""

import math

from cop2l.kernel import learning
from cop2l.kernel.options import Options

EXACT = 2e-14
"""More than ten times the error of a computed kl that is at most 2."""
FAR = 0.99
"""Beyond this kl is too steep for its error to say something about p."""


def criterion(options: Options, n: int, picked: int, errors: int, iterations: int) -> float:
    """`learning.criterion`."""
    return learning.criterion(options, n, picked, errors, iterations, kl_inverse)


def reaches(options: Options, n: int, picked: int, errors: int, iterations: int, least: float) -> bool:
    """Whether the criterion is at least `least`: where it is clearly less, one value of kl tells."""

    def inverse(q: float, eps: float) -> float:
        clear = q < least < FAR and _kl(q, least) > eps + 100 * EXACT
        return -math.inf if clear else kl_inverse(q, eps)

    return learning.criterion(options, n, picked, errors, iterations, inverse) >= least


def _kl(q: float, p: float) -> float:
    """As `learning.kl_inverse` computes it, for p from q to 1."""
    left = q * math.log(q / p) if q > 0 else 0.0
    return left + (1 - q) * math.log((1 - q) / (1 - p))


def kl_inverse(q: float, eps: float) -> float:
    """`learning.kl_inverse`."""
    # Neither is below the answer: kl is convex, and from there every step of Newton's ends above it too.
    p = min(q + math.sqrt(max(eps, 0.0) / 2), q + eps + math.sqrt(max(eps * eps + 2 * q * eps, 0.0)))
    step, slope = 1.0, 0.0
    while q < p < FAR and abs(step) > 1e-8:
        slope = (p - q) / (p * (1 - p))
        step = (_kl(q, p) - eps) / slope
        p -= step
    aside = 2 * EXACT / slope if slope else 1.0
    below, above = p - aside, p + aside
    if not (q < below < above < FAR and _kl(q, below) < eps - EXACT and eps + EXACT < _kl(q, above) < 2):
        return learning.kl_inverse(q, eps)
    low, high = q, 1.0
    while low < (middle := (low + high) / 2) < high:
        if middle <= below or (middle < above and _kl(q, middle) <= eps):
            low = middle
        else:
            high = middle
    return high
