"""Outward rounding of sums and of roots.

Every estimate in this package has a margin: its error is at most the margin. The margins assume that the four operations
have a relative error of at most u = 2^-53, and log, log1p, exp, expm1 and sqrt one of at most 4 u; C libraries satisfy
this. The relative error of each term of a sum is below 32 u. So SLACK = 2^-48 = 32 u, times the sum of the terms' absolute
values, is a margin of the sum.
"""

import math
from collections.abc import Callable

SLACK = 2.0**-48
TOLERANCE = 2e-12  # of a root p, relative to 1 - p
ULP = 2.0**-53  # the distance of floats just below 1
WIDTH = 1e-11  # by which a less precise evaluation may move a root
BELOW_ONE = 1.0 - ULP


def sum_above(x: float) -> float:
    """A sum of non-negative terms, enlarged by more than its rounding error."""
    return math.nextafter(x * (1.0 + SLACK), math.inf)


def sum_below(x: float) -> float:
    """A sum of non-positive terms, moved away from zero by more than its rounding error."""
    return -sum_above(-x)


def point_above_root(excess: Callable[[float], tuple[float, float]], low: float, start: float) -> float:
    """A point at or just above the root of a function g that increases on (low, 1) and has one root there.

    excess(p) gives a lower estimate of g(p), and an estimate of its slope. The result is 1, or a p at which the lower
    estimate is not negative. So it is never below the root, for any `start` and any slopes; these only decide the number of
    steps. For a convex g, Newton's steps from above stay above the root.
    """
    high = 1.0
    p = min(max(start, math.nextafter(low, 1.0)), BELOW_ONE)
    evaluations = 0
    while True:
        g, slope = excess(p)
        evaluations += 1
        tolerance = max(TOLERANCE * (1.0 - p), ULP)
        step = g / slope if slope > 0.0 else math.inf
        if g >= 0.0:
            if step <= tolerance:
                return p
            high = p
        else:
            low = p
            step -= 0.5 * tolerance  # to a point past the root, where g >= 0
        p -= step
        if evaluations > 50 or not low < p < high:
            p = low + 0.5 * (high - low)
            if not low < p < high:
                return high
