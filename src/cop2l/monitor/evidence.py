"""The evidence against "the error rate is at most b", from counts alone, rounded down."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

SLACK = 2.0**-46
"""Above the relative error of a product of a count and a logarithm, and of the sum of all terms."""
STARTS = 1024
"""How many later starts share one half of the weight; the first example has the other half."""
FINEST = 6
"""The smallest excess looked for is 2^-6 of min(b, 1 - b)."""


@cache
def alternatives(bound: float) -> tuple[float, ...]:
    """The error rates q above b that are held against the claim: b + min(b, 1 - b) 2^j below one, j = -6, -5, ...

    >>> [round(q, 4) for q in alternatives(0.25)]
    [0.2539, 0.2578, 0.2656, 0.2812, 0.3125, 0.375, 0.5, 0.75]
    """
    scale, found = min(bound, 1.0 - bound), []
    step = scale * 2.0**-FINEST
    while bound + step < 1.0:
        found.append(bound + step)
        step *= 2.0
    return tuple(found)


@cache
def start_times() -> np.ndarray:
    """After how many examples a later start is due: every 16, then every thirty-second of what went before.

    >>> start_times()[[0, 1, 40, 200, 1023]].tolist()
    [16, 32, 672, 90499, 9017953784070853]
    """
    times = [16]
    while len(times) < STARTS:
        times.append(times[-1] + max(16, times[-1] // 32))
    return np.array(times)


def starts_due(before: int, n: int) -> int:
    """How many later starts fall on the end of a batch that went from `before` to n examples."""
    return int(np.searchsorted(start_times(), n, "right") - np.searchsorted(start_times(), before, "right"))


def log_evidence(bound: float, n: int, errors: Any, start_n: Any = (), start_errors: Any = ()) -> Any:
    """The logarithm of the evidence E_n after n examples with so many errors, rounded down.

    If every X_i is 0 or 1 with conditional mean <= b given what came before, then P[E_n >= 1/alpha for any n] <= alpha:

      E_n = 1/2 L(0, n) + 1/2 sum_k L(s_k, n)/1024,   L(s, n) = mean over q of prod_{i=s+1..n} (q/b)^X_i ((1-q)/(1-b))^(1-X_i)

    with L(s, n) = 1 while s >= n; q runs over `alternatives(b)`, and s_k is the end of the first batch with at least
    `start_times()[k]` examples. start_n and start_errors: the counts at those ends, each once, in order. `errors` and
    `start_errors` may have leading axes: one entry per stream.

    >>> round(float(log_evidence(0.05, 40, 8)), 3)
    3.056
    """
    terms = _log_terms(bound, n, errors, start_n, start_errors)
    terms = terms.reshape(*terms.shape[:-2], -1)
    # Starts that are still to come stand at one.
    waiting = 0.5 - starts_due(0, max(start_n, default=0)) / (2.0 * STARTS)
    top = np.maximum(terms.max(-1), -10.0)
    return top + np.log(np.exp(terms - top[..., None]).sum(-1) + (waiting * (1 - SLACK)) * np.exp(-top))


def strongest_start(bound: float, n: int, errors: int, start_n: Any = (), start_errors: Any = ()) -> int:
    """Which start has the largest term: 0 is the first example, k the k-th of start_n."""
    return int(_log_terms(bound, n, errors, start_n, start_errors).max(-1).argmax())


def _log_terms(bound: float, n: int, errors: Any, start_n: Any, start_errors: Any) -> np.ndarray:
    """The logarithms of the terms of E_n, weights and all, rounded down: (..., starts, alternatives)."""
    q = np.array(alternatives(bound))
    d = q - bound
    gain = np.log1p(d / bound)
    x = -d / (1.0 - bound)
    loss = np.where(x >= -0.5, np.log1p(np.maximum(x, -0.5)), np.log((1.0 - q) / (1.0 - bound)))
    ends = np.array([0, *start_n], dtype=np.int64)
    shares = [starts_due(int(a), int(b)) / (2.0 * STARTS) for a, b in pairwise(ends)]
    weights = np.array([0.5, *shares])
    wrong = np.asarray(errors, np.float64)[..., None]
    wrong = wrong - np.concatenate(
        [np.zeros_like(wrong), np.broadcast_to(start_errors, (*wrong.shape[:-1], len(ends) - 1))], -1
    )
    right = (n - ends) - wrong
    up, down = wrong[..., None] * gain, right[..., None] * loss
    terms: np.ndarray = up + down - SLACK * (up - down + 20.0) + np.log(weights / len(q))[:, None]
    return terms
