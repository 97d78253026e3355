"""The hold-out certificate: errors on withheld examples."""

from cop2l.bounds.binomial import tail_inverse
from cop2l.bounds.bound import Bound, make_bound
from cop2l.bounds.checks import count, log_confidence, within
from cop2l.bounds.sharing import per_task


def holdout_certificate(n: int, errors: int, tasks: int, log_delta: float) -> Bound:
    """The hold-out certificate for one task of T.

    With probability at least 1 - delta over the draw of the withheld examples, for every task t at once:

      risk_t(theta_T) <= bin^-1(errors, n, delta/T) = sup{p : P[Bin(n, p) <= errors] >= delta/T}.

    n: the number of withheld examples of task t; theta_T does not depend on them. errors: the number of these examples that
    theta_T misclassifies. tasks: T. log_delta: ln delta.

    >>> import math
    >>> round(float(holdout_certificate(5000, 150, tasks=5, log_delta=math.log(0.05))), 7)
    0.0360966
    """
    n = count("n", n)
    errors = within("errors", errors, "n", n)
    T = count("tasks", tasks, least=1)
    share = per_task(log_confidence(log_delta), T)
    terms: dict[str, float] = {
        "withheld errors": errors,
        "withheld size": n,
        "ln(T/delta)": 0.0 - share,
        "epsilon": 0.0 - share,
    }
    return make_bound("holdout", tail_inverse(errors, n, share), errors, n, terms)
