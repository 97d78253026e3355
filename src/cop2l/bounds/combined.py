"""Two bounds for the price of ln 2: the better of preference and binomial tail."""

import math

from cop2l.bounds.binomial import log_binomial_above, tail_inverse
from cop2l.bounds.bound import Bound, bounded
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.outer import down
from cop2l.bounds.preference import preference_certificate
from cop2l.bounds.sharing import log_zeta, per_task

VACUOUS = "Neither the picks and errors nor the errors alone support a bound below one."


def combined_certificate(
    n: int, picked: int, missed: int, iterations: int, tasks: int, log_delta: float
) -> Bound:
    """Our certificate for one task of T when no example of a past task can be picked (memory holds prior parts only).

    With probability at least 1 - delta over the draw of all T samples and their marks, for every task t at once:

      risk_t(theta_T) <= min{ eps(|G| + |M|, n, delta' zeta(K)),
                              sup{p : P[Bin(n - |G|, p) <= |M|] >= delta' zeta(K) / C(n, |G|)} },   delta' = delta/(2T).

    The first is `preference_certificate` at delta/2. The second: given the other tasks' samples and all prior parts,
    theta_T is a function of K and of the examples picked at task t alone, because nothing of task t is in the buffer
    later and early stopping at s > t reads only S_s. The number of picks is a function of K (k each, or all), so the
    union is over K and over sets of that one size. With no pick it is the hold-out bound at delta zeta(0)/2.

    n: task t's certified sample; picked: |G|; missed: |M|; iterations: K. Not in the paper.

    >>> round(float(combined_certificate(5000, 0, 150, 0, tasks=5, log_delta=math.log(0.05))), 7)
    0.0372393
    """
    whole = count("n", n)
    g = within("picked", picked, "n", whole)
    m = within("missed", missed, "n - picked", whole - g)
    kept = count("iterations", iterations)
    half = down(log_confidence(log_delta) - math.log(2.0))
    first = preference_certificate(whole, g, m, kept, tasks, half)
    share = down(
        per_task(half, count("tasks", tasks, least=1)) + log_zeta(kept) - log_binomial_above(whole, g)
    )
    second = tail_inverse(m, whole - g, share) if g < whole else 1.0
    terms: dict[str, float] = {
        "picked": g,
        "missed": m,
        "examples": whole,
        "preference at delta/2": first.value,
        "binomial tail at delta/2": second,
        "ln(2T/delta)": -per_task(half, tasks),
        "-ln zeta(K)": -log_zeta(kept),
        "ln C(n,|G|)": log_binomial_above(whole, g),
    }
    return bounded("combined", min(first.value, second), terms, VACUOUS)
