"""The combined certificate: a hold-out bound if nothing of the task was picked, else a preference bound."""

import math

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, points, within
from cop2l.bounds.outer import sum_below
from cop2l.bounds.preference import preferent
from cop2l.bounds.sharing import log_zeta, one_of, per_task
from cop2l.errors import UserError

UNPICKED = 0.75
"""The share of delta for K = 0; all other K together have the other quarter."""


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

      if K = 0:  risk_t(theta_T) <= bin^-1(|M|, n, (3/4) delta/T),   bin^-1 as in `binomial_tail_inverse`,
      if K > 0:  risk_t(theta_T) <= eps(|G| + |M|, n, (1/4) (delta/T) w'(K)),   eps = `preference_epsilon`, w'(K) = zeta(K).

    n: the size of the certified sample S_t of task t. picked: |G|; G holds its picked examples. errors_not_picked: |M|; M
    holds the examples outside G that theta_T misclassifies. iterations: K, which may be chosen after seeing the data.
    tasks: T. log_delta: ln delta. grid: N, if K is one of N numbers declared in advance, 0 among them. Then w'(K) =
    1/(N - 1), so that the shares sum to one; and if N = 1, 1 replaces 3/4. Not in the paper.

    Why: if K_t = 0, nothing of S_t is picked at task t or later, and early stopping at s > t reads S_s only. Given the other
    tasks' samples and all prior parts, theta_T then does not depend on S_t, so S_t is a hold-out. The union over
    K = 0, 1, 2, ... costs 3/4 + (1/4) sum_{K>0} zeta(K) < 1.

    >>> round(float(combined_certificate(5000, 0, 150, 0, tasks=5, log_delta=math.log(0.05))), 7)
    0.0363849
    """
    n = count("n", n)
    G = within("picked", picked, "n", n)
    M = within("errors_not_picked", errors_not_picked, "n - picked", n - G)
    K, T = count("iterations", iterations), count("tasks", tasks, least=1)
    log_delta, N = log_confidence(log_delta), points(grid, K)
    if K:
        quarter = sum_below(log_delta + math.log1p(-UNPICKED))
        weight = log_zeta(K) if N is None else one_of(N - 1)
        return preferent("combined", n, G + M, weight, T, quarter, {"picked": G, "errors_not_picked": M})
    if G:
        raise UserError(f"picked must be 0 where iterations = 0, not {G}.")
    share = per_task(log_delta if N == 1 else sum_below(log_delta + math.log(UNPICKED)), T)
    name = "ln(T/delta)" if N == 1 else "ln(4T/(3 delta))"
    terms: dict[str, float] = {"errors": M, "examples": n, name: -share, "epsilon": -share}
    return make_bound("combined", tail_inverse(M, n, share), M, n, terms)
