"""The certificates from sample compression: the paper's, and the same with its free improvements."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cop2l.bounds.binomial import log_binomial_above, tail_inverse
from cop2l.bounds.bound import Bound, bounded
from cop2l.bounds.checks import count, counts, log_confidence, one_per_task, points, task_of, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import up
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
    run = _Run.checked(n, compression, evicted, errors, iterations, task, tasks, log_delta, grid)
    if run.T == 1 and run.J:
        raise UserError("evicted must be 0 when tasks is 1: nothing leaves the buffer before the end.")
    prices = run.paper_prices()
    return run.certificate("kl", prices, run.chernoff(prices))


def kl_tight_certificate(
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
    marked: bool = False,
) -> Bound:
    """The paper's certificate with the improvements that its proof allows for nothing.

    With probability at least 1 - delta over the draw of all T samples, for every task t at once:

      risk_t(theta_T) <= sup{p : P[Bin(n', p) <= errors] >= e^-eps},   n' = n - |I| - |J|,
      eps = ln(T/delta) + ln C(n,|I|) + ln C(n-|I|,|J|) + |J| ln(T-t-1) - ln zeta(|I|) - ln zeta(|J|)
            - sum_{s=t..T} ln zeta(mu2_s).

    Arguments as in `kl_certificate`, except that an example evicted after task T is counted in compression, not in
    evicted. How it differs: what happened before task t is given with the other tasks' data, so it needs no message;
    T-t-1 times of eviction are left (where none is, for t >= T-1, an eviction costs no message); errors are 0/1, so
    the binomial tail replaces its Chernoff bound. On equal arguments it is never larger than `kl_certificate`.

    marked: marks that were drawn in advance decide who stays (threshold buffer), so the time of eviction is a function of
    the indices and of how many were picked at the task itself, which reconstruction finds. Then there is no J: every picked
    example is in I, evicted is 0, and nothing is paid for |J|.

    >>> sizes = {"n": 10_000, "compression": 300, "evicted": 20, "errors": 100}
    >>> bound = kl_tight_certificate(**sizes, iterations=[75] * 5, task=2, tasks=5, log_delta=math.log(0.05))
    >>> round(float(bound), 7)
    0.1835354
    """
    run = _Run.checked(n, compression, evicted, errors, iterations, task, tasks, log_delta, grid)
    if marked and run.J:
        raise UserError(
            "evicted must be 0 where marks decide who stays: count those examples in compression."
        )
    prices = run.prices()
    if not marked:
        prices |= {
            "|J| ln(T-t-1)": run.J * math.log(max(run.T - run.t - 1, 1)),
            "-ln zeta(|J|)": -log_zeta(run.J),
        }
    prices["messages"] = run.price_from(run.t)
    # The paper's bound is above this one, but the two are rounded apart: the smaller is still an upper bound.
    value = min(run.binomial(prices), run.chernoff(run.paper_prices()))
    return run.certificate("kl-tight", prices, value)


class _Run(NamedTuple):
    """The arguments of the two certificates, checked, in the paper's letters."""

    n: int
    I: int
    J: int
    errors: int
    weights: tuple[float, ...]
    """What each task's number of kept iterations leaves of delta, as a logarithm."""
    t: int
    T: int
    log_delta: float

    @classmethod
    def checked(
        cls,
        n: int,
        compression: int,
        evicted: int,
        errors: int,
        iterations: Sequence[int],
        task: int,
        tasks: int,
        log_delta: float,
        grid: int | None,
    ) -> "_Run":
        n = count("n", n)
        I = within("compression", compression, "n", n)
        J = within("evicted", evicted, "n - compression", n - I)
        errors = within("errors", errors, "n - compression - evicted", n - I - J)
        t, T = task_of(task, tasks)
        messages = one_per_task(counts("iterations", iterations), T)
        weights = _weights(messages, points(grid, *messages))
        return cls(n, I, J, errors, weights, t, T, log_confidence(log_delta))

    def prices(self) -> dict[str, float]:
        return {
            "ln(T/delta)": math.log(self.T) - self.log_delta,
            "ln C(n,|I|)": _choices(self.n, self.I),
            "-ln zeta(|I|)": -log_zeta(self.I),
            "ln C(n-|I|,|J|)": _choices(self.n - self.I, self.J),
        }

    def paper_prices(self) -> dict[str, float]:
        return self.prices() | {
            "|J| ln(T-1)": self.J * math.log(max(self.T - 1, 1)),
            "-ln zeta(|J|)": -log_zeta(self.J),
            "messages": self.price_from(1),
        }

    def price_from(self, task: int) -> float:
        """The messages of this task and of all later ones."""
        return 0.0 - math.fsum(self.weights[task - 1 :])

    @property
    def rest(self) -> int:
        return self.n - self.I - self.J

    def chernoff(self, prices: dict[str, float]) -> float:
        return ratio_inverse(self.errors, self.rest, _epsilon(prices)) if self.rest else 1.0

    def binomial(self, prices: dict[str, float]) -> float:
        return tail_inverse(self.errors, self.rest, -_epsilon(prices)) if self.rest else 1.0

    def certificate(self, kind: str, prices: dict[str, float], value: float) -> Bound:
        reason = ALL_WRONG if self.errors == self.rest else TOO_DEAR
        counted: dict[str, float] = {"complement errors": self.errors, "complement size": self.rest}
        terms = counted | prices | {"epsilon": _epsilon(prices)}
        return bounded(kind, value, terms, reason if self.rest else NOTHING_LEFT)


@lru_cache(maxsize=4096)
def _choices(n: int, k: int) -> float:
    """`log_binomial_above` for arguments known to be good; many small tasks ask for the same."""
    return log_binomial_above(n, k)


@lru_cache(maxsize=16)
def _weights(messages: tuple[int, ...], grid: int | None) -> tuple[float, ...]:
    """Once for all tasks of a certificate."""
    return tuple(log_weight(kept, grid) for kept in messages)


def _epsilon(prices: dict[str, float]) -> float:
    """Their sum, rounded up: every price is non-negative."""
    return up(math.fsum(prices.values()))
