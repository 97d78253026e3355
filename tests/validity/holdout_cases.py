"""Hold-outs at several times and repeated rows, in numpy: how often a statement fails, intact and with one assumption broken.

What is simulated is what docs/theory.md assumes and needs: theorem `several times` and the theorem on repeated rows. Like the
cases of family_cases.py, each is a function of delta and of whether it is broken, and gives the probability that a statement
fails.
"""

import math
from functools import partial

import numpy as np
from scipy.stats import binom

from cop2l.bounds import (
    anytime_log_delta,
    binomial_tail_inverse,
    gained_at_least,
    holdout_certificate,
    kl_certificate,
    pooled_certificate,
    preference_certificate,
)
from cop2l.certificates.bounding import statements
from cop2l.kernel.exact import withheld_rows
from cop2l.kernel.options import Options
from cop2l.randomness import marks

HAIR = 1e-9
SIZES, KEEP, CELLS = (60, 90, 70), 30, 200
CLAIM = ("tasks", "average", "forgetting", "classes")
RUNS = 250
"""How often a case is simulated whose probability is no short sum."""


# ---- hold-outs at several times: labels are coins, and the model remembers the last label that it learned of each input


def kept_rows(withheld, task, most, seed):
    """At most this many withheld rows, those with the smallest marks."""
    return np.array(
        sorted(withheld, key=marks(seed, "holdout", task, n=withheld.max() + 1).__getitem__)[:most]
    )


def record_of(task, now, then, y, rows, last):
    """The counts of a task on these rows, for a model that predicted `then` after it and predicts `now`."""

    def counts(event, among):
        number = {
            "n": len(among),
            "errors": int(event[among].sum()),
            "errors_not_picked": int(event[among].sum()),
        }
        return {**number, "picked": 0, "iterations": 0}

    wrong, before = now != y, then != y
    parts = [
        ("classes", label, counts(wrong, rows[y[rows] == label])) for label in np.unique(y[rows]).tolist()
    ]
    if task < last:
        events = {"lost": wrong & ~before, "gained": before & ~wrong}
        parts += [("forgetting", name, counts(event, rows)) for name, event in events.items()]
    return {
        "task": task,
        **counts(wrong, rows),
        "parts": [{"family": f, "subject": s, **part} for f, s, part in parts],
    }


def truth(statement, models, records):
    """What a statement bounds, exactly: a new input is any of the cells, its label a coin."""
    family, task = statement["family"], statement["task"]
    if family == "classes":
        return float(np.mean(models[-1] != statement["subject"]))
    if family != "forgetting":
        return 0.5
    if statement["subject"] == "net":
        return 0.0
    lost = [0.5 * float(np.mean(model != models[-1])) for model in models[:-1]]
    return (
        lost[task - 1] if task else float(np.average(lost, weights=[record["n"] for record in records[:-1]]))
    )


def fails_at_some_time(delta, seed, broken, anytime, kept):
    """One run of three tasks, certified after each of them (or after the last): whether any statement is ever false.

    broken: "by errors", the kept rows are those that the model gets right; "trained", the kept rows train the later models.
    """
    draws, theta, models, data = np.random.default_rng([seed, 7]), np.zeros(CELLS, int), [], []
    options = Options(
        kind="holdout", delta=delta, claim=CLAIM, tasks=None if anytime else len(SIZES), seed=seed
    )
    for last, n in enumerate(SIZES, 1):
        x, y = draws.integers(CELLS, size=n), draws.integers(2, size=n)
        withheld = np.flatnonzero(withheld_rows(n, last, 0.5, seed))
        trained = [(x, y, np.setdiff1d(np.arange(n), withheld))]
        if broken == "trained":
            trained += [(x, y, kept_rows(rows, t, KEEP, seed)) for t, (x, y, rows) in enumerate(data, 1)]
        theta = theta.copy()
        for inputs, labels, rows in trained:
            theta[inputs[rows]] = labels[rows]
        models, data = [*models, theta], [*data, (x, y, withheld)]
        if not anytime and last < len(SIZES):
            continue
        records = []
        for t, (x, y, rows) in enumerate(data, 1):
            most = KEEP // (last - 1) if kept and t < last else len(rows)
            certifying = kept_rows(rows, t, most, seed)
            if broken == "by errors":
                certifying = rows[np.argsort(theta[x[rows]] != y[rows], kind="stable")][:most]
            records.append(record_of(t, theta[x], models[t - 1][x], y, certifying, last))
        if any(s["value"] < truth(s, models, records) - 1e-12 for s in statements(options, records)):
            return True
    return False


