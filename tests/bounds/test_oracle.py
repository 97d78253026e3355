"""Every function against the oracle, over the whole range of inputs; monotonicity; order between the bounds."""

import math
from fractions import Fraction

import bounds_oracle as oracle
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from cop2l import bounds
from cop2l.bounds.binomial import log_binomial
from cop2l.bounds.kl import upper_inverse

settings.register_profile("bounds", derandomize=True, deadline=None, database=None, max_examples=100)
settings.load_profile("bounds")


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda x: 10.0**x)


def sizes(largest: float) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(1, 12), logarithmic(1, largest).map(int))


@st.composite
def size_and_part(draw, largest: float) -> tuple[int, int]:
    n = draw(sizes(largest))
    k = draw(
        st.one_of(
            st.integers(0, n), st.integers(0, min(n, 9)), st.integers(0, min(n, 9)).map(lambda i: n - i)
        )
    )
    return n, k


log_deltas = st.one_of(
    logarithmic(1e-3, 1e5).map(lambda x: -x),
    logarithmic(1e-9, 1.0).map(math.log),
    st.sampled_from([0.0, math.log(0.5), math.log(0.05), -1e-17, -1e-300, -1e5]),
)
grids = st.one_of(st.none(), st.integers(2, 64), sizes(1e6).map(lambda n: n + 1))
shares = st.one_of(
    st.floats(0, 1),
    logarithmic(1e-320, 1),
    logarithmic(1e-16, 1).map(lambda x: 1 - x),
    st.sampled_from([0.0, 1.0]),
)
radii = st.one_of(logarithmic(1e-300, 1e5), st.floats(0, 2), st.just(0.0))


@given(shares, radii)
@example(0.5, 1e-300)
@example(1e-320, 1e-5)
@example(1 - 2**-53, 1e-20)
@example(0.25, 1e5)
def test_kl_inverse_is_the_outer_end(q, epsilon):
    got = upper_inverse(q, epsilon)
    if q == 1.0 or epsilon == 0.0:
        assert got == q
        return
    assert oracle.is_outer(got, lambda p: oracle.kl(q, p) - epsilon, low=q)


@given(size_and_part(1e7))
@example((10**7, 5 * 10**6))
@example((0, 0))
def test_log_binomial(case):
    n, k = case
    true = oracle.log_binomial(n, k)
    assert true <= log_binomial(n, k) <= true * (1 + mpf("1e-13"))


@given(st.integers(0, 10**7))
def test_log_zeta_is_rounded_down_and_sums_to_one(k):
    true = oracle.log_zeta(k)
    assert true * (1 + mpf("1e-13")) <= bounds.log_zeta(k) <= true
    if k == 0:
        assert math.fsum(math.exp(bounds.log_zeta(i)) for i in range(10_000)) == pytest.approx(1, abs=1e-4)


@given(size_and_part(3e4), log_deltas)
@example((1, 0), -1e5)
@example((2, 1), math.log(0.5))
@example((30_000, 15_000), math.log(0.5))
@example((30_000, 15_000), math.log(0.5001))
def test_binomial_tail_inverse_is_the_outer_end(case, log_delta):
    n, k = case
    got = bounds.binomial_tail_inverse(k, n, log_delta)
    if k == n:
        assert got == 1.0
    else:
        assert oracle.is_outer(got, oracle.tail_excess(n, k, log_delta))
        assert got <= upper_inverse(k / n, -min(log_delta, math.log(0.5)) / n)


LARGE = [
    (10**7, 0),
    (10**7, 1),
    (10**7, 10**5),
    (10**7, 5 * 10**6),
    (10**7, 10**7 - 10),
    (10**7, 10**7 - 1),
    (10**6, 30),
]


@pytest.mark.parametrize("log_delta", [math.log(0.05), -20.0, -1e5])
@pytest.mark.parametrize(("n", "k"), LARGE)
def test_the_largest_sizes(n, k, log_delta):
    got = bounds.binomial_tail_inverse(k, n, log_delta)
    assert oracle.is_outer(got, oracle.tail_excess(n, k, log_delta))
    got = bounds.preference_epsilon(k, n, log_delta)
    assert oracle.is_outer(
        got, lambda e: log_delta + oracle.log(oracle.preference_beta(k, n, e)), low=Fraction(k, n)
    )


@given(size_and_part(400), log_deltas)
@example((1, 0), 0.0)
@example((1, 0), -1e5)
@example((400, 399), math.log(0.05))
@example((400, 0), -1e-17)
@example((2, 1), 0.0)
def test_preference_epsilon_solves_the_printed_equation(case, log_delta):
    n, k = case
    got = bounds.preference_epsilon(k, n, log_delta)
    if k == n:
        assert got == 1.0
        return
    assert oracle.is_outer(
        got, lambda e: log_delta + oracle.log(oracle.preference_sum(k, n, e)), low=Fraction(k, n)
    )


