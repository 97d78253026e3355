"""Each guarantee in simulation: schemes whose risk is known in closed form, used as their theorems say.

A certificate may fail with probability delta. The number of runs in which it fails is compared with that by an exact
binomial test; controls that do not pay for their choices must fail it, which shows that it has power.
`pytest -s` prints the rates.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import bdtr, bdtrc

from cop2l import bounds
from cop2l.kernel.options import grid_points

DELTA = 0.1
LOG = math.log(DELTA)


def surprise(violations: int, runs: int, delta: float = DELTA) -> float:
    """The probability of at least so many violations if each run had one with probability delta."""
    return 1.0 if violations == 0 else float(bdtrc(violations - 1, runs, delta))


def holds(name: str, violations: int, runs: int, delta: float = DELTA) -> None:
    print(f"{name}: violated in {violations / runs:.4f} of {runs} runs, delta {delta:g}")
    assert surprise(violations, runs, delta) > 1e-3, name


def fails(name: str, violations: int, runs: int, delta: float = DELTA) -> None:
    print(f"{name} (a control): violated in {violations / runs:.4f} of {runs} runs, delta {delta:g}")
    assert surprise(violations, runs, delta) < 1e-9, name


def sharp(name: str, values, risk: float) -> None:
    median = float(np.median(values))
    print(f"{name}: median bound {median:.4f}, true risk {risk:.4f}")
    assert risk < median <= 3 * risk, name


# --- kl: a predictor read from a random function ---------------------------------------------------
# The scheme looks its predictor up in a random table, at its code: sets, times of leaving, number of iterations. Every entry errs
# on every example with probability P, independently: so the risk is P whatever the entry, and the adversary, who
# takes the entry with the luckiest complement, has as many independent tries as the prices allow for.

P, N, TASKS, KEPT = 0.3, 40, 4, range(6)


def two_sets():
    """n, the sizes of a code of the paper and how many there are: I, J with a time of leaving each, and K."""
    for a, b, kept in product(range(3), range(2), KEPT):
        yield N, (a, b), kept, math.comb(N, a) * math.comb(N - a, b) * (TASKS - 1) ** b


def lucky(certificate, n: int, sets: tuple[int, ...], K: int, grid: int | None = None) -> int:
    """The largest number of errors of an entry with a bound below the risk; -1 if there is none."""
    fewest = -1
    for errors in range(n - sum(sets) + 1):
        if certificate(n, *sets, errors, [K, 0, 0, 0], 1, TASKS, LOG, grid=grid).value >= P:
            break
        fewest = errors
    return fewest


def table_violations(certificate, codes, runs: int, seed: int, grid: int | None = None) -> int:
    generator = np.random.default_rng(seed)
    violated = np.zeros((runs, TASKS), dtype=bool)
    for n, sets, K, number in codes:
        few = lucky(certificate, n, sets, K, grid)
        if few >= 0:
            no_failure = math.exp(number * math.log1p(-bdtr(few, n - sum(sets), P)))  # of so many entries
            violated |= generator.random((runs, TASKS)) > no_failure
    return int(violated.any(axis=1).sum())


@pytest.mark.parametrize("grid", [None, len(KEPT)])
def test_a_random_table(grid):
    found = table_violations(bounds.kl_certificate, two_sets(), 40_000, 1, grid)
    holds(f"kl, random table, grid {grid}", found, 40_000)


def test_the_random_table_beats_a_bound_that_does_not_pay_for_what_the_data_chose():
    def unpaid(n, a, b, errors, *_, grid):
        return bounds.holdout_certificate(n - a - b, errors, TASKS, LOG)

    fails("no price for the sets", table_violations(unpaid, two_sets(), 2000, 3), 2000)


# --- preference -------------------------------------------------------------------------------------------------


def nearest_neighbour_run(generator, n: int, limit: int, grid: tuple[int, ...] = ()) -> tuple[int, int, int]:
    """P2L with nearest neighbours on labels that are coin flips, so that every predictor has risk 1/2.

    The loss of an error is larger the nearer it is to a picked example. The kept iteration has the least |G| + errors, of those
    on the grid and the last, which counts as the next point of the grid. Returns |G|, |M| and K.
    """
    x, y = generator.random(n), generator.random(n) < 0.5
    picked = np.zeros(n, dtype=bool)
    distance, label = np.full(n, np.inf), np.zeros(n, dtype=bool)
    best = (n + 1, 0, 0, 0)
    for K in range(limit + 1):
        errors = (label != y) & ~picked
        missed = int(errors.sum())
        if not grid or K in grid or not missed:
            best = min(best, (K + missed, K, missed, min(filter(K.__le__, grid), default=K)))
        if not missed:
            break
        pick = int(np.argmin(np.where(errors, np.where(np.isinf(distance), x, distance), np.inf)))
        picked[pick] = True
        nearer = np.abs(x - x[pick]) < distance
        distance = np.where(nearer, np.abs(x - x[pick]), distance)
        label = np.where(nearer, y[pick], label)
    return best[1:]


@pytest.mark.parametrize("limit", [None, 25])
def test_preference_with_nearest_neighbours_on_noise(limit):
    n, runs, generator = 60, 2000, np.random.default_rng(7)
    points = grid_points(limit) if limit else ()
    grid = len(points) or None
    violations = control = 0
    for _ in range(runs):
        picked, missed, K = nearest_neighbour_run(generator, n, 25, points)
        violations += bounds.preference_certificate(n, picked, missed, K, 1, LOG, grid=grid).value < 0.5
        control += bounds.binomial_tail_inverse(missed, n - picked, LOG) < 0.5
    holds(f"preference, nearest neighbours, grid {grid}", violations, runs)
    fails("errors outside the picks, unpaid", control, runs)


# --- hold-out, and any of them at any time -----------------------------------------------------------------------


def test_holdout():
    n, runs = 400, 20_000
    risks = np.array([0.02, 0.05, 0.1, 0.2, 0.4])
    errors = np.random.default_rng(10).binomial(n, risks, size=(runs, 5))
    table = np.array([bounds.holdout_certificate(n, e, 5, LOG).value for e in range(n + 1)])
    violated = (table[errors] < risks).any(axis=1)
    holds("holdout, five tasks", int(violated.sum()), runs)
    assert violated.mean() > 0.2 * DELTA  # no looser than sharing delta between five tasks makes it
    sharp("holdout, n = 400", table[errors[:, 2]], 0.1)


@pytest.mark.parametrize("kind", ["holdout", "preference"])
def test_anytime(kind):
    """After every task T = 1..10, certificates for all tasks so far; a run is violated if any of them ever is."""
    n, runs, risk, last = 300, 10_000, 0.15, 10
    generator = np.random.default_rng(11)

    def table(T: int, log_delta: float):
        if kind == "holdout":
            return [bounds.holdout_certificate(n, e, T, log_delta).value for e in range(n + 1)]
        return [bounds.preference_certificate(n, 0, e, 0, T, log_delta).value for e in range(n + 1)]

    anytime, fixed = np.zeros(runs, dtype=bool), np.zeros(runs, dtype=bool)
    for T in range(1, last + 1):
        errors = generator.binomial(n, risk, size=(runs, T))  # a new predictor after every task
        shared = np.array(table(T, bounds.anytime_log_delta(LOG, T)))
        anytime |= (shared[errors] < risk).any(axis=1)
        if kind == "holdout":
            fixed |= (np.array(table(T, LOG))[errors] < risk).any(axis=1)
    holds(f"anytime, {kind}", int(anytime.sum()), runs)
    sharp(f"anytime, {kind}, n = 300, after ten tasks", shared[errors], risk)
    if kind == "holdout":
        fails("the same delta at every time", int(fixed.sum()), runs)
