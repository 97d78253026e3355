"""Cases in which the probability that a statement of a family fails is a finite sum: intact, and with one assumption broken.

The samples are hold-outs, so that the statements are nearly sharp. Failures with picked examples are far below delta: there
tests/kernel tests the structure of the proof.
"""

import math
from functools import partial, reduce

import numpy as np
from scipy.stats import binom

from cop2l.bounds import (
    binomial_tail_inverse,
    gained_at_least,
    net_forgetting,
    pooled_certificate,
    preference_certificate,
)

HAIR = 1e-9


def upper(n, delta):
    """The hold-out bound for 0..n errors."""
    return np.array([binomial_tail_inverse(x, n, math.log(delta)) for x in range(n + 1)])


def pooled(n, delta):
    """The bound on an average for 0..n errors on all examples."""
    return np.array([pooled_certificate([(n, x)], math.log(delta)).value for x in range(n + 1)])


def errors_of(tasks):
    """The distribution of the number of errors on tasks of (n, risk)."""
    return reduce(np.convolve, (binom.pmf(np.arange(n + 1), n, risk) for n, risk in tasks))


def average_fails(tasks, bound, weights=None):
    """The probability that a bound on the average risk, a function of all errors, lies below it."""
    mean = np.average([risk for _, risk in tasks], weights=weights or [n for n, _ in tasks])
    return float(errors_of(tasks)[bound < mean].sum())


def equal_weights(delta, broken):
    """90 examples of an easy task and ten of a hard one; broken: the plain mean over tasks."""
    return average_fails([(90, 0.05), (10, 0.6)], pooled(100, delta), [1, 1] if broken else None)


def last_two(delta, broken, N=12):
    """Eleven examples that are always errors and one that nearly is; broken: the tail inverse at N - 1 errors too."""
    mean = (1 - delta) ** (1 / N) + HAIR
    bound = upper(N, delta) if broken else pooled(N, delta)
    return average_fails([(N - 1, 1.0), (1, 1 - N * (1 - mean))], bound)


def large_share(delta, broken, N=400):
    """All examples but two are always errors; broken: more than a quarter of delta is used."""
    bound = upper(N, delta) if broken else pooled(N, delta)
    mean = bound[N - 2] + HAIR
    return average_fails([(N - 2, 1.0), (2, 1 - N * (1 - mean) / 2)], bound)


def lost_and_gained(n, lost, gained):
    """All pairs of counts, and their probabilities."""
    b, c = (column.ravel() for column in np.meshgrid(range(n + 1), range(n + 1), indexing="ij"))
    possible = b + c <= n
    b, c = b[possible], c[possible]
    return b, c, binom.pmf(b, n, lost) * binom.pmf(c, n - b, gained / (1 - lost))


def both_halves(delta, broken, n=15, gained=0.3):
    """What was lost and the net rise, at once; broken: all of delta for each of the two halves."""
    share = math.log(delta if broken else delta / 2)
    lost = binomial_tail_inverse(4, n, math.log(delta)) + HAIR
    b, c, chance = lost_and_gained(n, lost, gained)
    up = np.array([binomial_tail_inverse(x, n, share) for x in range(n + 1)])
    low = np.array([gained_at_least(x, n, share) for x in range(n + 1)])
    net = np.array([net_forgetting(up[i], low[j]) for i, j in zip(b, c, strict=True)])
    return float(chance[(up[b] < lost) | (net < lost - gained)].sum())


def net_counts(delta, broken, n=8, lost=0.56, gained=0.42):
    """The net rise; broken: the difference of the counts is treated as one count."""
    b, c, chance = lost_and_gained(n, lost, gained)
    if broken:
        bound = upper(n, delta)[np.maximum(b - c, 0)]
    else:
        up, low = (
            upper(n, delta / 2)[b],
            np.array([gained_at_least(x, n, math.log(delta / 2)) for x in range(n + 1)])[c],
        )
        bound = np.maximum(up - low, 0.0)
    return float(chance[bound < lost - gained].sum())


