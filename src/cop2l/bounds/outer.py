"""The outer end of a bracket: where every inversion of this room ends.

Rounding. A computed number x stands for an unknown true one; every evaluation below adds up a margin that is at
least |x - true|. The margins assume what the C library and numpy document for log, log1p, exp, expm1 and sqrt
(a few units in the last place, here up to 4) and u = 2^-53 for the four operations; `SLACK` = 2^-48 = 32 u per unit
of the absolute values that were added covers a sum of up to ten such terms.
"""

import math
from collections.abc import Callable

SLACK = 2.0**-48
TOLERANCE = 1e-12
BELOW_ONE = 1.0 - 2.0**-53


def up(x: float) -> float:
    """x enlarged by more than the rounding of a short sum of non-negative terms."""
    return math.nextafter(x * (1.0 + SLACK), math.inf)


def down(x: float) -> float:
    """A non-positive x moved away from zero in the same way."""
    return -up(-x)


def outer(excess: Callable[[float], tuple[float, float]], low: float, start: float) -> float:
    """A p, at most a hair above the root, at which a lower estimate of an increasing function is >= 0.

    excess(p) gives a lower estimate of g(p), g increasing on (low, 1) with one root, and g's approximate slope.
    The returned p is 1, or g(p) >= 0 has been seen there: it is never below the root, whatever the slope or the
    start were. Those only decide how soon we arrive.
    """
    high = 1.0
    p = min(max(start, math.nextafter(low, 1.0)), BELOW_ONE)
    while True:
        g, slope = excess(p)
        if g >= 0.0:
            high = p
        else:
            low = p
        if high - low <= TOLERANCE:
            return high
        step = g / slope if slope > 0.0 else math.inf
        if 0.0 <= step <= TOLERANCE:
            return p
        # From below, aim a little past the root, so that the next look can confirm.
        p = p - step if g >= 0.0 else p - step + 0.25 * TOLERANCE
        if not low < p < high:
            p = low + 0.5 * (high - low)
            if not low < p < high:
                return high
