"""Families of claims against the oracle: every statement that is issued, and what the kernel accepts of it.

`exact` is written from docs/theory.md: each statement as an increasing function of its value, whose root is the bound.
"""

import math
import random
from fractions import Fraction

import bounds_oracle as oracle
import pytest
from mpmath import exp, log, mpf, pi

from cop2l import bounds
from cop2l.certificates.bounding import statements, void_statements
from cop2l.errors import UserError
from cop2l.kernel.arithmetic import bound_follows
from cop2l.kernel.options import Options

LOG = math.log(0.05)
HAIR = 1e-9
FAMILIES = ("tasks", "average", "forgetting", "classes", "groups")
KINDS = [
    ("kl", "uniform"),
    ("kl", "threshold"),
    ("preference", "threshold"),
    ("buffer", "threshold"),
    ("holdout", "threshold"),
]


# ---- the pieces


def test_a_pooled_bound_is_the_binomial_root_at_a_share_of_at_most_a_quarter():
    rng = random.Random(1)
    for _ in range(150):
        counts = [(n := rng.choice([1, 3, 40, 5000]), rng.randint(0, n)) for _ in range(rng.randint(1, 6))]
        log_delta = rng.choice([0.0, -0.1, math.log(0.25), LOG, -50.0, -2000.0])
        N, X = (sum(column) for column in zip(*counts, strict=True))
        bound = bounds.pooled_certificate(counts, log_delta)
        if X >= N - 1:
            assert (bound.value, bound.reason is None) == (1.0, False)
            continue
        share = min(mpf(log_delta), log(mpf(1) / 4))
        assert oracle.is_outer(bound.value, oracle.tail_excess(N, X, share)), counts


def test_pooling_is_refused_or_vacuous_where_it_says_nothing():
    assert bounds.pooled_certificate([], LOG).reason
    assert bounds.pooled_certificate([(0, 0), (0, 0)], LOG).value == 1.0
    for counts in ([(3, 4)], [(-1, 0)], [(3, True)], [(3.0, 1)]):
        with pytest.raises(UserError):
            bounds.pooled_certificate(counts, LOG)
    with pytest.raises(UserError, match="average"):
        bounds.average_of([(0, 0.5)])


def test_what_was_gained_is_rounded_down():
    rng = random.Random(2)
    for _ in range(150):
        n = rng.choice([1, 2, 30, 1000, 50_000])
        gained, log_delta = rng.choice([0, 1, n, rng.randint(0, n)]), rng.choice([-0.1, LOG, -30.0])
        value = bounds.gained_at_least(min(gained, n), n, log_delta)
        excess = oracle.tail_excess(n, n - min(gained, n), log_delta)
        if gained == 0:
            assert value == 0.0
        else:
            assert oracle.is_outer(1 - Fraction(value), excess), (n, gained, log_delta)


def test_net_forgetting_and_means_are_the_next_float_above():
    rng = random.Random(3)
    for _ in range(500):
        lost, gained = rng.random() ** 3, rng.random() ** 3
        exact = max(Fraction(0), Fraction(lost) - Fraction(gained))
        value = bounds.net_forgetting(lost, gained)
        assert Fraction(value) >= exact
        assert value == 0.0 or Fraction(math.nextafter(value, 0.0)) < exact
        parts = [(rng.randint(0, 10**6), rng.random() ** 3) for _ in range(5)]
        exact = sum(n * Fraction(x) for n, x in parts) / sum(n for n, _ in parts)
        value = bounds.average_of(parts)
        assert Fraction(math.nextafter(value, 0.0)) < exact <= Fraction(value)
    assert bounds.average_of([(7, 0.1), (11, 0.1)]) == 0.1


# ---- every statement of a certificate


