"""Does a stated bound follow from its integers? Signs at 60 digits, straight from docs/theory.md; no root is looked for.

Every bound of the theory is the root of an increasing function, so a stated value is large enough where that function is not
negative. A stated value is a float, read as the exact number that it is.
"""

import math
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


def share_of_family(family: str, options: Options, last: int) -> Decimal:
    """What a family of statements gets of delta after task `last`; all statements that are ever issued sum to delta.

    anytime: 6/(pi last)^2 of delta for each time; then between the families that cost something, as declared.
    """
    share = Decimal(options.delta) * (zeta(last - 1) if options.anytime else 1)
    if options.shares:
        return share * options.shares[options.claim.index(family)] / sum(options.shares)
    return share / options.paid_families


def follows(stated: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether a statement of a certificate follows from its integers.

    With probability at least 1 - delta over the draw of all samples and marks, every statement for which this is true holds,
    all of them at once: theorems `kl`, `kl-tight`, `preference`, `combined`, `buffer` and `holdout` of docs/theory.md for
    tasks; the same on a part of the sample (classes, groups) or of another event (forgetting); `average` for what is pooled.
    """
    records, options, family, task = content["records"], content["options"], stated["family"], stated["task"]
    with localcontext(EXACT):
        v, T, messages = Decimal(stated["value"]), len(records), [record.get("iterations", 0) for record in records]
        if options.grid_points and not set(messages) <= set(options.grid_points):
            return False  # a number outside the grid has no share of delta
        share = share_of_family(family, options, T)
        if task is None:
            return average_follows(v, family, content, share / (T if family == "forgetting" else 1))
        counted, share = counts_of(records[task - 1], family, stated["subject"]), share / T
        if family in ("classes", "groups"):  # a partition, known from what is recorded: its empty parts cost nothing
            share /= max(1, sum(part["n"] > 0 for part in records[task - 1]["parts"] if part["family"] == family))
        if family == "forgetting" and held_out(stated["kind"], counted, options):
            share /= 2  # one half for what was lost, the other for what was gained
        if stated["subject"] == "net":
            lost = next(
                s["value"] for s in content["statements"] if (s["family"], s["task"], s["subject"]) == (family, task, "lost")
            )
            n, size = sizes(stated["kind"], counts_of(records[task - 1], family, "gained"))
            return v >= lost or gain_follows(Decimal(lost) - v, n, size, share * held_out(stated["kind"], counted, options))
        return event_follows(v, stated["kind"], counted, task, messages, options, share)


def counts_of(record: Mapping[str, Any], family: str, subject: Any) -> Mapping[str, Any]:
    """The integers behind a statement: the record's own, or those of one of its parts."""
    name = "lost" if subject == "net" else subject
    own = record if family in ("tasks", "average") else None
    return own or next(part for part in record["parts"] if (part["family"], part["subject"]) == (family, name))


def held_out(kind: str, counted: Mapping[str, Any], options: Options) -> Decimal:
    """How much of a statement's share is left if theta_T does not depend on the sample at all; 0 if it may."""
    if kind == "holdout":
        return Decimal(1)
    return Decimal("0.75") * (options.buffer == "witness" and kind in ("combined", "buffer") and counted["iterations"] == 0)


def sizes(kind: str, counted: Mapping[str, Any]) -> tuple[int, int]:
    """The size of the sample, and of what it is compressed to: picked examples and those of the event."""
    if kind == "buffer":
        return counted["selected"], counted["compressed"]
    return counted["n"], counted["picked"] + counted["missed"]


def event_follows(
    v: Decimal, kind: str, counted: Mapping[str, Any], t: int, messages: Sequence[int], options: Options, share: Decimal
) -> bool:
    """Whether "the event has probability <= v" follows at this share; the event is an error, or an answer that was lost."""
    n, size, T, points = *((0, 0) if kind.startswith("kl") else sizes(kind, counted)), len(messages), options.grid_points
    if kind in ("kl", "kl-tight"):
        tight = kind == "kl-tight"
        late = counted["evicted_last"] if tight else 0  # left after T: as if it had stayed
        i, j, times = counted["compression"] + late, counted["evicted"] - late, T - t - 1 if tight else T - 1
        eps = -share.ln() + ln_choose(counted["n"], i) + ln_choose(counted["n"] - i, j) - zeta(i).ln()
        if not (tight and options.marked):  # marks say when an example leaves
            eps += j * Decimal(max(times, 1)).ln() - zeta(j).ln()
        eps -= sum(weight_of_iterations(options, s).ln() for s in messages[t - 1 if tight else 0 :])
        return (tail_follows if tight else kl_follows)(v, counted["n"] - i - j, counted["errors"], eps)
    if held := held_out(kind, counted, options):
        return tail_follows(v, n, size, -(share * held).ln())
    if options.buffer == "witness" and kind in ("combined", "buffer"):
        return preference_follows(
            v, n, size, share / 4 * (Decimal(1) / (len(points) - 1) if points else zeta(counted["iterations"]))
        )
    return preference_follows(v, n, size, share * weight_of_iterations(options, counted["iterations"]))


def average_follows(v: Decimal, family: str, content: Mapping[str, Any], share: Decimal) -> bool:
    """Whether the mean over tasks, weighted by their examples, is at most v: pooled over those in the hold-out case.

    The others enter with their own stated bounds. pi(A), the weight of the set A of pooled tasks, is fixed in advance: 3/4 for
    all of m tasks, (1/4)/(m C(m, |A|)) for another set. The theorem needs share * pi(A) <= 1/4, and gives 1 from N - 1 errors on.
    """
    options, last = content["options"], len(content["records"]) - (family == "forgetting")
    counted = [counts_of(record, family, "lost") for record in content["records"][:last]]
    whose = ("tasks", None) if family == "average" else (family, "lost")
    own = {s["task"]: s["value"] for s in content["statements"] if (s["family"], s["subject"]) == whose}
    pooled = [one["errors"] is not None and held_out(options.kind, one, options) > 0 for one in counted]
    N, X = (sum(sizes(options.kind, one)[i] for one, hold in zip(counted, pooled, strict=True) if hold) for i in (0, 1))
    rest = sum(
        one["n"] * Decimal(own.get(t, 1.0)) for t, (one, hold) in enumerate(zip(counted, pooled, strict=True), 1) if not hold
    )
    v = v * sum(one["n"] for one in counted) - rest
    if not N or X >= N - 1:
        return v >= N
    if options.kind != "holdout":
        share *= Decimal("0.75") if all(pooled) else Decimal("0.25") / (last * math.comb(last, sum(pooled)))
    return tail_follows(v / N, N, X, -min(share, Decimal("0.25")).ln())


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


def gain_follows(v: Decimal, n: int, gained: int, share: Decimal) -> bool:
    """P[Bin(n, v) >= gained] <= share: the event has probability at least v."""
    return v <= 0 or (v < 1 and tail_follows(1 - v, n, n - gained, -share.ln()))


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