@given(size_and_part(3e4), log_deltas)
@example((30_000, 29_999), math.log(0.05))
@example((30_000, 15_000), 0.0)
def test_preference_epsilon_in_the_beta_form(case, log_delta):
    n, k = case
    assume(k < n)
    got = bounds.preference_epsilon(k, n, log_delta)
    low = Fraction(k, n)
    assert oracle.is_outer(got, lambda e: log_delta + oracle.log(oracle.preference_beta(k, n, e)), low=low)


def anytime(log_delta: float, tasks: int):
    return log_delta + oracle.log_zeta(0) - 2 * oracle.log(tasks)


@given(log_deltas, sizes(1e6))
def test_anytime_share_is_rounded_down(log_delta, tasks):
    true = anytime(mpf(log_delta), tasks)
    assert true * (1 + mpf("1e-13")) <= bounds.anytime_log_delta(log_delta, tasks) <= true


@st.composite
def runs(draw, largest: float = 3e4) -> dict:
    n = draw(sizes(largest))
    complement = draw(st.one_of(st.integers(0, n), st.just(n)))
    evicted = draw(st.integers(0, min(n - complement, 40)))
    tasks = draw(st.integers(1, 12))
    if tasks == 1:
        evicted = 0
    compression = n - complement - evicted
    errors = draw(st.one_of(st.integers(0, complement), st.integers(0, min(complement, 5))))
    iterations = draw(st.lists(st.integers(0, 500), min_size=tasks, max_size=tasks))
    return {
        "n": n,
        "compression": compression,
        "evicted": evicted,
        "errors": errors,
        "iterations": iterations,
        "task": draw(st.integers(1, tasks)),
        "tasks": tasks,
        "log_delta": draw(log_deltas),
        "grid": draw(grids),
    }


def weight(K: int, grid: int | None):
    """The oracle's ln zeta(K), or ln 1/N."""
    return oracle.log_zeta(K) if grid is None else -oracle.log(mpf(grid))


@given(sizes(1e6), grids)
def test_the_weight_of_a_number_of_iterations_is_rounded_down(K, grid):
    true = weight(K, grid)
    assert true * (1 + mpf("1e-13")) <= bounds.log_weight(K, grid) <= true


def price(run: dict):
    """The oracle's epsilon."""
    n, a, b, T = run["n"], run["compression"], run["evicted"], run["tasks"]
    eps = oracle.log(mpf(T)) - mpf(run["log_delta"]) + oracle.log_binomial(n, a) - oracle.log_zeta(a)
    eps += oracle.log_binomial(n - a, b) - oracle.log_zeta(b) + (b * oracle.log(T - 1) if b else 0)
    return eps - sum(weight(K, run["grid"]) for K in run["iterations"])


@given(runs())
def test_kl_certificate(run):
    got = bounds.kl_certificate(**run)
    complement = run["n"] - run["compression"] - run["evicted"]
    eps = price(run)
    assert eps <= got.terms["epsilon"] <= eps * (1 + mpf("1e-12"))
    assert (got.value == 1.0) == (got.reason is not None)
    if run["errors"] == complement:
        assert got.value == 1.0
        return
    q = Fraction(run["errors"], complement)
    assert oracle.is_outer(got.value, lambda p: complement * oracle.kl(q, p) - eps, low=q)


@given(size_and_part(3e4), st.integers(0, 500), grids, st.integers(1, 50), log_deltas, st.data())
def test_certificates_made_of_the_preference_bound(case, K, grid, tasks, log_delta, data):
    n, k = case
    share = mpf(log_delta) - oracle.log(tasks) + weight(K, grid)
    picked = data.draw(st.integers(0, k))
    got = bounds.preference_certificate(n, picked, k - picked, K, tasks, log_delta, grid=grid)
    assert bounds.buffer_certificate(n, k, K, tasks, log_delta, grid=grid).value == got.value
    assert (got.value == 1.0) == (got.reason is not None)
    if k == n:
        assert got.value == 1.0
        return
    low = Fraction(k, n)
    assert oracle.is_outer(got.value, lambda e: share + oracle.log(oracle.preference_beta(k, n, e)), low=low)


@given(size_and_part(3e4), st.integers(1, 1000), log_deltas)
def test_holdout_certificate(case, tasks, log_delta):
    n, errors = case
    got = bounds.holdout_certificate(n, errors, tasks, log_delta)
    assert (got.value == 1.0) == (got.reason is not None)
    if errors == n:
        assert got.value == 1.0
        return
    share = mpf(log_delta) - oracle.log(tasks)
    assert oracle.is_outer(got.value, oracle.tail_excess(n, errors, share))
