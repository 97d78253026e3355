"""The bounds of programs that round otherwise than their model hold as often as they state; what must fail does."""

import numpy as np
import pytest
from programs import CONTROLS, control, recounted, recounted_holdout, sharp_program
from scipy.stats import binomtest
from whole_runs import (
    DELTA,
    FACTORS,
    LEVEL,
    METHODS,
    SCENARIOS,
    above,
    print_rate,
    rate,
    settings,
    sharp_rate,
)


def test_bounds_of_rounded_programs_hold():
    some, seen = [], []
    for kind in FACTORS["kind"]:
        own = [setting for setting in settings() if setting["kind"] == kind]
        some += [own[at] for at in np.random.default_rng(3).permutation(len(own))[:2]]
    found = rate([recounted(setting, 3 * 10**5 + seed, seen) for seed, setting in enumerate(some)])
    assert not above(print_rate("programs", found))
    assert sum(seen) > len(seen) / 3  # they do make other errors than the model


def test_bounds_of_rounded_programs_hold_for_a_hold_out():
    seen = []
    cases = [(METHODS[seed % 4], SCENARIOS[seed % 3], seed % 5 < 2, seed, seen) for seed in range(12)]
    assert not above(print_rate("programs, hold-out", rate([recounted_holdout(*case) for case in cases])))
    assert any(seen)


@pytest.mark.parametrize("kind", ["combined", "kl-tight"])
def test_bounds_of_programs_fail_exactly_as_often_as_theory_says_where_they_are_sharp(kind):
    found = print_rate(kind, rate([sharp_program(kind, 1, 10**5 + seed) for seed in range(30)]))
    assert sharp_rate(kind, 1, 0) <= DELTA
    assert not above(found)
    assert binomtest(found["violated"], found["runs"], sharp_rate(kind, 1, 0)).pvalue > LEVEL


@pytest.mark.parametrize("name", CONTROLS)
def test_what_the_proof_for_programs_needs_cannot_be_left_out(name):
    assert above(print_rate(name, rate([control(name, True, 10**5 + seed) for seed in range(12)])))
