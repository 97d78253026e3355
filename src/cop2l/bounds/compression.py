"""The certificates from sample compression: the paper's, and the same with its free improvements."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from cop2l.bounds.binomial import log_binomial, tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, counts, log_confidence, points, task_of, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import sum_above
from cop2l.bounds.sharing import log_weight, log_zeta
from cop2l.errors import UserError

NOTHING_LEFT = "Every example is in the compression set, so no example is left to count errors on."
ALL_WRONG = "Every example outside the compression set is misclassified."
TOO_DEAR = "Too few examples are left for the price of the compression set: the bound rounds to one."


def kl_certificate(
    n: int,
    compression: int,
    evicted: int,
    errors: int,
    iterations: Sequence[int],
    task: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """The paper's certificate for task t of T.

    With probability at least 1 - delta over the draw of all T samples, for every task t at once:

      risk_t(theta_T) <= kl^-1( errors/n' ; eps/n' ),   n' = n - |I| - |J|,
      eps = ln(T/delta) + ln C(n,|I|) + ln C(n-|I|,|J|) + |J| ln(T-1) - ln zeta(|I|) - ln zeta(|J|)
            - sum_{s=1..T} ln zeta(mu2_s).

    n: size of task t's sample; compression: |I|; evicted: |J|; errors: theta_T's errors on the n' others;
    iterations: mu2_1..mu2_T; task: t; tasks: T; grid: N, if every mu2_s is one of N numbers declared in advance: then 1/N
    in place of zeta(mu2_s). The printed zeta does not sum to one; ours does.

    >>> sizes = {"n": 10_000, "compression": 300, "evicted": 20, "errors": 100}
    >>> bound = kl_certificate(**sizes, iterations=[75] * 5, task=2, tasks=5, log_delta=math.log(0.05))
    >>> round(float(bound), 7)
    0.1858721
    """
    size, T = count("n", n), count("tasks", tasks, least=1)
    I = within("compression", compression, "n", size)
    J = within("evicted", evicted, "n - compression", size - I)
    if T == 1 and J:
        raise UserError("evicted must be 0 when tasks is 1: nothing leaves the buffer before the end.")
    task_of(task, tasks)
    prices = {
        "ln(T/delta)": math.log(T) - log_confidence(log_delta),
        "ln C(n,|I|)": log_binomial(size, I),
        "-ln zeta(|I|)": -log_zeta(I),
        "ln C(n-|I|,|J|)": log_binomial(size - I, J),
        "|J| ln(T-1)": J * math.log(max(T - 1, 1)),
        "-ln zeta(|J|)": -log_zeta(J),
        "messages": _messages(iterations, T, grid, first=1),
    }
    return _bound("kl", ratio_inverse, errors, size - I - J, prices)


def kl_tight_certificate(
    n: int,
    compression: int,
    errors: int,
    iterations: Sequence[int],
    task: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """The paper's certificate with the improvements that its proof allows for nothing.

    With probability at least 1 - delta over the draw of all T samples, for every task t at once:

      risk_t(theta_T) <= sup{p : P[Bin(n', p) <= errors] >= e^-eps},   n' = n - |I u J|,
      eps = ln(T/delta) + ln C(n,|I u J|) - ln zeta(|I u J|) - sum_{s=t..T} ln zeta(mu2_s).

    Arguments as in `kl_certificate`, except that compression is |I u J|. How it differs: who is in the buffer, and when, is a
    function of row numbers and of what was picked at the task itself, so there is no second set and no time of eviction to
    pay for (theorem `one set` of docs/theory.md); what happened before task t is given with the other tasks' data, so
    it needs no message; errors are 0/1, so the binomial tail replaces its Chernoff bound. Of the same run it is never
    larger than `kl_certificate`.

    >>> sizes = {"n": 10_000, "compression": 320, "errors": 100}
    >>> bound = kl_tight_certificate(**sizes, iterations=[75] * 5, task=2, tasks=5, log_delta=math.log(0.05))
    >>> round(float(bound), 7)
    0.1751925
    """
    size, (t, T) = count("n", n), task_of(task, tasks)
    I = within("compression", compression, "n", size)
    prices = {
        "ln(T/delta)": math.log(T) - log_confidence(log_delta),
        "ln C(n,|I|)": log_binomial(size, I),
        "-ln zeta(|I|)": -log_zeta(I),
        "messages": _messages(iterations, T, grid, first=t),
    }
    return _bound("kl-tight", lambda k, rest, eps: tail_inverse(k, rest, -eps), errors, size - I, prices)


def _bound(
    kind: str, inverse: Callable[[int, int, float], float], errors: int, rest: int, prices: dict[str, float]
) -> Bound:
    """The bound from the errors on the examples outside the compression set, at the sum of the prices, rounded up."""
    wrong = within("errors", errors, "n - compression - evicted", rest)
    epsilon = sum_above(math.fsum(prices.values()))
    terms = {"complement errors": wrong, "complement size": rest, **prices, "epsilon": epsilon}
    if not rest:
        return Bound(1.0, kind, NOTHING_LEFT, terms)
    return make_bound(kind, inverse(wrong, rest, epsilon), terms, ALL_WRONG if wrong == rest else TOO_DEAR)


def _messages(iterations: Sequence[int], tasks: int, grid: int | None, first: int) -> float:
    """What the numbers of kept iterations cost from task `first` on; many tasks ask for the same sums."""
    kept = counts("iterations", iterations)
    if len(kept) != tasks:
        raise UserError(f"iterations must have one number for each of tasks = {tasks}, not {len(kept)}.")
    return 0.0 - math.fsum(_weights(kept, points(grid, *kept))[first - 1 :])


@lru_cache(maxsize=16)
def _weights(messages: tuple[int, ...], grid: int | None) -> tuple[float, ...]:
    return tuple(log_weight(kept, grid) for kept in messages)
