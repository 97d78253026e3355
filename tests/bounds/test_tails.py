"""The parts that the inversions rest on: each encloses the truth, and not by much."""

import math
from fractions import Fraction

import bounds_oracle as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import loggamma, mpf, pi
from scipy.stats import beta

from cop2l.bounds import binomial
from cop2l.bounds.outer import point_above_root

EXACT = settings(derandomize=True, deadline=None, database=None, max_examples=150)


@pytest.mark.parametrize("n", [*range(1, 40), 100, 10**4, 10**7])
def test_stirling_errors(n):
    true = loggamma(mpf(n) + 1) - ((n + mpf(1) / 2) * oracle.log(mpf(n)) - n + oracle.log(2 * pi) / 2)
    assert abs(binomial._stirling_error(n) - true) <= 2.0**-52


@st.composite
def tails(draw):
    """n, k and a p above k/n, from a hair to many deviations, or as near to one as floats come."""
    n = draw(st.integers(2, 20_000))
    k = draw(st.one_of(st.integers(1, n - 1), st.integers(1, min(9, n - 1))))
    if draw(st.booleans()):
        p = 1 - (1 - k / n) * 10.0 ** -draw(st.floats(0.01, 15))
    else:
        p = k / n + 10.0 ** draw(st.floats(-3, 1.5)) * math.sqrt(k * (n - k) / n) / n
    return n, k, min(max(p, math.nextafter(k / n, 1)), 1 - 2.0**-53)


@EXACT
@given(tails())
def test_mass_is_within_its_margin(case):
    n, k, p = case
    value, margin = binomial.log_mass(n, k, p, 1.0 - p)
    assert abs(value - oracle.log_mass(n, k, p)) <= margin
    assert margin <= 1e-13 * (abs(value) + n * abs(p - k / n) + 20)
    mirrored, margin = binomial.log_mass(n, n - k, 1.0 - p, p)
    assert abs(mirrored - oracle.log_mass(n, k, p)) <= margin


@EXACT
@given(tails(), st.sampled_from([1e-2, 1e-6, 1e-11]))
def test_tail_factors_enclose_the_truth(case, precision):
    n, k, p = case
    odds = (1.0 - p) / p
    true = oracle._sum_below(n, k, Fraction(1 - Fraction(p)) / Fraction(p))
    low, high = binomial.tail_factor(n, k, odds, precision)
    assert low <= true <= high
    assert high - low <= (3 * precision + 1e-9) * low
    low, high = binomial._series(n, k, odds)
    assert low <= true <= high <= low * (1 + 1e-9)


@EXACT
@given(tails())
def test_upper_tails_are_at_or_a_hair_above_the_truth(case):
    """Far above the mean, where a p-value matters, and (mirrored) below it."""
    n, k, p = case
    for errors, rate in ((n - k, 1.0 - p), (k, p)):
        true = oracle.exp(oracle.log_more(n, errors - 1, rate))
        found = binomial.binomial_upper_tail(errors, n, rate)
        assert true <= found + 1e-300
        assert found <= true * (1 + 1e-8) + 1e-300


def test_the_ends_of_the_upper_tail():
    assert binomial.binomial_upper_tail(0, 9, 0.3) == 1.0
    assert binomial.binomial_upper_tail(3, 9, 0.0) == 0.0
    assert binomial.binomial_upper_tail(9, 9, 1.0) == 1.0
    assert binomial.binomial_upper_tail(9, 9, 0.5) == pytest.approx(2.0**-9, rel=1e-12)


@EXACT
@given(tails(), st.integers(1, 40))
def test_fractions_of_any_depth_enclose_the_truth(case, depth):
    n, k, p = case
    levels = min(depth, k)
    least, greatest = binomial._fraction(n, k, (1.0 - p) / p, levels)
    true = 1 / oracle._sum_below(n, k, Fraction(1 - Fraction(p)) / Fraction(p))
    slack = (10 * levels + 16) * 2.0**-53 * (1 + 1 / binomial.decay(n, k, (1.0 - p) / p))
    assert least * (1 - slack) <= true <= greatest * (1 + slack)


@pytest.mark.parametrize("start", [0.0, 0.2, 0.3, 0.5, 0.999999, 1.0])
@pytest.mark.parametrize("power", [1, 2, 3, 0.3])
@pytest.mark.parametrize("slope", [1e-3, 1.0, 1e3, 0.0, -1.0])
def test_the_outer_end_does_not_depend_on_good_slopes(start, power, slope):
    """For any slopes and start the result is at or just above the root."""
    root = 0.3
    result = point_above_root(lambda p: (p**power - root**power, slope), 0.0, start)
    assert result**power >= root**power
    if slope != 1e3:  # a slope that is far too steep ends the search early, on the safe side
        assert result <= root + 1e-9


def test_a_function_that_never_confirms_ends_at_one():
    assert point_above_root(lambda p: (-1.0, 1.0), 0.2, 0.5) == 1.0


@EXACT
@given(
    st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_the_interval_is_that_of_clopper_and_pearson_rounded_outwards(case, level):
    k, n = case
    side = (1 - level) / 2
    low, high = binomial.clopper_pearson(k, n, level)
    true_low = beta.ppf(side, k, n - k + 1) if k else 0.0
    true_high = beta.ppf(1 - side, k + 1, n - k) if k < n else 1.0
    assert true_low - 2e-9 <= low <= true_low + 1e-12
    assert true_high - 1e-12 <= high <= true_high + 2e-9
