"""The outer end of a bracket: where every inversion of this package ends.

Rounding. Every estimate below comes with a margin that is at least its distance from the true number. The margins
assume u = 2^-53 for the four operations and 4 u for log, log1p, exp, expm1 and sqrt (C libraries stay within that),
and count the roundings: a term goes through fewer than 32 u of them, so SLACK = 2^-48 = 32 u times the sum of the
terms' absolute values covers a sum.
"""

import math
from collections.abc import Callable

SLACK = 2.0**-48
TOLERANCE = 2e-12  # of a result p, relative to 1 - p
ULP = 2.0**-53  # of floats just below one
WIDTH = 1e-11  # what a looser evaluation may cost in the result
BELOW_ONE = 1.0 - ULP


def sum_above(x: float) -> float:
    """A non-negative sum of non-negative terms, enlarged by more than its rounding."""
    return math.nextafter(x * (1.0 + SLACK), math.inf)


def sum_below(x: float) -> float:
    """A sum of non-positive terms, moved away from zero by more than its rounding."""
    return -sum_above(-x)


def point_above_root(excess: Callable[[float], tuple[float, float]], low: float, start: float) -> float:
    """A point above the root of an increasing function, by a hair.

    excess(p) gives a lower estimate of g(p), where g increases on (low, 1) and has one root there, and about its slope.
    The result p is 1, or g(p) >= 0 has been seen: it is not below the root, whatever the start and the slopes were.
    They only decide how soon we arrive: for a convex g, Newton's steps from above stay above.
    """
    high = 1.0
    p = min(max(start, math.nextafter(low, 1.0)), BELOW_ONE)
    looks = 0
    while True:
        g, slope = excess(p)
        looks += 1
        hair = max(TOLERANCE * (1.0 - p), ULP)
        step = g / slope if slope > 0.0 else math.inf
        if g >= 0.0:
            if step <= hair:
                return p
            high = p
        else:
            low = p
            step -= 0.5 * hair  # past the root, so that the next look can confirm
        p -= step
        if looks > 50 or not low < p < high:
            p = low + 0.5 * (high - low)
            if not low < p < high:
                return high