def picked_too(delta, broken, iterations=15, n=40, picked=15, lost=0.5):
    """The model has memorised the picked examples and loses half of all others; broken: counted on the picked ones too."""
    b = np.arange(n - picked + 1)
    if broken:
        bound = upper(n, delta)[b]
    else:
        bound = np.array(
            [preference_certificate(n, picked, int(x), iterations, 1, math.log(delta)).value for x in b]
        )
    return float(binom.pmf(b, n - picked, lost)[bound < lost].sum())


def chosen_group(delta, broken, groups=10, n=30):
    """Ten groups; broken: the group with the fewest errors is chosen after counting, with all of delta."""
    share = delta if broken else delta / groups
    bound = upper(n, share)
    risk = bound[0] + HAIR
    return 1 - (1 - float(binom.pmf(np.arange(n + 1), n, risk)[bound < risk].sum())) ** groups


def true_attribute(delta, broken, n=60, wrongly_recorded=0.1, risk=0.05):
    """Members of a group who are recorded elsewhere are all misclassified; broken: the bound is read as one on all members."""
    truth = wrongly_recorded + (1 - wrongly_recorded) * risk if broken else risk
    return float(binom.pmf(np.arange(n + 1), n, risk)[upper(n, delta) < truth].sum())


def several_families(delta, broken, n=8):
    """Two tasks of two groups of eight examples: tasks, average and groups at once; broken: all of delta for each family."""
    share = delta if broken else delta / 3
    groups, tasks, average = upper(n, share / 4), upper(2 * n, share / 2), pooled(4 * n, share)
    risk = 1 - (delta / 4) ** (1 / n) + HAIR
    distribution = binom.pmf(np.arange(n + 1), n, risk)
    x = np.indices((n + 1,) * 4)
    fails = (groups[x] < risk).any(axis=0) | (average[x.sum(axis=0)] < risk)
    fails |= (tasks[x[0] + x[1]] < risk) | (tasks[x[2] + x[3]] < risk)
    return float(np.einsum("a,b,c,d->abcd", *[distribution] * 4)[fails].sum())


def shared_withheld(delta, broken, tasks=10, n=40, risk=0.5):
    """Ten tasks withhold the same rows, which no task learned from; broken: they are pooled; intact: one bound per task."""
    bound = pooled(tasks * n, delta)[::tasks] if broken else upper(n, delta / tasks)
    return float(binom.pmf(np.arange(n + 1), n, risk)[bound < risk].sum())


def shared_learned(delta, broken, n=40, shared=20, risk=0.5):
    """Task 2 memorised half of the rows that task 1 withheld; broken: task 1's bound; intact: task 2's."""
    errors = np.arange((n - shared if broken else n) + 1)
    return float(binom.pmf(errors, errors[-1], risk)[upper(n, delta / 2)[errors] < risk].sum())


CASES = {
    "average: equal weights where tasks differ in size": (0.25, equal_weights),
    "average: no exception from N - 1 errors on": (0.25, last_two),
    "average: more than a quarter of delta": (0.35, large_share),
    "forgetting: all of delta for what was lost, and for the net": (0.3, both_halves),
    "forgetting: lost less gained as one count": (0.3, net_counts),
    "forgetting: counted on picked examples": (0.3, picked_too),
    "groups: one that was chosen after looking": (0.3, chosen_group),
    "groups: the recorded attribute read as the true one": (0.3, true_attribute),
    "several families: all of delta for each": (0.25, several_families),
    "rows shared between tasks, withheld in each: pooled": (0.25, shared_withheld),
    "rows shared between tasks, withheld in one and learned in another": (0.25, shared_learned),
}
"""For each broken assumption: delta, and the case as a function of delta and of whether it is broken."""


def exact_cases():
    """For each case delta, and the exact probability that a statement fails, broken and intact."""
    results = {}
    for name, (delta, case) in CASES.items():
        fails = partial(case, delta)
        results[name] = {"delta": delta, "broken": fails(True), "as it should be": fails(False)}
    return results
