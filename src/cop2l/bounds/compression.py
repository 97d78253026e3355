"""The paper's certificate, from sample compression."""

import math
from collections.abc import Sequence
from functools import lru_cache

from cop2l.bounds.binomial import log_binomial
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, counts, log_confidence, points, task_of, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import sum_above
from cop2l.bounds.sharing import log_weight, log_zeta
from cop2l.errors import UserError


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
            - sum_{s=1..T} ln w(mu2_s),   w = `log_weight`.

    n: the size of the sample of task t. compression: |I|; I holds its examples in the kept C of some task, without those of J.
    evicted: |J|; J holds those that were evicted from the buffer. errors: the number of the n' other examples that theta_T
    misclassifies. iterations: mu2_1..mu2_T, the numbers of kept iterations. task: t; tasks: T; log_delta: ln delta. grid: N, if
    every mu2_s is one of N numbers declared in advance. The zeta printed in the paper's proof does not sum to one; ours does.

    >>> sizes = {"n": 10_000, "compression": 300, "evicted": 20, "errors": 100}
    >>> bound = kl_certificate(**sizes, iterations=[75] * 5, task=2, tasks=5, log_delta=math.log(0.05))
    >>> round(float(bound), 7)
    0.1858721
    """
    n, T = count("n", n), count("tasks", tasks, least=1)
    I = within("compression", compression, "n", n)
    J = within("evicted", evicted, "n - compression", n - I)
    if T == 1 and J:
        raise UserError("evicted must be 0 when tasks is 1: nothing leaves the buffer before the end.")
    task_of(task, tasks)
    messages = counts("iterations", iterations)
    if len(messages) != T:
        raise UserError(f"iterations must have one number for each of tasks = {T}, not {len(messages)}.")
    errors = within("errors", errors, "n - compression - evicted", n - I - J)
    prices = {
        "ln(T/delta)": math.log(T) - log_confidence(log_delta),
        "ln C(n,|I|)": log_binomial(n, I),
        "-ln zeta(|I|)": -log_zeta(I),
        "ln C(n-|I|,|J|)": log_binomial(n - I, J),
        "|J| ln(T-1)": J * math.log(max(T - 1, 1)),
        "-ln zeta(|J|)": -log_zeta(J),
        "messages": 0.0 - math.fsum(_log_weights(messages, points(grid, *messages))),
    }
    epsilon = sum_above(math.fsum(prices.values()))
    terms = {"complement errors": errors, "complement size": n - I - J, **prices, "epsilon": epsilon}
    return make_bound("kl", ratio_inverse(errors, n - I - J, epsilon), errors, n - I - J, terms)


@lru_cache(maxsize=16)
def _log_weights(messages: tuple[int, ...], grid: int | None) -> tuple[float, ...]:
    """The logarithm of w(mu2_s) for each message; cached, because a certificate of T tasks asks T times."""
    return tuple(log_weight(mu2, grid) for mu2 in messages)
