"""The arithmetic of the kernel: it accepts what `cop2l.bounds` computes, nothing smaller, and agrees with mpmath."""

import math
import random
from decimal import Decimal
from fractions import Fraction

import arithmetic_oracle as oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cop2l import bounds
from cop2l.bounds.outer import sum_below
from cop2l.kernel.arithmetic import bound_follows, percent
from cop2l.kernel.options import Options

KINDS = ("kl", "preference", "buffer", "holdout")
BUFFERS = {"preference": ("threshold",), "buffer": ("threshold",)}
HAIR = 2e-9


def case(rng: random.Random, kind: str, *, grid: bool, anytime: bool, largest: int):
    """A record that can be, the messages of its run, and options: sizes and shares over many orders of magnitude."""

    def part(total: int) -> int:
        """From nothing to everything, and often few or all but few."""
        few = rng.randint(0, min(total, 9))
        return rng.choice([rng.randint(0, total), few, few, total - few])

    T = rng.choice([1, 1, 2, 3, 7, 40])
    t = rng.randint(1, T)
    options = Options(
        kind=kind,
        buffer=rng.choice(BUFFERS.get(kind, ("uniform", "threshold"))),
        grid=grid,
        max_iterations=rng.choice([5, 64, 1000, 10**6]) if grid else None,
        tasks=None if anytime else T,
        delta=rng.choice([0.5, 0.05, 0.1, 10.0 ** rng.uniform(-300, -0.31)]),
        siblings=rng.choice([1, 1, 2, 20, 10**6]),
    )
    points = options.grid_points or (0, 0, 1, 2, 3, 10, 75, 500, 10**6)
    messages = [rng.choice(points) for _ in range(T)]
    n = rng.choice([rng.randint(0, 12), int(10 ** rng.uniform(0, math.log10(largest)))])
    if kind == "holdout":
        errors = part(n)
        return (
            {
                "task": t,
                "n": n,
                "picked": 0,
                "errors": errors,
                "errors_not_picked": errors,
                "iterations": messages[t - 1],
            },
            messages,
            options,
        )
    picked_in_all = part(n)
    leaving = part(picked_in_all) if options.buffer == "uniform" and t < T else 0
    picked = part(n)
    selected = part(n)
    record = {
        "task": t,
        "n": n,
        "compression": picked_in_all - leaving,
        "evicted": leaving,
        "errors": part(n - picked_in_all),
        "picked": picked,
        "errors_not_picked": part(n - picked),
        "iterations": messages[t - 1],
        "selected": selected if options.uses_marks else None,
        "compressed": part(selected) if options.uses_marks else None,
    }
    return record, messages, options


def issued(kind: str, record: dict, messages: list[int], options: Options) -> float:
    """What `cop2l.bounds` gives."""
    T, t, log_delta = (
        len(messages),
        record["task"],
        sum_below(math.log(options.delta) - math.log(options.siblings)),
    )
    share = bounds.anytime_log_delta(log_delta, T) if options.anytime else log_delta
    grid = len(options.grid_points) or None
    if kind == "holdout":
        return bounds.holdout_certificate(record["n"], record["errors"], T, share).value
    n, iterations = record["n"], record["iterations"]
    first, second = record["compression"], record["evicted"]
    if kind == "kl":
        return bounds.kl_certificate(
            n, first, second, record["errors"], messages, t, T, share, grid=grid
        ).value
    if kind == "buffer":
        return bounds.buffer_certificate(
            record["selected"], record["compressed"], iterations, T, share, grid=grid
        ).value
    sizes = (n, record["picked"], record["errors_not_picked"])
    return bounds.preference_certificate(*sizes, iterations, T, share, grid=grid).value


def holds(value: float, kind: str, record: dict, messages: list[int], options: Options) -> bool:
    """Whether the bound of one task follows, in a certificate that bounds the error on every task."""
    records = [{"iterations": kept, "parts": []} for kept in messages]
    records[record["task"] - 1] |= record
    claimed = {"family": "tasks", "task": record["task"], "subject": None, "kind": kind, "value": value}
    return bound_follows(claimed, {"options": options, "records": records, "statements": [claimed]})


def everything(test):
    for name, values in (("kind", KINDS), ("grid", [False, True]), ("anytime", [False, True])):
        test = pytest.mark.parametrize(name, values)(test)
    return test


