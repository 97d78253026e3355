"""Simulated bounds of programs that round otherwise than their model hold; controls fail."""

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
    sampled, differs = [], []
    for kind in FACTORS["kind"]:
        of_kind = [setting for setting in settings() if setting["kind"] == kind]
        sampled += [of_kind[i] for i in np.random.default_rng(3).permutation(len(of_kind))[:2]]
    rates = rate([recounted(setting, 3 * 10**5 + seed, differs) for seed, setting in enumerate(sampled)])
    assert not above(print_rate("programs", rates))
    assert sum(differs) > len(differs) / 3  # the errors of program and model differ


def test_bounds_of_rounded_programs_hold_for_a_hold_out():
    differs = []
    cases = [(METHODS[seed % 4], SCENARIOS[seed % 3], seed % 5 < 2, seed, differs) for seed in range(12)]
    assert not above(print_rate("programs, hold-out", rate([recounted_holdout(*case) for case in cases])))
    assert any(differs)


@pytest.mark.parametrize("kind", ["preference", "kl"])
def test_bounds_of_programs_fail_exactly_as_often_as_theory_says_where_they_are_sharp(kind):
    rates = print_rate(kind, rate([sharp_program(kind, 1, 10**5 + seed) for seed in range(30)]))
    assert sharp_rate(kind, 1, 0) <= DELTA
    assert not above(rates)
    assert binomtest(rates["violated"], rates["runs"], sharp_rate(kind, 1, 0)).pvalue > LEVEL


@pytest.mark.parametrize("name", CONTROLS)
def test_what_the_proof_for_programs_needs_cannot_be_left_out(name):
    assert above(print_rate(name, rate([control(name, True, 10**5 + seed) for seed in range(12)])))
