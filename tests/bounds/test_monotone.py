"""Lemmas 4 and 5 of docs/theory.md, on repeated rows: a bound falls with a right row and rises with a wrong one.

The signs are those of the oracle's functions, at 50 digits. Each increases in the bound, so the larger function has the smaller
root.
"""

import math
from fractions import Fraction

import bounds_oracle as oracle
import pytest

from cop2l import bounds

SIZES = [(k, n) for n in (1, 2, 3, 7, 40, 300) for k in sorted({0, 1, n // 3, n - 1}) if k < n]
POINTS = [Fraction(j, 32) for j in range(1, 32)]
TINY = oracle.mpf("1e-40")


def binomial(k, n, v):
    return -oracle.log_at_most(n, k, v)


def preference(k, n, v):
    return oracle.log(oracle.preference_sum(k, n, v))


def kl(k, n, v):
    return n * oracle.kl(Fraction(k, n), v)


@pytest.mark.parametrize("function", [binomial, preference, kl])
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_a_bound_falls_with_a_right_row_and_rises_with_a_wrong_one(function, k, n):
    for v in POINTS:
        if function is not kl or v >= Fraction(k, n):  # from there on it increases
            assert function(k, n + 1, v) >= function(k, n, v) - TINY, f"a right row, at {v}"
        if function is not kl or v >= Fraction(k + 1, n + 1):
            assert function(k + 1, n + 1, v) <= function(k, n, v) + TINY, f"a wrong row, at {v}"


def sure_rows_raise_the_pooled_bound(a, x, b, c, share, *, exception=True):
    """Whether a U_a(x) + b <= N U_N(x + b), N = a + b + c: with b sure errors and c sure right rows; U_n(x) = 1 from n - 1 on.

    The left side is lowered by the rounding of U_a(x).
    """
    N, errors, u = a + b + c, x + b, Fraction(1)
    if x < a - exception:
        u = Fraction(bounds.binomial_tail_inverse(x, a, math.log(share))) - oracle.HAIR
    p = (a * u + b) / N
    if errors >= N - exception or p <= 0:
        return True
    return p < 1 and oracle.log_at_most(N, errors, p) >= oracle.log(oracle.real(share))


def all_raise_it(share, **changed):
    counts = [(a, x) for a in (0, 1, 2, 3, 10, 100) for x in {0, 1, a // 2, a - 2, a - 1, a} if 0 <= x <= a]
    added = [(b, c) for b in (0, 1, 2, 7) for c in (0, 1, 2, 30) if b + c]
    return all(
        sure_rows_raise_the_pooled_bound(*n, *sure, share, **changed) for n in counts for sure in added
    )


@pytest.mark.parametrize("share", [0.25, 0.05, 1e-6])
def test_a_pooled_bound_times_its_rows_rises_with_sure_rows(share):
    assert all_raise_it(share)


def test_that_needs_a_share_of_at_most_a_quarter_and_a_bound_of_one_from_the_last_but_one_error_on():
    assert not all_raise_it(0.35)
    assert not all_raise_it(0.25, exception=False)