def several_times(delta, broken, how=None, anytime=True, kept=True):
    runs = [fails_at_some_time(delta, seed, how if broken else None, anytime, kept) for seed in range(RUNS)]
    return float(np.mean(runs))


def upper(n, delta):
    """The hold-out bound for 0..n errors."""
    return np.array([binomial_tail_inverse(x, n, math.log(delta)) for x in range(n + 1)])


def after_every_task(delta, broken, n=40, last=6, risk=0.5):
    """A certificate after each of six tasks for each task so far, with unrelated models; broken: each has all of delta."""
    holds = 1.0
    for T in range(1, last + 1):
        share = math.log(delta) if broken else anytime_log_delta(math.log(delta), T)
        bound = np.array([holdout_certificate(n, x, T, share).value for x in range(n + 1)])
        holds *= (1 - binom.pmf(np.arange(n + 1), n, risk)[bound < risk].sum()) ** T
    return float(1 - holds)


def smaller_of_two(delta, broken, kept=20, n=60):
    """A bound from all withheld rows and one from the kept ones; broken: the smaller of them is issued."""
    of_all, of_kept = upper(n, delta), upper(kept, delta)
    risk = of_kept[0] + HAIR
    x, others = np.indices((kept + 1, n - kept + 1))
    chance = binom.pmf(x, kept, risk) * binom.pmf(others, n - kept, risk)
    return float(chance[(of_kept[x] < risk) | (broken & (of_all[x + others] < risk))].sum())


def learned_by_counts(delta, broken, groups=12, n=30):
    """Twelve later tasks, each of which may flip the answers to a twelfth of the inputs; labels are coins.

    broken: a task is learned if that lowers the count of errors on the withheld rows; intact: whatever the count is.
    """
    draws = np.random.default_rng(8)
    errors = draws.binomial(n, 0.5, size=(RUNS, groups))
    counted = np.minimum(errors, n - errors) if broken else errors
    return float(np.mean(upper(groups * n, delta)[counted.sum(axis=1)] < 0.5))


def copies_decided_by_the_data(delta, broken, draws=300, copies=20, risk=0.3, most=40):
    """The kept rows of a sample in which some draws have copies; broken: the rows that are right, intact: any as often.

    The model is constant. A row that repeats another kept one is left out.
    """
    random, bound, fails = (
        np.random.default_rng(9),
        partial(binomial_tail_inverse, log_delta=math.log(delta)),
        0,
    )
    for _ in range(RUNS):
        wrong = random.random(draws) < risk
        copied = ~wrong if broken else random.random(draws) < 1 - risk
        row = np.repeat(np.arange(draws), np.where(copied, 1 + copies, 1))
        kept = row[random.permutation(len(row))[:most]]
        distinct = np.unique(kept[~wrong[kept]])
        errors = int(wrong[kept].sum())
        fails += bound(errors, errors + len(distinct)) < risk
    return fails / RUNS


# ---- repeated rows


def gained_of_what_stays(delta, broken, n=60, gained=0.2):
    """What was gained is answered in its own way, all else alike; broken: repeats are left out of n here, too."""
    k = np.arange(n + 1)
    sizes = np.minimum(k + 1, n) if broken else np.full(n + 1, n)
    low = np.array(
        [gained_at_least(int(x), int(size), math.log(delta)) for x, size in zip(k, sizes, strict=True)]
    )
    return float(binom.pmf(k, n, gained)[low > gained].sum())


