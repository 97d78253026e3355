"""Does a stated bound follow from its integers? Signs at 60 digits, straight from docs/theory.md; no root is looked for.

Every bound of the theory is the root of an increasing function, so a stated value is large enough where that function is not
negative. A stated value is a float, read as the exact number that it is.
"""

import math
from collections.abc import Mapping
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal, localcontext
from typing import Any

from cop2l.kernel.options import Options

Counts = Mapping[str, Any]
EXACT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MARGIN = Decimal("1e-40")
"""Far above the error of 60 digits over a million terms, and far below the last digit of a float."""
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628621")


def zeta(k: int) -> Decimal:
    """(6/pi^2) (k + 1)^-2: the weight of a number that is chosen after seeing the data."""
    return 6 / (PI * (k + 1)) ** 2


def weight_of_iterations(K: int, options: Options, *, split: bool = False) -> Decimal:
    """The share of delta that the choice of K leaves: zeta(K), or 1/N on a grid of N numbers.

    split: of 1/4 of delta, which the numbers beside 0 have; what is left is for K = 0, the hold-out case.
    """
    points = options.grid_points
    return (Decimal(1) / (len(points) - split) if points else zeta(K)) / (4 if split else 1)


def share_of_family(family: str, options: Options, last: int) -> Decimal:
    """What a family of statements gets of delta after task `last`; all statements that are ever issued sum to delta.

    anytime: 6/(pi last)^2 of delta for each time; then between the families that cost something, as declared.
    """
    share = Decimal(options.delta) * (zeta(last - 1) if options.anytime else 1)
    if options.shares:
        return share * options.shares[options.claim.index(family)] / sum(options.shares)
    return share / options.paid_families


def follows(stated: Counts, content: Counts) -> bool:
    """Whether a statement of a certificate follows from its integers.

    With probability at least 1 - delta over the draw of all samples and marks, every statement for which this is true holds,
    all of them at once: theorems `kl`, `kl-tight`, `preference`, `combined`, `buffer` and `holdout` of docs/theory.md for
    tasks; the same on a part of the sample (classes, groups) or of another event (forgetting); `average` for what is pooled.
    """
    records, options, family, task = content["records"], content["options"], stated["family"], stated["task"]
    if options.grid_points and any(record["iterations"] not in options.grid_points for record in records):
        return False  # a number outside the grid has no share of delta
    if stated["value"] == 1:
        return True
    with localcontext(EXACT):
        v, share = Decimal(stated["value"]), share_of_family(family, options, len(records))
        if task is None:
            return average_follows(v, family, content, share)
        record, share = records[task - 1], share / len(records)
        counted = counts_of(record, family, stated["subject"])
        if family in ("classes", "groups"):  # a partition, known from what is recorded: its empty parts cost nothing
            share /= max(1, sum(part["n"] > 0 for part in record["parts"] if part["family"] == family))
        if family == "forgetting" and held_out(stated["kind"], counted, options):
            share /= 2  # one half for what was lost, the other for what was gained
        if stated["subject"] == "net":
            lost = values_of(content, family, "lost")[task]
            share *= held_out(stated["kind"], counted, options)
            return v >= lost or gain_follows(lost - v, *sizes(stated["kind"], counts_of(record, family, "gained")), share)
        return event_follows(v, stated["kind"], counted, task, content, share)


def counts_of(record: Counts, family: str, subject: Any) -> Counts:
    """The integers behind a statement: the record's own, or those of one of its parts."""
    if family in ("tasks", "average"):
        return record
    name = "lost" if subject == "net" else subject
    return next(part for part in record["parts"] if (part["family"], part["subject"]) == (family, name))


def values_of(content: Counts, family: str, subject: Any) -> dict[int, Decimal]:
    """What is stated of each task."""
    return {s["task"]: Decimal(s["value"]) for s in content["statements"] if (s["family"], s["subject"]) == (family, subject)}


def kind_of(counted: Counts, options: Options) -> str:
    """The kind of what is stated of a task: `buffer` if its data was gone, so that not all errors could be counted."""
    return options.kind if counted["errors"] is not None else "buffer"


def held_out(kind: str, counted: Counts, options: Options) -> Decimal:
    """How much of a statement's share is left if theta_T does not depend on the sample at all; 0 if it may.

    All of it if 0 is the only number of iterations that was declared: there is no other to pay for.
    """
    unpicked = options.buffer == "witness" and kind in ("combined", "buffer") and counted["iterations"] == 0
    return (kind == "holdout" or unpicked) * Decimal(1 if kind == "holdout" or options.grid_points == (0,) else "0.75")


def sizes(kind: str, counted: Counts) -> tuple[int, int]:
    """The size of the sample, and of what it is compressed to: picked examples and those of the event."""
    if kind == "buffer":
        return counted["selected"], counted["compressed"]
    return counted["n"], counted["picked"] + counted["missed"]


