"""The certificate that needs no theory of compression: errors on examples that were withheld."""

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.sharing import per_task

NOTHING_WITHHELD = "No example was withheld."
ALL_WRONG = "Every withheld example is misclassified."
TOO_FEW = "There are too few withheld examples for this confidence: the bound rounds to one."


def holdout_certificate(n: int, errors: int, tasks: int, log_delta: float) -> Bound:
    """The hold-out certificate for one task of T.

    With probability at least 1 - delta over the draw of the withheld examples, for every task t at once:

      risk_t(theta_T) <= sup{p : P[Bin(n, p) <= errors] >= delta/T}.

    n: task t's withheld examples, on which nothing that made theta_T depends; errors: theta_T's errors on them.

    >>> import math
    >>> round(float(holdout_certificate(5000, 150, tasks=5, log_delta=math.log(0.05))), 7)
    0.0360966
    """
    whole = count("n", n)
    wrong = within("errors", errors, "n", whole)
    T = count("tasks", tasks, least=1)
    share = per_task(log_confidence(log_delta), T)
    terms: dict[str, float] = {
        "withheld errors": wrong,
        "withheld size": whole,
        "ln(T/delta)": 0.0 - share,
        "epsilon": 0.0 - share,
    }
    if whole == 0:
        return Bound(1.0, "holdout", NOTHING_WITHHELD, terms)
    value = tail_inverse(wrong, whole, share)
    return make_bound("holdout", value, terms, ALL_WRONG if wrong == whole else TOO_FEW)
