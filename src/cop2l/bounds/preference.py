"""The bound for compressions with the preference property, and the certificates made of it."""

import math
from functools import lru_cache

from cop2l.bounds.binomial import decay, log_mass, tail_factor
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.kl import TINY, upper_inverse
from cop2l.bounds.outer import SLACK, WIDTH, point_above_root, sum_below
from cop2l.bounds.sharing import log_weight, per_task

ALL_KEPT = "Every example is picked or misclassified, so nothing supports a bound."
NO_EXAMPLE = "There is no example to support a bound."
TOO_FEW = "There are too few examples for this confidence: the bound rounds to one."


def preference_epsilon(k: int, n: int, log_delta: float) -> float:
    """Campi and Garatti's bound for a preferent compression of n examples to k, rounded up.

    For every distribution and every compression c with the preference property (c(S) in V in S implies c(V) = c(S)):
    with probability at least 1 - delta over a sample S of n i.i.d. examples,
    P_z[c(c(S) u {z}) != c(S)] <= preference_epsilon(|c(S)|, n, ln delta).

    It is the root e of (delta/n) sum_{m=k..n-1} C(m,k)/C(n,k) (1-e)^-(n-m) = 1, and 1 for k = n: never below it, at
    most 1e-9 above. The sum is P[X > k]/(e P[X = k]) for X ~ Bin(n, e) (its m-th term: the (k+1)-th success comes at
    trial m+1), so what is solved is ln delta + ln P[X > k] - ln(n e) - ln P[X = k] = 0.

    >>> [round(preference_epsilon(k, 10_000, math.log(0.05)), 7) for k in (100, 300)]
    [0.0133541, 0.0357832]
    """
    n = count("n", n, least=1)
    return epsilon(within("k", k, "n", n), n, log_confidence(log_delta))


@lru_cache(maxsize=4096)
def epsilon(k: int, n: int, log_delta: float) -> float:
    """`preference_epsilon` for arguments known to be good; many small tasks ask for the same."""
    if k == n:
        return 1.0
    if k == 0 and log_delta == 0.0:
        return 0.0

    def excess(e: float) -> tuple[float, float]:
        """The logarithm of the left side, from below: of a sum of exp(-j ln(1-e)), so increasing and convex."""
        r = 1.0 - e
        odds = r / e
        mass, margin = log_mass(n, k, e, r)
        at_k = math.exp(mass)
        slope = (n * e - k) / (e * r) - 1.0 / e
        if k == 0:
            more = -math.expm1(mass)
            lost = SLACK * more
        else:
            # A tail factor that is off by a share f moves the result by f P[X <= k]/slope, and the slope is at least
            # one because every j is.
            precision = WIDTH * max(slope, 1.0) * decay(n, k, odds) / max(at_k, TINY)
            _, factor = tail_factor(n, k, odds, min(precision, 0.2))
            at_most = at_k * factor * math.exp(margin)
            more = 1.0 - at_most
            lost = SLACK * (1.0 + at_most * (1.0 + abs(mass)))
        log_more, scale = math.log(more), math.log(n * e)
        slack = margin + lost / more + SLACK * (abs(log_more) + abs(scale) + abs(log_delta) + abs(mass))
        return log_delta + log_more - scale - mass - slack, slope + (n - k) * at_k / (r * more)

    # For e >= k/n, P[X > k] is at least 1/4 and P[X = k] at most exp(-n kl(k/n, e)): a start above the root.
    start = upper_inverse(k / n, (math.log(4.0 * n) - log_delta) / n)
    return point_above_root(excess, k / n, start)


def preference_certificate(
    n: int,
    picked: int,
    errors_not_picked: int,
    iterations: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """Our certificate for one task of T, learned with the threshold buffer.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |G| + |M|, n, (delta/T) zeta(K) ),   eps = `preference_epsilon`.

    n: size of task t's sample; picked: |G|, its examples picked at task t in the K iterations kept, or from the
    buffer at a later task in any iteration, kept or not; errors_not_picked: |M|, theta_T's errors on the n - |G| others;
    iterations: K, which is chosen after seeing the data: zeta pays for it; grid: N, if K is one of N numbers declared
    in advance: 1/N in place of zeta(K). Not in the paper.

    >>> round(float(preference_certificate(10_000, 300, 120, 75, tasks=5, log_delta=math.log(0.05))), 7)
    0.0543949
    """
    whole = count("n", n)
    g = within("picked", picked, "n", whole)
    m = within("errors_not_picked", errors_not_picked, "n - picked", whole - g)
    weight = log_weight(iterations, grid)
    return preferent(
        "preference", whole, g + m, weight, tasks, log_delta, {"picked": g, "errors_not_picked": m}
    )


def buffer_certificate(
    n_selected: int,
    compressed: int,
    iterations: int,
    tasks: int,
    log_delta: float,
    *,
    grid: int | None = None,
) -> Bound:
    """Our certificate for a task whose data is gone, from what a threshold selects.

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= eps( |c n R|, |R|, (delta/T) zeta(K) ),   eps = `preference_epsilon`,

    where R holds the examples of task t with mark u < m'/(T n), picked or not (docs/theory.md: fixed in advance, and
    not above the buffer's own threshold). n_selected: |R|; compressed: those of R that are in G (see
    `preference_certificate`), and of the others those that theta_T misclassifies; iterations: K; grid: as there. Not in
    the paper.

    >>> round(float(buffer_certificate(400, 30, 75, tasks=5, log_delta=math.log(0.05))), 7)
    0.1694434
    """
    whole = count("n_selected", n_selected)
    k = within("compressed", compressed, "n_selected", whole)
    return preferent("buffer", whole, k, log_weight(iterations, grid), tasks, log_delta, {})


def preferent(
    kind: str, n: int, k: int, log_weight: float, tasks: int, log_delta: float, terms: dict[str, float]
) -> Bound:
    """The bound eps(k, n, (delta/T) weight), with its terms; the weight is what the choice of K leaves."""
    T = count("tasks", tasks, least=1)
    log_delta = log_confidence(log_delta)
    share = sum_below(per_task(log_delta, T) + log_weight)
    terms |= {
        "compressed": k,
        "examples": n,
        "ln(T/delta)": math.log(T) - log_delta,
        "messages": 0.0 - log_weight,
        "epsilon": -share,
    }
    if n == 0:
        return Bound(1.0, kind, NO_EXAMPLE, terms)
    return make_bound(kind, epsilon(k, n, share), terms, ALL_KEPT if k == n else TOO_FEW)