def weights_of_the_average(delta, broken, copies=1000, n=100):
    """Task 1 is one draw with many copies, half of all such draws are errors; task 2 is never wrong.

    The copies of a right row are left out; broken: the average is still that with all rows as weights.
    """
    fails = 0.0
    for wrong in (0, 1):
        sizes, errors = (1 + wrong * copies, n), wrong * (1 + copies)
        rows, stay = 1 + copies + n, sum(sizes)
        bound = rows * pooled_certificate([(rows, errors)], math.log(delta)).value / stay
        weights = (1 + copies, n) if broken else sizes
        fails += 0.5 * (bound < np.average([0.5, 0.0], weights=weights))
    return fails


def errors_left_out(delta, broken, n=40):
    """Half of all draws are one value, which the model gets wrong; broken: repeated errors are left out like right rows."""
    k = np.arange(n + 1)
    errors = np.minimum(k, 1) if broken else k
    bound = [
        binomial_tail_inverse(int(e), int(n - x + e), math.log(delta)) for x, e in zip(k, errors, strict=True)
    ]
    return float(binom.pmf(k, n, 0.5)[np.array(bound) < 0.5].sum())


def picked_outside_the_selection(delta, broken, n=120):
    """Kind `buffer`: each draw stands twice, once among the selected rows; the model is wrong until it picks one of the two.

    Half of the draws are wrong at first, and one of the two rows is picked by a coin. broken: a selected row whose copy was
    picked is left out; intact: it counts.
    """
    inside, outside = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    chance = binom.pmf(inside + outside, n, 0.5) * binom.pmf(inside, inside + outside, 0.5)
    fails = 0.0
    for k, left in zip(*np.nonzero(chance > 1e-12), strict=True):
        size, count = (n - left, k) if broken else (n, k + left)
        bound = (
            preference_certificate(int(size), int(count), 0, 0, 1, math.log(delta), grid=1).value
            if size
            else 1.0
        )
        fails += chance[k, left] * (bound < 0.5)
    return float(fails)


def copies_of_the_compression_set(delta, broken, n=60, copies=11):
    """Kind `kl`: each draw stands twelve times; half are wrong at first, and one row of each of these is picked.

    broken: the row that is no repeat is any of the twelve, so that a copy of a picked row is right and stays; intact: the
    picked one.
    """
    fails = 0.0
    for picked in range(n + 1):
        left_out = copies * (n - picked) + (0 if broken else copies * picked)
        rows, stay = n * (1 + copies), n * (1 + copies) - picked - left_out
        if not stay:
            continue
        eps = kl_certificate(rows, picked, 0, 0, [0], 1, 1, math.log(delta), grid=1).terms["epsilon"]
        fails += binom.pmf(picked, n, 0.5) * (-math.expm1(-eps / stay) < 0.5)
    return float(fails)


CASES = {
    "hold-out at several times: kept rows chosen by errors": (0.3, partial(several_times, how="by errors")),
    "hold-out at several times: kept rows that trained": (0.3, partial(several_times, how="trained")),
    "hold-out at several times: all of delta after every task": (0.3, after_every_task),
    "hold-out: the smaller of the bounds from all and from the kept rows": (0.3, smaller_of_two),
    "hold-out: what is learned next is chosen by the count": (0.3, learned_by_counts),
    "kept rows: the data decides which rows have copies": (0.3, copies_decided_by_the_data),
    "repeats: left out of n where a rate is bounded from below": (0.3, gained_of_what_stays),
    "repeats: left out, and weights of the average with them": (0.25, weights_of_the_average),
    "repeats: errors left out, too": (0.3, errors_left_out),
    "repeats, buffer: left out beside a picked copy that is not selected": (
        0.3,
        picked_outside_the_selection,
    ),
    "repeats, kl: a copy of a picked row taken for the one": (0.3, copies_of_the_compression_set),
}
"""For each broken assumption: delta, and the case as a function of delta and of whether it is broken."""
