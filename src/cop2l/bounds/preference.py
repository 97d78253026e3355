"""The bound for compressions with the preference property, and the certificates made of it."""

import math
from collections.abc import Sequence

from cop2l.bounds.binomial import log_mass, tail_factor
from cop2l.bounds.bound import Bound, made
from cop2l.bounds.checks import count, counts, log_confidence, within
from cop2l.bounds.kl import upper_inverse
from cop2l.bounds.outer import SLACK, down, outer
from cop2l.bounds.sharing import log_zeta, per_task
from cop2l.errors import UserError


def preference_epsilon(k: int, n: int, log_delta: float) -> float:
    """Campi and Garatti's bound for a preferent compression of n examples to k, rounded up.

    For every distribution and every preferent compression c (c(S) in V in S implies c(V) = c(S)): with probability
    at least 1 - delta over S of n i.i.d. examples, P_z[c(c(S) u {z}) != c(S)] <= preference_epsilon(|c(S)|, n, ln delta).

    The root e of (delta/n) sum_{m=k}^{n-1} C(m,k)/C(n,k) (1-e)^-(n-m) = 1, and 1 for k = n. The sum is
    P[X > k]/(e P[X = k]) for X ~ Bin(n, e) (count the trials up to the (k+1)-th success), so we solve
    ln delta + ln P[X > k] - ln(n e) - ln P[X = k] = 0. Never below the root, at most 1e-9 above.

    >>> [round(preference_epsilon(k, n, math.log(0.05)), 7) for k, n in ((100, 10_000), (300, 10_000), (800, 60_000))]
    [0.0133541, 0.0357832, 0.0149525]
    """
    n = count("n", n, least=1)
    return epsilon(within("k", k, "n", n), n, log_confidence(log_delta))


def epsilon(k: int, n: int, log_delta: float) -> float:
    """`preference_epsilon` for arguments that are known to be good."""
    if k == n:
        return 1.0
    if k == 0 and log_delta == 0.0:
        return 0.0

    def excess(e: float) -> tuple[float, float]:
        """The left side of the equation from below. It is ln of a sum of exp(-j ln(1-e)): increasing and convex."""
        r = 1.0 - e
        mass, margin = log_mass(n, k, e, r)
        _, factor = tail_factor(n, k, r / e, 1e-11)
        at_most = mass + margin + math.log(factor)
        if k == 0:
            more = -math.expm1(mass)
            lost = SLACK * more
        else:
            more = -math.expm1(at_most)
            lost = 2.0 * SLACK * (1.0 + abs(at_most))
        log_more = math.log(more)
        scale = math.log(n * e)
        g = log_delta + log_more - scale - mass
        slack = margin + lost / more + SLACK * (abs(log_more) + abs(scale) + abs(log_delta) + abs(mass))
        slope = (n * e - k) / (e * r) - 1.0 / e + (n - k) * math.exp(mass) / (r * more)
        return g - slack, slope

    # P[X > k] > 1/4 and P[X = k] <= exp(-n kl(k/n, e)) for e >= k/n: a start above the root.
    start = upper_inverse(k / n, (math.log(4.0 * n) - log_delta) / n)
    return outer(excess, k / n, start)


ALL_KEPT = "Every example is picked or misclassified."
NO_EXAMPLE = "There is no example."
TOO_FEW = "There are too few examples for this confidence: the bound rounds to one."


def preference_certificate(
    n: int, picked: int, missed: int, iterations: int, tasks: int, log_delta: float
) -> Bound:
    """Our certificate for one task of T, with the threshold buffer.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |G| + |M|, n, (delta/T) zeta(K) ).

    n: size of task t's sample; picked: |G|, its examples picked at task t in the K iterations kept or from the buffer
    at any later task in any iteration; missed: |M|, theta_T's errors on the n - |G| others; iterations: K.
    eps is `preference_epsilon`. zeta pays for K, which is chosen after seeing the data.

    >>> float(preference_certificate(10_000, 300, 120, 75, tasks=5, log_delta=math.log(0.05)))
    0.053...
    """
    whole = count("n", n)
    g = within("picked", picked, "n", whole)
    m = within("missed", missed, "n - picked", whole - g)
    terms: dict[str, float] = {"picked": g, "missed": m}
    return _preferent("preference", whole, g + m, (count("iterations", iterations),), tasks, log_delta, terms)


def buffer_certificate(
    n_selected: int, compressed: int, iterations: int, tasks: int, log_delta: float
) -> Bound:
    """Our certificate for a task whose data is gone, from what the threshold selects.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |c n R|, |R|, (delta/T) zeta(K) ),   R = the examples of task t with mark u <= tau_{t,T}.

    n_selected: |R|, picked or not; compressed: the examples of R that are in G (see `preference_certificate`) or, of
    the others, misclassified by theta_T; iterations: K.

    >>> float(buffer_certificate(400, 30, 75, tasks=5, log_delta=math.log(0.05)))
    0.17...
    """
    whole = count("n_selected", n_selected)
    k = within("compressed", compressed, "n_selected", whole)
    return _preferent("buffer", whole, k, (count("iterations", iterations),), tasks, log_delta, {})


def base_certificate(
    n: int, compressed: int, iterations: Sequence[int], tasks: int, log_delta: float
) -> Bound:
    """The certificate for tasks that transform the same n base examples.

    With probability at least 1 - delta over the draw of the base examples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |c_t|, n, (delta/T) prod_{s=1..T} zeta(K_s) ).

    compressed: |c_t|, the base examples of which some task's version is in that task's kept C, and of the others
    those whose version for task t theta_T misclassifies; iterations: K_1..K_T. eps is `preference_epsilon`.

    >>> float(base_certificate(10_000, 400, [20, 20, 20], tasks=3, log_delta=math.log(0.05)))
    0.05...
    """
    whole = count("n", n)
    k = within("compressed", compressed, "n", whole)
    kept = counts("iterations", iterations)
    if len(kept) != count("tasks", tasks, least=1):
        raise UserError(f"iterations must have one number for each of the tasks = {tasks}, not {len(kept)}.")
    return _preferent("base", whole, k, kept, tasks, log_delta, {})


def _preferent(
    kind: str,
    n: int,
    k: int,
    iterations: Sequence[int],
    tasks: int,
    log_delta: float,
    terms: dict[str, float],
) -> Bound:
    T = count("tasks", tasks, least=1)
    log_delta = log_confidence(log_delta)
    share = down(per_task(log_delta, T) + sum(map(log_zeta, iterations)))
    terms |= {
        "compressed": k,
        "examples": n,
        "ln(T/delta)": math.log(T) - log_delta,
        "messages": -sum(map(log_zeta, iterations)),
        "ln(1/share of delta)": -share,
    }
    if n == 0:
        return Bound(1.0, kind, NO_EXAMPLE, terms)
    return made(kind, epsilon(k, n, share), terms, ALL_KEPT if k == n else TOO_FEW)
