"""The evidence against "the error rate is at most b", from counts alone, rounded down."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

SLACK = 2.0**-46
"""A bound on the relative error of a product of a count and a logarithm, and of the sum of all terms."""
STARTS = 1024
"""The number of later starts; they share one half of the weight, and the first example has the other half."""
FINEST = 6
"""The smallest alternative is b + 2^-6 min(b, 1 - b)."""


@cache
def alternatives(bound: float) -> tuple[float, ...]:
    """The alternatives to the claim: the error rates q = b + min(b, 1 - b) 2^j below one, for j = -6, -5, ...

    >>> [round(q, 4) for q in alternatives(0.25)]
    [0.2539, 0.2578, 0.2656, 0.2812, 0.3125, 0.375, 0.5, 0.75]
    """
    rates = []
    step = min(bound, 1.0 - bound) * 2.0**-FINEST
    while bound + step < 1.0:
        rates.append(bound + step)
        step *= 2.0
    return tuple(rates)


@cache
def start_times() -> np.ndarray:
    """The numbers of examples after which a later start is due: steps of 16 at first, then of 1/32 of the examples so far.

    >>> start_times()[[0, 1, 40, 200, 1023]].tolist()
    [16, 32, 672, 90499, 9017953784070853]
    """
    times = [16]
    while len(times) < STARTS:
        times.append(times[-1] + max(16, times[-1] // 32))
    return np.array(times)


def starts_due(before: int, n: int) -> int:
    """The number of later starts that fall on the end of a batch which led from `before` to n examples."""
    return int(np.searchsorted(start_times(), n, "right") - np.searchsorted(start_times(), before, "right"))


def log_evidence(bound: float, n: int, errors: Any, start_n: Any = (), start_errors: Any = ()) -> Any:
    """The logarithm of the evidence E_n against "the error rate is at most b", after n examples, rounded down.

    If every X_i is 0 or 1, with conditional mean at most b given X_1..X_{i-1}, then P[E_n >= 1/alpha for any n] <= alpha:

      E_n = 1/2 L(0, n) + 1/2 sum_k L(s_k, n)/1024,   L(s, n) = mean over q of prod_{i=s+1..n} (q/b)^X_i ((1-q)/(1-b))^(1-X_i)

    with L(s, n) = 1 for s >= n. q runs over `alternatives(b)`; s_k is the end of the first batch after which there are at
    least `start_times()[k]` examples. bound: b. errors: the sum of X_1..X_n. start_n, start_errors: examples and errors at the
    ends s_k, each end once, in order. `errors` and `start_errors` may have leading axes, with one entry per stream.

    >>> round(float(log_evidence(0.05, 40, 8)), 3)
    3.056
    """
    terms = _log_terms(bound, n, errors, start_n, start_errors)
    terms = terms.reshape(*terms.shape[:-2], -1)
    # L = 1 for the starts that are not reached yet.
    waiting = 0.5 - starts_due(0, max(start_n, default=0)) / (2.0 * STARTS)
    top = np.maximum(terms.max(-1), -10.0)
    return top + np.log(np.exp(terms - top[..., None]).sum(-1) + (waiting * (1 - SLACK)) * np.exp(-top))


def strongest_start(bound: float, n: int, errors: int, start_n: Any = (), start_errors: Any = ()) -> int:
    """The start with the largest term: 0 is the first example, k the k-th of start_n."""
    return int(_log_terms(bound, n, errors, start_n, start_errors).max(-1).argmax())


def _log_terms(bound: float, n: int, errors: Any, start_n: Any, start_errors: Any) -> np.ndarray:
    """The logarithms of the weighted terms of E_n, rounded down: (..., starts, alternatives)."""
    q = np.array(alternatives(bound))
    d = q - bound
    gain = np.log1p(d / bound)
    x = -d / (1.0 - bound)
    loss = np.where(x >= -0.5, np.log1p(np.maximum(x, -0.5)), np.log((1.0 - q) / (1.0 - bound)))
    ends = np.array([0, *start_n], dtype=np.int64)
    shares = [starts_due(int(a), int(b)) / (2.0 * STARTS) for a, b in pairwise(ends)]
    weights = np.array([0.5, *shares])
    errors = np.asarray(errors, np.float64)[..., None]
    start_errors = np.broadcast_to(start_errors, (*errors.shape[:-1], len(ends) - 1))
    errors = errors - np.concatenate([np.zeros_like(errors), start_errors], -1)  # since each start
    up, down = errors[..., None] * gain, (n - ends - errors)[..., None] * loss
    terms: np.ndarray = up + down - SLACK * (up - down + 20.0) + np.log(weights / len(q))[:, None]
    return terms