def split(rng, total, parts):
    """Whole numbers that sum to `total`; some are 0."""
    cuts = sorted(rng.choice([0, total, rng.randint(0, total)]) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def counted(rng, n, options, K, is_gone, later):
    """Possible counts of n examples, with `later` tasks learned afterwards."""
    picks = rng.choice([0, rng.randint(0, n // 2)]) if options.kind != "holdout" else 0
    evicted = rng.randint(0, picks) if options.buffer == "uniform" and later else 0
    picked = 0 if options.kind == "holdout" else picks
    selected = rng.randint(0, n)
    counts = {
        "n": n, "compression": picks - evicted, "evicted": evicted,
        "errors": rng.choice([0, (n - picks) // 5, n - picks]), "picked": picked,
        "errors_not_picked": rng.choice([0, (n - picked) // 4, max(0, n - picked - 1)]), "iterations": K, "stopped": K,
        "selected": selected, "compressed": rng.choice([0, selected // 3]),
    }  # fmt: skip
    counts |= {"errors": None, "errors_not_picked": None} if is_gone else {}
    counts |= {"errors": counts["errors_not_picked"]} if options.kind == "holdout" else {}
    return counts | ({} if options.uses_marks else {"selected": None, "compressed": None})


def content_of(rng, kind, buffer, *, anytime, largest=120):
    """Options and records of a run that claims everything."""
    T, grid = rng.choice([1, 2, 3, 5]), rng.random() < 0.4 and kind != "holdout"
    options = Options(
        kind=kind, buffer=buffer, claim=rng.sample(FAMILIES, len(FAMILIES)), groups=("a", "b", "c"), tasks=None if anytime else T,
        delta=rng.choice([0.5, 0.05, 0.01]), siblings=rng.choice([1, 1, 20]), shares=rng.choice([(), (), (3, 1, 1, 2, 1)]),
        grid=grid, max_iterations=16 if grid else None,
    )  # fmt: skip
    records = []
    for task in range(1, T + 1):
        K = rng.choice([0, 0, 0, 1, 4]) if kind != "holdout" else 0
        n, is_gone = rng.choice([0, 3, rng.randint(20, largest)]), kind != "holdout" and rng.random() < 0.2
        if task == 1:
            n = max(n, 2)
        parts = [("classes", c, size) for c, size in enumerate(split(rng, n, 3))]
        parts += [("groups", g, size) for g, size in zip(options.groups, split(rng, n, 3), strict=True)]
        parts += [("forgetting", s, n) for s in ("lost", "gained")] if task < T else []
        counts = counted(rng, n, options, K, is_gone, T - task)
        records.append({
            "task": task, "rows": n, **counts,
            "parts": [{"family": f, "subject": s, **counted(rng, size, options, K, is_gone, T - task)} for f, s, size in parts],
        })  # fmt: skip
    return {"options": options, "records": records, "statements": statements(options, records)}


def ln_share(family, options, T):
    """The share of delta of a family: equal shares, or as declared; an average that is a mean of bounds needs none."""
    paid = len(options.claim) - (options.kind != "holdout")
    part = mpf(1) / paid
    if options.shares:
        part = mpf(options.shares[options.claim.index(family)]) / sum(options.shares)
    total = log(oracle.real(options.delta)) + log(part) - log(mpf(options.siblings))
    return total + (log(6 / (pi * T) ** 2) if options.anytime else 0)


def one_excess(kind, part, task, messages, options, ln_delta):
    """The increasing function of one task's statement at a share of delta; None: the bound is one."""
    T, N = len(messages), len(options.grid_points)
    price = [-log(mpf(N)) if N else oracle.log_zeta(K) for K in messages]
    if kind == "kl":
        n, I, J, errors = part["n"], part["compression"], part["evicted"], part["errors"]
        eps = -ln_delta + oracle.log_binomial(n, I) - oracle.log_zeta(I)
        eps += oracle.log_binomial(n - I, J) - oracle.log_zeta(J) - sum(price)
        eps += J * log(mpf(T - 1)) if J else 0
        complement = n - I - J
        if errors == complement:
            return None
        q = Fraction(errors, complement)
        return lambda v: complement * oracle.kl(q, v) - eps if v > q else mpf(-1)
    n, size = (
        (part["selected"], part["compressed"])
        if kind == "buffer"
        else (part["n"], part["picked"] + part["errors_not_picked"])
    )
    if size == n:
        return None
    if kind == "holdout":
        return oracle.tail_excess(n, size, ln_delta)
    ln_delta += price[task - 1]
    return lambda v: exp(ln_delta) * oracle.preference_sum(size, n, v) - 1


def part_of(record, family, subject):
    if family == "tasks":
        return record
    return next(part for part in record["parts"] if (part["family"], part["subject"]) == (family, subject))


def exact(statement, content):
    """(excess, low): the increasing function whose root on (low, 1) is the bound, or (None, mean) for an exact number."""
    options, records, family, task = (
        content["options"],
        content["records"],
        statement["family"],
        statement["task"],
    )
    T, messages = len(records), [record["iterations"] for record in records]
    share = ln_share(family, options, T)
    values = {(s["family"], s["task"], s["subject"]): Fraction(s["value"]) for s in content["statements"]}
    if task is None:
        tasks = range(1, T + (family == "average"))
        source = ("tasks", None) if family == "average" else (family, "lost")
        parts = [part_of(records[t - 1], source[0], source[1]) for t in tasks]
        N = sum(part["n"] for part in parts)
        X = sum(part["errors_not_picked"] for part in parts if options.kind == "holdout")
        if options.kind != "holdout":
            each = zip(tasks, parts, strict=True)
            return None, sum(
                part["n"] * values.get((source[0], t, source[1]), Fraction(1)) for t, part in each
            ) / N
        if X >= N - 1:
            return None, Fraction(1)
        share -= log(mpf(T)) if family == "forgetting" else 0
        return oracle.tail_excess(N, X, min(share, log(mpf(1) / 4))), Fraction(0)
    record, kind = records[task - 1], statement["kind"]
    share -= log(mpf(T))
    if family in ("classes", "groups"):
        share -= log(mpf(max(1, sum(part["n"] > 0 for part in record["parts"] if part["family"] == family))))
    if family == "forgetting" and kind == "holdout":
        share -= log(mpf(2))
    if statement["subject"] == "net":
        part, lost = part_of(record, family, "gained"), values[family, task, "lost"]
        n, gained = part["n"], part["errors_not_picked"]
        if not gained:
            return None, lost
        excess = oracle.tail_excess(n, n - gained, share)
        return (lambda v: excess(1 - (lost - v)) if v < lost else mpf(1)), Fraction(0)
    part = part_of(record, family, statement["subject"])
    return one_excess(kind, part, task, messages, options, share), Fraction(0)


@pytest.mark.parametrize("anytime", [False, True])
@pytest.mark.parametrize(("kind", "buffer"), KINDS)
def test_every_statement_is_the_root_of_its_theorem_and_the_kernel_decides_by_it(kind, buffer, anytime):
    rng, informative = random.Random(f"{kind} {buffer} {anytime}"), dict.fromkeys(FAMILIES, 0)
    for _ in range(12):
        content = content_of(rng, kind, buffer, anytime=anytime)
        for claimed in content["statements"]:
            value, (excess, low) = claimed["value"], exact(claimed, content)
            assert bound_follows(claimed, content), claimed
            smaller = {**claimed, "value": value * (1 - HAIR)}
            if excess is None:
                number = low if claimed["subject"] == "net" or not claimed["task"] else Fraction(1)
                assert number <= value <= number + Fraction(1, 10**15), claimed
                assert not value or not bound_follows(smaller, content), claimed
            else:
                assert oracle.is_outer(value, excess, low), claimed
                assert value <= 0.01 or not bound_follows(smaller, content), claimed
                informative[claimed["family"]] += value < 1
    assert all(informative[family] for family in FAMILIES if family != "average" or kind == "holdout"), (
        informative
    )


def test_a_class_without_examples_has_a_bound_of_one():
    rng = random.Random(0)
    content = content_of(rng, "preference", "threshold", anytime=False)
    empty = [(r["task"], p["subject"]) for r in content["records"] for p in r["parts"] if not p["n"]]
    assert empty
    claimed = {(s["task"], s["subject"]): s["value"] for s in content["statements"]}
    assert all(claimed.get(key, 1.0) == 1.0 for key in empty)


def bare(task, n, selected=0, compressed=0, errors=0):
    """A record without picks."""
    zero = dict.fromkeys(("compression", "evicted", "picked", "iterations", "stopped"), 0)
    return zero | {
        "task": task, "rows": n, "n": n, "errors": errors, "errors_not_picked": errors, "selected": selected,
        "compressed": compressed, "parts": [],
    }  # fmt: skip


def averaged(options, records, values, mean):
    """A certificate of tasks with these bounds and this average."""
    kind = options.kind
    claimed = [
        {"family": "tasks", "task": t, "subject": None, "kind": kind, "value": v}
        for t, v in enumerate(values, 1)
    ]
    claimed.append({"family": "average", "task": None, "subject": None, "kind": kind, "value": mean})
    return claimed[-1], {"options": options, "records": records, "statements": claimed}


def test_a_mean_of_equal_bounds_is_that_bound():
    rng, options = random.Random(5), Options(kind="preference", tasks=3, claim=("tasks", "average"))
    for _ in range(300):
        records, value = [bare(t, rng.randint(100, 60_000)) for t in (1, 2, 3)], rng.random() ** 2
        assert bound_follows(*averaged(options, records, [value] * 3, value))
        assert not bound_follows(*averaged(options, records, [value] * 3, math.nextafter(value, 0.0)))


def test_an_average_over_no_example_is_one():
    options, records = Options(tasks=1, claim=("tasks", "average")), [bare(1, 0)]
    assert [claimed["value"] for claimed in statements(options, records)] == [1.0, 1.0]
    assert bound_follows(*averaged(options, records, [1.0], 1.0))
    assert not bound_follows(*averaged(options, records, [1.0], 0.5))


def test_which_statements_fall_where_tasks_share_rows():
    """Of a task whose certified rows another task learned from, its own; means over tasks also where rows are counted twice."""
    claimed = [{"task": task, "value": 0.1} for task in (1, 2, 3, None)]
    assert [statement["value"] for statement in void_statements(claimed, ())] == [0.1] * 4
    assert [statement["value"] for statement in void_statements(claimed, {2})] == [0.1, 1, 0.1, 1]
    assert [statement["value"] for statement in void_statements(claimed, (), means=True)] == [0.1] * 3 + [1]
    assert [statement["value"] for statement in void_statements(claimed, {1, 2, 3})] == [1] * 4
