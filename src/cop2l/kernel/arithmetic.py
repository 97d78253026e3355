"""Does a stated bound follow from its integers? Signs at 60 digits, straight from docs/theory.md; no root is looked for.

Every bound of the theory is the root of an increasing function, so a stated value is large enough where that function is not
negative. A stated value is a float, read as the exact number that it is.
"""

from collections.abc import Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal, localcontext
from typing import Any

from cop2l.kernel.options import Options

EXACT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MARGIN = Decimal("1e-40")
"""Far above the error of 60 digits over a million terms, and far below the last digit of a float."""
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628621")


def zeta(k: int) -> Decimal:
    """(6/pi^2) (k + 1)^-2: the weight of a number that is chosen after seeing the data."""
    return 6 / (PI * (k + 1)) ** 2


def weight_of_iterations(options: Options, K: int) -> Decimal:
    """The share of delta that the choice of K leaves: zeta(K), or 1/N on a grid of N numbers."""
    points = options.grid_points
    return Decimal(1) / len(points) if points else zeta(K)


def share_of_task(options: Options, last: int) -> Decimal:
    """What one task's statement gets of delta after task `last`; all statements that are ever issued sum to delta.

    anytime: 6/(pi last)^2 of delta for each time; then equally between families, and between the tasks.
    """
    share = Decimal(options.delta) * (zeta(last - 1) if options.anytime else 1)
    return share / len(options.claim) / last


def follows(value: float, kind: str, record: Mapping[str, Any], messages: Sequence[int], options: Options) -> bool:
    """Whether "risk of the task <= value" follows after the last of the tasks that kept `messages` iterations.

    With probability at least 1 - delta over the draw of all samples and marks, every statement for which this is true holds,
    for all tasks at once: theorems `kl`, `kl-tight`, `preference`, `combined`, `buffer` and `holdout` of docs/theory.md.
    """
    with localcontext(EXACT):
        v, T, t = Decimal(value), len(messages), record["task"]
        share, points = share_of_task(options, T), options.grid_points
        if points and not set(messages) <= set(points):
            return False  # a number outside the grid has no share of delta
        if kind == "holdout":
            return tail_follows(v, record["rows"], record["errors"], -share.ln())
        n, K = record["n"], record["iterations"]
        if kind in ("kl", "kl-tight"):
            tight = kind == "kl-tight"
            late = record["evicted_last"] if tight else 0  # left after T: as if it had stayed
            i, j, times = record["compression"] + late, record["evicted"] - late, T - t - 1 if tight else T - 1
            eps = -share.ln() + ln_choose(n, i) + ln_choose(n - i, j) - zeta(i).ln()
            if not (tight and options.marked):  # marks say when an example leaves
                eps += j * Decimal(max(times, 1)).ln() - zeta(j).ln()
            eps -= sum(weight_of_iterations(options, s).ln() for s in messages[t - 1 if tight else 0 :])
            return (tail_follows if tight else kl_follows)(v, n - i - j, record["errors"], eps)
        n, size = (record["selected"], record["compressed"]) if kind == "buffer" else (n, record["picked"] + record["missed"])
        if kind == "combined" or (kind == "buffer" and options.buffer == "witness"):
            if K == 0:
                return tail_follows(v, n, size, -(share * 3 / 4).ln())
            return preference_follows(v, n, size, share / 4 * (Decimal(1) / (len(points) - 1) if points else zeta(K)))
        return preference_follows(v, n, size, share * weight_of_iterations(options, K))


def ln_choose(n: int, k: int) -> Decimal:
    """Ln C(n, k)."""
    product = Decimal(1)
    for i in range(1, min(k, n - k) + 1):
        product *= Decimal(n - i + 1) / i
    return product.ln()


def kl_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """Errors/n <= v and n kl(errors/n, v) >= eps: v is beyond the kl inverse."""
    if v >= 1:
        return True
    if n == 0 or v <= 0 or errors > n * v:
        return False
    q = Decimal(errors) / n
    left = q * (q / v).ln() if errors else Decimal(0)
    right = (1 - q) * ((1 - q) / (1 - v)).ln()
    return n * (left + right) >= eps + abs(eps) * MARGIN


def tail_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """P[Bin(n, v) <= errors] <= e^-eps: v is beyond the inverse of the binomial tail."""
    if v >= 1:
        return True
    if n == 0 or v <= 0 or errors >= n:
        return False
    term = total = (1 - v) ** n
    ratio = v / (1 - v)
    for i in range(errors):
        term *= ratio * (n - i) / (i + 1)
        total += term
    return total * (1 + MARGIN) <= (-eps).exp()


def preference_follows(v: Decimal, n: int, size: int, delta: Decimal) -> bool:
    """(delta/n) sum_{m=k..n-1} C(m,k)/C(n,k) (1-v)^-(n-m) >= 1, k = size: v is beyond eps(k, n, delta)."""
    if v >= 1:
        return True
    if v < 0 or size >= n:
        return False
    term, total = Decimal(1), Decimal(0)
    for m in range(n - 1, size - 1, -1):  # C(m,k)/C(m+1,k) = (m+1-k)/(m+1)
        term *= (m + 1 - size) / ((m + 1) * (1 - v))
        total += term
    return delta * total >= n * (1 + MARGIN)


def percent(bound: float, digits: int = 2) -> str:
    """A bound as people read it, never rounded down.

    >>> percent(0.03142), percent(0.031420000001), percent(1.0)
    ('3.15 %', '3.15 %', '100.00 %')
    >>> percent(0.03125)
    '3.13 %'
    """
    with localcontext(EXACT):
        return f"{(Decimal(bound) * 100).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)} %"