def pools(counted: Counts, options: Options) -> bool:
    """Whether the examples of a task can be pooled with others: all of a sample that theta_T does not depend on."""
    return options.kind != "buffer" and counted["errors"] is not None and held_out(options.kind, counted, options) > 0


def event_follows(v: Decimal, kind: str, counted: Counts, t: int, content: Counts, share: Decimal) -> bool:
    """Whether "the event has probability <= v" follows at this share; the event is an error, or an answer that was lost."""
    options, T, tight = content["options"], len(content["records"]), kind == "kl-tight"
    if tight or kind == "kl":
        late = counted["evicted_last"] if tight else 0  # left after T: as if it had stayed
        i, j, times = counted["compression"] + late, counted["evicted"] - late, T - t - 1 if tight else T - 1
        eps = -share.ln() + ln_choose(counted["n"], i) + ln_choose(counted["n"] - i, j) - zeta(i).ln()
        if not (tight and options.marked):  # marks say when an example leaves
            eps += j * Decimal(max(times, 1)).ln() - zeta(j).ln()
        paid = content["records"][t - 1 if tight else 0 :]
        eps -= sum(weight_of_iterations(record["iterations"], options).ln() for record in paid)
        return (tail_follows if tight else kl_follows)(v, counted["n"] - i - j, counted["errors"], eps)
    if held := held_out(kind, counted, options):
        return tail_follows(v, *sizes(kind, counted), -(share * held).ln())
    split = options.buffer == "witness" and kind in ("combined", "buffer")
    return preference_follows(v, *sizes(kind, counted), share * weight_of_iterations(counted["iterations"], options, split=split))


def average_follows(v: Decimal, family: str, content: Counts, share: Decimal) -> bool:
    """Whether the mean over tasks, weighted by their examples, is at most v: pooled over those in the hold-out case.

    The others enter with their own stated bounds. pi(A), the weight of the set A of pooled tasks, is fixed in advance: 3/4 for
    all of m tasks, (1/4)/(m C(m, |A|)) for another set. The theorem needs share * pi(A) <= 1/4, and gives 1 from N - 1 errors on.
    """
    options, records, forgetting = content["options"], content["records"], family == "forgetting"
    counted = [counts_of(record, family, "lost") for record in (records[:-1] if forgetting else records)]
    own = values_of(content, *((family, "lost") if forgetting else ("tasks", None)))
    pooled = {t: sizes(options.kind, one) for t, one in enumerate(counted, 1) if pools(one, options)}
    N, X, m = sum(n for n, _ in pooled.values()), sum(size for _, size in pooled.values()), len(counted)
    v = sum((v - (0 if t in pooled else own.get(t, 1))) * one["n"] for t, one in enumerate(counted, 1))
    if X >= N - 1 or v >= N:
        return v >= N and any(one["n"] for one in counted)
    if options.kind != "holdout":
        share *= Decimal("0.75") if len(pooled) == m else Decimal("0.25") / (m * math.comb(m, len(pooled)))
    return tail_follows(v / N, N, X, -min(share / len(records) if forgetting else share, Decimal("0.25")).ln())


def ln_choose(n: int, k: int) -> Decimal:
    """Ln C(n, k)."""
    product = Decimal(1)
    for i in range(1, min(k, n - k) + 1):
        product *= Decimal(n - i + 1) / i
    return product.ln()


def kl_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """Errors/n <= v < 1 and n kl(errors/n, v) >= eps: v is beyond the kl inverse."""
    if n == 0 or errors > n * v:
        return False
    q = Decimal(errors) / n
    left = q * (q / v).ln() if errors else Decimal(0)
    return n * (left + (1 - q) * ((1 - q) / (1 - v)).ln()) >= eps + abs(eps) * MARGIN


def tail_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """P[Bin(n, v) <= errors] <= e^-eps, v < 1: it is beyond the inverse of the binomial tail."""
    if v <= 0 or errors >= n:
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
    """(delta/n) sum_{m=k..n-1} C(m,k)/C(n,k) (1-v)^-(n-m) >= 1, k = size < n, v < 1: it is beyond eps(k, n, delta)."""
    term, total = Decimal(1), Decimal(0)
    for m in range(n - 1, size - 1, -1):  # C(m,k)/C(m+1,k) = (m+1-k)/(m+1)
        term *= (m + 1 - size) / ((m + 1) * (1 - v))
        total += term
    return size < n and delta * total >= n * (1 + MARGIN)


def percent(bound: float, digits: int = 2) -> str:
    """A bound as people read it, never rounded down.

    >>> percent(0.03142), percent(0.031420000001), percent(1.0)
    ('3.15 %', '3.15 %', '100.00 %')
    >>> percent(0.03125)
    '3.13 %'
    """
    with localcontext(EXACT):
        return f"{(Decimal(bound) * 100).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)} %"