@everything
def test_what_is_issued_follows_and_nothing_smaller(kind, grid, anytime):
    rng, telling = random.Random(f"{kind} {grid} {anytime}"), 0
    for _ in range(600):
        record, messages, options = case(rng, kind, grid=grid, anytime=anytime, largest=20_000)
        value = issued(kind, record, messages, options)
        assert holds(value, kind, record, messages, options), (record, messages, options)
        assert not holds(value - HAIR, kind, record, messages, options), (record, messages, options)
        telling += HAIR < value < 1
    assert telling > 150


@everything
def test_the_theory_at_sixty_digits_agrees(kind, grid, anytime):
    """Near the bound and far from it; `oracle.excess` is written from docs/theory.md alone."""
    rng, verdicts = random.Random(f"{kind} {grid} {anytime} oracle"), set()
    for _ in range(120):
        record, messages, options = case(rng, kind, grid=grid, anytime=anytime, largest=1000)
        value = issued(kind, record, messages, options)
        if value == 1.0:
            continue
        for at in (
            value,
            value - 1e-12,
            value - HAIR,
            value * rng.random(),
            value + (1 - value) * rng.random(),
        ):
            if 0 < at < 1:
                expected = oracle.excess(at, kind, record, messages, options) >= 0
                assert holds(at, kind, record, messages, options) == expected, (
                    at,
                    record,
                    messages,
                    options,
                )
                verdicts.add(expected)
    assert verdicts == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_examples(kind):
    rng, count = random.Random(kind), 0
    while count < 2:
        record, messages, options = case(rng, kind, grid=bool(count), anytime=True, largest=10**6)
        size = record["selected"] if kind == "buffer" else record["n"]
        value = issued(kind, record, messages, options)
        if size < 3 * 10**5 or value == 1:
            continue
        count += 1
        assert holds(value, kind, record, messages, options)
        assert not holds(value - HAIR, kind, record, messages, options)


RUN = {
    "task": 1, "n": 200, "compression": 20, "evicted": 0, "errors": 10, "picked": 20, "errors_not_picked": 10,
    "iterations": 4, "selected": 90, "compressed": 12,
}  # fmt: skip


def options_for(kind: str, **changed) -> Options:
    return Options(**{"kind": kind, "tasks": 2} | changed)


@pytest.mark.parametrize("kind", KINDS)
def test_edges(kind):
    options = options_for(kind, tasks=1)
    nothing = dict.fromkeys(RUN, 0) | {"task": 1}
    full = {"n": 50, "selected": 50}
    vacuous = [
        nothing,
        nothing | full | {"compression": 50, "picked": 50, "compressed": 50, "errors": 50, "iterations": 3},
        nothing | full | {"errors": 50, "errors_not_picked": 50, "compressed": 50},
    ]
    for record in vacuous:
        messages = [record["iterations"]]
        assert holds(1.0, kind, record, messages, options)
        for value in (0.0, 0.5, 1 - 2.0**-53):
            assert not holds(value, kind, record, messages, options)
    perfect = nothing | full
    assert not holds(0.0, kind, perfect, [0], options)
    assert not holds(5e-324, kind, perfect, [0], options)
    assert not holds(0.05, kind, perfect, [0], options)  # the least is about ln(20 and what is paid)/50
    assert holds(0.2, kind, perfect, [0], options)


def test_no_kind_follows_where_the_messages_are_not_of_the_grid():
    """A number outside a declared grid has no share of delta, so nothing is claimed of it."""
    for kind in KINDS[:-1]:
        options = options_for(kind, grid=True, max_iterations=8)
        assert holds(0.99, kind, RUN, [4, 3], options)
        for messages in ([5, 3], [4, 7], [4, 16]):
            assert not holds(0.99, kind, RUN | {"iterations": messages[0]}, messages, options)
        none = options_for(kind, grid=True, max_iterations=0)
        assert not holds(0.99, kind, RUN, [4, 3], none)


@given(st.floats(0, 1))
@example(5e-324)
@example(0.0)
@example(1.0)
@example(math.nextafter(0.03125, 1))
@example(math.nextafter(0.0625, 1))
@settings(max_examples=2000, derandomize=True, deadline=None, database=None)
def test_percent_is_never_rounded_down(value):
    shown = Fraction(Decimal(percent(value).removesuffix(" %")))
    assert 0 <= shown - 100 * Fraction(value) < Fraction(1, 100)
