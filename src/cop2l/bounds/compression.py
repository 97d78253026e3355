"""The certificates from sample compression: the paper's ("kl") and the one with its free improvements ("kl-tight")."""

import math
from collections.abc import Sequence

from cop2l.bounds.binomial import log_binomial_above, tail_inverse
from cop2l.bounds.bound import Bound, made
from cop2l.bounds.checks import count, counts, log_confidence, task_of, within
from cop2l.bounds.kl import ratio_inverse
from cop2l.bounds.outer import up
from cop2l.bounds.sharing import log_zeta
from cop2l.errors import UserError

NOTHING_LEFT = "Every example is in the compression set, so no example is left to count errors on."
ALL_WRONG = "Every example of the complement is misclassified."
TOO_DEAR = "The complement is too small for the price of the compression set: the bound rounds to one."


def kl_certificate(
    n: int,
    compression: int,
    evicted: int,
    errors: int,
    iterations: Sequence[int],
    task: int,
    tasks: int,
    log_delta: float,
) -> Bound:
    """The paper's certificate for task t of T.

    With probability at least 1 - delta over the draw of all T samples, for every task t at once:

      risk_t(theta_T) <= kl^-1( errors/n' ; eps/n' ),   n' = n - |I| - |J|,
      eps = ln(T/delta) + ln C(n,|I|) + ln C(n-|I|,|J|) + |J| ln(T-1) - ln zeta(|I|) - ln zeta(|J|)
            - sum_{s=1..T} ln zeta(mu2_s).

    n: size of task t's sample; compression: |I|; evicted: |J|; errors: theta_T's errors on the n' others;
    iterations: mu2_1..mu2_T; task: t; tasks: T. The zeta of the printed proof does not sum to one: see `log_zeta`.

    >>> float(kl_certificate(10_000, 300, 20, 100, [75, 80, 60, 90, 70], task=2, tasks=5, log_delta=math.log(0.05)))
    0.23...
    """
    whole, a, b, wrong, messages, t, T, log_delta = _checked(
        n, compression, evicted, errors, iterations, task, tasks, log_delta
    )
    if T == 1 and b:
        raise UserError("evicted must be 0 when tasks is 1: nothing leaves the buffer after the only task.")
    terms = _terms(whole, a, b, wrong, T, log_delta)
    terms["|J| ln(T-1)"] = b * math.log(T - 1) if b else 0.0
    terms["-ln zeta(|J|)"] = -log_zeta(b)
    terms["messages"] = -sum(map(log_zeta, messages))
    return _certificate("kl", terms, wrong)


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
    priority: bool = False,
) -> Bound:
    """The paper's certificate with the improvements that its proof gives for nothing.

    With probability at least 1 - delta over the draw of all T samples, for every task t at once:

      risk_t(theta_T) <= sup{p : P[Bin(n', p) <= errors] >= e^-eps},   n' = n - |I| - |J|,
      eps = ln(T/delta) + ln C(n,|I|) + ln C(n-|I|,|J|) + |J| ln(T-t-1) - ln zeta(|I|) - ln zeta(|J|)
            - sum_{s=t..T} ln zeta(mu2_s).

    Against `kl_certificate`: what happened before task t is given with the other tasks' data, so its messages are
    not paid; an example of task t that is evicted after task T stays in I (the caller counts it there), so only
    T-t-1 times of eviction are left; and the errors are 0/1, so the binomial tail replaces its Chernoff bound.
    On equal arguments it is never larger. Where no eviction can count (t >= T-1) a message costs nothing.

    priority: the time of eviction is a function of the indices (priority or threshold buffer), so there is no J:
    all picked examples are in I, evicted is 0, and zeta(|J|) is not paid.

    >>> float(kl_tight_certificate(10_000, 300, 20, 100, [75, 80, 60, 90, 70], 2, 5, math.log(0.05)))
    0.22...
    """
    whole, a, b, wrong, messages, t, T, log_delta = _checked(
        n, compression, evicted, errors, iterations, task, tasks, log_delta
    )
    if priority and b:
        raise UserError("evicted must be 0 with a priority buffer: count those examples in compression.")
    terms = _terms(whole, a, b, wrong, T, log_delta)
    if not priority:
        terms["|J| ln(T-t-1)"] = b * math.log(max(T - t - 1, 1))
        terms["-ln zeta(|J|)"] = -log_zeta(b)
    terms["messages"] = -sum(map(log_zeta, messages[t - 1 :]))
    return _certificate("kl-tight", terms, wrong)


def single_task_kl_bound(n: int, compression: int, errors: int, log_delta: float) -> float:
    """The bound that mP2L's early stopping minimises over its iterations.

      kl^-1( errors/n' ; [ln C(n,m) + ln(2 sqrt(n')) - ln zeta(m) - ln delta] / n' ),   n' = n - m, m = |C n S|.

    n: the current task's examples; compression: m; errors: those on the n' others. It is 1 where nothing is left.

    >>> single_task_kl_bound(10_000, 200, 100, math.log(0.05))
    0.16...
    """
    n = count("n", n)
    m = within("compression", compression, "n", n)
    rest = n - m
    wrong = within("errors", errors, "n - compression", rest)
    log_delta = log_confidence(log_delta)
    if rest == 0:
        return 1.0
    eps = log_binomial_above(n, m) + math.log(2.0 * math.sqrt(rest)) - log_zeta(m) - log_delta
    return ratio_inverse(wrong, rest, up(eps))


def _checked(
    n: int,
    compression: int,
    evicted: int,
    errors: int,
    iterations: Sequence[int],
    task: int,
    tasks: int,
    log_delta: float,
) -> tuple[int, int, int, int, tuple[int, ...], int, int, float]:
    whole = count("n", n)
    a = within("compression", compression, "n", whole)
    b = within("evicted", evicted, "n - compression", whole - a)
    wrong = within("errors", errors, "n - compression - evicted", whole - a - b)
    t, T = task_of(task, tasks)
    messages = counts("iterations", iterations)
    if len(messages) != T:
        raise UserError(f"iterations must have one number for each of the tasks = {T}, not {len(messages)}.")
    return whole, a, b, wrong, messages, t, T, log_confidence(log_delta)


def _terms(n: int, a: int, b: int, errors: int, tasks: int, log_delta: float) -> dict[str, float]:
    return {
        "errors": errors,
        "complement": n - a - b,
        "ln(T/delta)": math.log(tasks) - log_delta,
        "ln C(n,|I|)": log_binomial_above(n, a),
        "ln C(n-|I|,|J|)": log_binomial_above(n - a, b),
        "-ln zeta(|I|)": -log_zeta(a),
    }


def _certificate(kind: str, terms: dict[str, float], errors: int) -> Bound:
    """All terms but the two counts are non-negative, so rounding their sum up is a relative matter."""
    rest = int(terms["complement"])
    eps = terms["epsilon"] = up(sum(list(terms.values())[2:]))
    if rest == 0:
        return Bound(1.0, kind, NOTHING_LEFT, terms)
    value = ratio_inverse(errors, rest, eps) if kind == "kl" else tail_inverse(errors, rest, -eps)
    return made(kind, value, terms, ALL_WRONG if errors == rest else TOO_DEAR)
