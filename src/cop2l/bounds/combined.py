"""Where nothing was picked a certified sample is a hold-out; where something was, preference pays for it."""

import math

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, points, within
from cop2l.bounds.outer import sum_below
from cop2l.bounds.preference import NO_EXAMPLE, preferent
from cop2l.bounds.sharing import log_zeta, one_of, per_task
from cop2l.errors import UserError

UNPICKED = 0.75
"""The share of delta for K = 0; the rest is for all other K together."""
VACUOUS = "There are too few examples, or too many errors, for this confidence: the bound rounds to one."


def combined_certificate(
    n: int,
    picked: int,
    errors_not_picked: int,
    iterations: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """Our certificate for one task of T when no example of a past task can be picked (buffer count-only).

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      if K = 0:  risk_t(theta_T) <= sup{p : P[Bin(n, p) <= |M|] >= (3/4) delta/T},
      if K > 0:  risk_t(theta_T) <= eps(|G| + |M|, n, (1/4) (delta/T) zeta(K)),   eps = `preference_epsilon`.

    Given the other tasks' samples and all prior parts, the parameters that result when K_t = 0 do not depend on S_t at
    all: nothing of it is picked at task t, nothing of it can be picked later, and early stopping at s > t reads only
    S_s. So they meet S_t as a hold-out; the union over K = 0, 1, 2, ... costs 3/4 + (1/4) sum_{K>0} zeta(K) < 1.

    n: task t's certified sample; picked: |G|; errors_not_picked: |M|, theta_T's errors outside G; iterations: K; grid: N, if K
    is one of N numbers declared in advance, 0 among them: then 1/(N - 1) in place of zeta(K), and the shares sum to one; if 0 is
    the only one (N = 1), 1 in place of 3/4. Not in the paper.

    >>> round(float(combined_certificate(5000, 0, 150, 0, tasks=5, log_delta=math.log(0.05))), 7)
    0.0363849
    """
    whole = count("n", n)
    g = within("picked", picked, "n", whole)
    m = within("errors_not_picked", errors_not_picked, "n - picked", whole - g)
    kept = count("iterations", iterations)
    T = count("tasks", tasks, least=1)
    confidence = log_confidence(log_delta)
    N = points(grid, kept)
    if kept:
        rest = sum_below(confidence + math.log1p(-UNPICKED))
        weight = log_zeta(kept) if N is None else one_of(N - 1)
        return preferent("combined", whole, g + m, weight, T, rest, {"picked": g, "errors_not_picked": m})
    if g:
        raise UserError(f"picked must be 0 where iterations = 0, not {g}.")
    share = per_task(confidence if N == 1 else sum_below(confidence + math.log(UNPICKED)), T)
    name = "ln(T/delta)" if N == 1 else "ln(4T/(3 delta))"
    terms: dict[str, float] = {"errors": m, "examples": whole, name: -share, "epsilon": -share}
    if not whole:
        return Bound(1.0, "combined", NO_EXAMPLE, terms)
    return make_bound("combined", tail_inverse(m, whole, share), terms, VACUOUS)
