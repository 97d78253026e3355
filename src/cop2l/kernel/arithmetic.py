"""Decides whether a stated bound follows from its counts, with the formulas of docs/theory.md at 60 digits.

Every bound of the theory is the root of an increasing function, so a stated value is large enough if that function is not
negative at it: no root is searched. A stated value is a float and stands for exactly that number.
"""

from collections.abc import Mapping
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal, localcontext
from typing import Any

from cop2l.kernel.options import Options

Counts = Mapping[str, Any]
SIXTY_DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MARGIN = Decimal("1e-40")
"""Far above the rounding error of a million terms at 60 digits, and far below the last digit of a float."""
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628621")


def zeta(k: int) -> Decimal:
    """(6/pi^2) (k + 1)^-2: the weight of a number k that is chosen after seeing the data."""
    return 6 / (PI * (k + 1)) ** 2


def weight_of_iterations(K: int, options: Options) -> Decimal:
    """The part of delta for this K: zeta(K), or 1/N on a grid of N numbers."""
    return Decimal(1) / len(options.grid_points) if options.grid_points else zeta(K)


def share_of_family(family: str, options: Options, last: int) -> Decimal:
    """The part of delta for a family of statements after task `last`; over all statements that are ever issued it sums to delta.

    siblings: 1/N of delta for each of N commitments. anytime: 6/(pi last)^2 of that for each time. The rest is divided between
    the families that cost something, as declared.
    """
    share = Decimal(options.delta) / options.siblings * (zeta(last - 1) if options.anytime else 1)
    if options.shares:
        return share * options.shares[options.claim.index(family)] / sum(options.shares)
    return share / options.paid_families


def share_of_task(family: str, kind: str, task: int, content: Counts) -> Decimal:
    """The part of delta for one statement about a task: equal for all tasks, then for all statements about the task."""
    options, records = content["options"], content["records"]
    share, record = share_of_family(family, options, len(records)) / len(records), records[task - 1]
    if family in ("classes", "groups"):  # a partition that the recorded data gives: its empty parts cost nothing
        return share / max(1, sum(1 for part in record["parts"] if part["family"] == family and part["n"]))
    if family == "forgetting" and kind == "holdout":
        return share / 2  # one half for lost examples, the other for gained ones
    return share


def prepared(content: Counts) -> Counts:
    """The content with what many statements need: the stated values of tasks, and the sum of the log weights of all tasks."""
    values: dict[tuple[str, Any], dict[int, Decimal]] = {}
    for s in content["statements"]:
        values.setdefault((s["family"], s["subject"]), {})[s["task"]] = Decimal(s["value"])
    options, iterations = content["options"], [record["iterations"] for record in content["records"]]
    with localcontext(SIXTY_DIGITS):
        weights = {K: weight_of_iterations(K, options).ln() for K in set(iterations)}
        log_weights = sum((weights[K] for K in iterations), Decimal(0))
    return {
        **content,
        "values": values,
        "log_weights": log_weights,
        "on_grid": set(iterations) <= set(options.grid_points or iterations),
    }


def bound_follows(statement: Counts, content: Counts) -> bool:
    """Whether a statement of a certificate follows from its counts; many statements are quicker if the content is `prepared`.

    With probability at least 1 - delta over the draw of all samples and marks, all statements for which this is true hold at
    once. They are the theorems `kl`, `preference`, `buffer` and `holdout` of docs/theory.md for tasks,
    the same theorems for a part of the sample (classes, groups) or another event (forgetting), and `average`.
    """
    content = content if "values" in content else prepared(content)
    records = content["records"]
    family, task, subject, kind = (statement[name] for name in ("family", "task", "subject", "kind"))
    if not content["on_grid"]:
        return False  # a number outside the grid has no share of delta
    if statement["value"] == 1:
        return True
    with localcontext(SIXTY_DIGITS):
        v = Decimal(statement["value"])
        if task is None:
            return average_follows(v, family, content)
        share, record = share_of_task(family, kind, task, content), records[task - 1]
        if subject != "net":
            return event_follows(v, kind, counts_of(record, family, subject), content, share)
        lost = content["values"][family, "lost"][task]
        return v >= lost or gain_follows(lost - v, *bound_counts(kind, counts_of(record, family, "gained")), share)


def least_bound(statement: Counts, content: Counts) -> float:
    """The least value, up to 1e-5 and not below the stated one, that follows from the counts of this content."""
    low, high = statement["value"], 1.0
    if bound_follows(statement, content):
        return float(low)
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if bound_follows({**statement, "value": middle}, content) else (middle, high)
    return high


def least_bounds(content: Counts) -> list[dict[str, Any]]:
    """The statements of this content with the least values that follow."""
    statements = [dict(statement) for statement in content["statements"]]
    for uses_others in (False, True):
        prepared_content = prepared({**content, "statements": statements})
        for bound in statements:
            if uses_others == (bound["task"] is None or bound["subject"] == "net"):
                bound["value"] = least_bound(bound, prepared_content)
    return statements


def upper_tail(bound: float, n: int, errors: int) -> Decimal:
    """P[Bin(n, bound) >= errors]: the largest probability of this many errors if the error rate is at most the bound."""
    with localcontext(SIXTY_DIGITS):
        v = Decimal(bound)
        return Decimal(1) if errors <= n * v or v >= 1 else lower_tail(1 - v, n, n - errors)


