"""The certificate that needs no theory of compression: errors on examples that were withheld."""

import math

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, made
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.sharing import per_task


def holdout_certificate(n: int, errors: int, tasks: int, log_delta: float) -> Bound:
    """The hold-out certificate for one task of T.

    With probability at least 1 - delta over the draw of the withheld examples, for every task t at once:

      risk_t(theta_T) <= sup{p : P[Bin(n, p) <= errors] >= delta/T}.

    n: task t's withheld examples, on which nothing that made theta_T depends; errors: theta_T's errors on them.

    >>> float(holdout_certificate(5000, 150, tasks=5, log_delta=math.log(0.05)))
    0.03...
    """
    whole = count("n", n)
    wrong = within("errors", errors, "n", whole)
    T = count("tasks", tasks, least=1)
    log_delta = log_confidence(log_delta)
    terms: dict[str, float] = {"errors": wrong, "withheld": whole, "ln(T/delta)": math.log(T) - log_delta}
    if whole == 0:
        return Bound(1.0, "holdout", "No example was withheld.", terms)
    value = tail_inverse(wrong, whole, per_task(log_delta, T))
    vacuous = (
        "Every withheld example is misclassified." if wrong == whole else "Too few examples were withheld."
    )
    return made("holdout", value, terms, vacuous)