def counts_of(record: Counts, family: str, subject: Any) -> Counts:
    """The counts behind a statement: those of the record, or of one of its parts."""
    if family in ("tasks", "average"):
        return record
    return next(part for part in record["parts"] if (part["family"], part["subject"]) == (family, subject))


def kind_of(counted: Counts, options: Options) -> str:
    """`buffer` if the record has no errors, because the task's data was not given to `certify`; otherwise the claimed kind."""
    return options.kind if counted["errors"] is not None else "buffer"


def bound_counts(kind: str, counted: Counts) -> tuple[int, int]:
    """The size of the sample, and of the set that it is compressed to: picked examples and those of the event."""
    if kind == "buffer":
        return counted["selected"], counted["compressed"]
    return counted["n"], counted["picked"] + counted["errors_not_picked"]


def event_follows(v: Decimal, kind: str, counted: Counts, content: Counts, share: Decimal) -> bool:
    """Whether "the event has probability <= v" follows at this share; the event is an error, or a lost answer."""
    options = content["options"]
    if kind == "kl":
        return compression_follows(v, counted, content, share)
    n, size = bound_counts(kind, counted)
    if kind == "holdout":
        return tail_follows(v, n, size, -share.ln())
    return preference_follows(v, n, size, share * weight_of_iterations(counted["iterations"], options))


def compression_follows(v: Decimal, counted: Counts, content: Counts, share: Decimal) -> bool:
    """The paper's kind `kl`, which counts errors outside the compression set I u J."""
    n, I, J, records = counted["n"], counted["compression"], counted["evicted"], content["records"]
    eps = ln_choose(n, I) + ln_choose(n - I, J) - zeta(I).ln() - zeta(J).ln() - content["log_weights"] - share.ln()
    return kl_follows(v, n - I - J, counted["errors"], eps + J * Decimal(max(len(records) - 1, 1)).ln())


def average_follows(v: Decimal, family: str, content: Counts) -> bool:
    """Whether the mean over tasks, weighted by their examples, is at most v.

    Withheld examples are pooled into one sample of N examples with X errors, whose bound needs a part of delta of at most 1/4,
    and is 1 if X >= N - 1. In any other kind every task enters with its stated bound.
    """
    options, records = content["options"], content["records"]
    share, subject = share_of_family(family, options, len(records)), None
    bounds = content["values"].get(("tasks", None), {})
    if family == "forgetting":  # one of T equal parts is for the mean, the others are for the tasks before the last
        share, bounds, subject = share / len(records), content["values"].get((family, "lost"), {}), "lost"
        records = records[:-1]
    counted = {record["task"]: counts_of(record, family, subject) for record in records}
    N = sum(counts["n"] for counts in counted.values())
    if options.kind != "holdout":
        # equal bounds must cancel before anything is rounded
        slack = sum(((v - bounds.get(t, 1)) * counts["n"] for t, counts in counted.items()), Decimal(0))
        return bool(N) and slack >= 0
    X = sum(bound_counts(options.kind, counts)[1] for counts in counted.values())
    return X < N - 1 and tail_follows(v, N, X, -min(share, Decimal("0.25")).ln())


def ln_choose(n: int, k: int) -> Decimal:
    product = Decimal(1)
    for i in range(1, min(k, n - k) + 1):
        product *= Decimal(n - i + 1) / i
    return product.ln()


def kl_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """Errors/n <= v < 1 and n kl(errors/n, v) >= eps: v is not below the kl inverse."""
    if n == 0 or errors > n * v:
        return False
    q = Decimal(errors) / n
    left = q * (q / v).ln() if errors else Decimal(0)
    return n * (left + (1 - q) * ((1 - q) / (1 - v)).ln()) >= eps + abs(eps) * MARGIN


def tail_follows(v: Decimal, n: int, errors: int, eps: Decimal) -> bool:
    """P[Bin(n, v) <= errors] <= e^-eps, v < 1: v is not below the inverse of the binomial tail."""
    return v > 0 and errors < n and lower_tail(v, n, errors) * (1 + MARGIN) <= (-eps).exp()


def lower_tail(v: Decimal, n: int, k: int) -> Decimal:
    """P[Bin(n, v) <= k], k < n."""
    if v == 1:
        return Decimal(0)
    term = total = (1 - v) ** n
    ratio = v / (1 - v)
    for i in range(k):  # C(n,i+1)/C(n,i) = (n-i)/(i+1)
        term *= ratio * (n - i) / (i + 1)
        total += term
    return total


def gain_follows(v: Decimal, n: int, gained: int, share: Decimal) -> bool:
    """P[Bin(n, v) >= gained] <= share: the event has probability at least v."""
    return v <= 0 or (v < 1 and tail_follows(1 - v, n, n - gained, -share.ln()))


def preference_follows(v: Decimal, n: int, size: int, delta: Decimal) -> bool:
    """(delta/n) sum_{m=k..n-1} C(m,k)/C(n,k) (1-v)^-(n-m) >= 1, k = size < n, v < 1: v is not below eps(k, n, delta)."""
    term, total = Decimal(1), Decimal(0)
    for m in range(n - 1, size - 1, -1):  # C(m,k)/C(m+1,k) = (m+1-k)/(m+1)
        term *= (m + 1 - size) / ((m + 1) * (1 - v))
        total += term
    return size < n and delta * total >= n * (1 + MARGIN)


def percent(bound: float) -> str:
    """A bound in percent, rounded up."""
    with localcontext(SIXTY_DIGITS):
        return f"{(Decimal(bound) * 100).quantize(Decimal('0.01'), ROUND_CEILING)} %"
