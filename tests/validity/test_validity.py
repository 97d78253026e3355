"""A small part of `make validity`: certificates hold in simulation, and controls fail."""

import json

import numpy as np
import pytest
from family_cases import exact_cases
from marks_and_memory import (
    ALLOWED,
    OVERFLOWS,
    joint_p,
    largest_overflow,
    mark_p_values,
    over_seeds,
    simulated_overflow,
)
from page import faults, page
from scipy.stats import binom, binomtest
from whole_runs import (
    ALL,
    CONTROLS,
    DELTA,
    FACTORS,
    LEVEL,
    METHODS,
    SCENARIOS,
    SHARP,
    Run,
    above,
    control,
    holdout,
    print_rate,
    rate,
    run_setting,
    settings,
    sharp,
    sharp_rate,
)

from record import PAGE, RESULTS

FAILING = [name for name in CONTROLS if "fitted" in name or "best" in name or "arranged" in name]


def test_a_rate_is_judged_as_it_should_be():
    lucky, unlucky = ([Run(i < count, (1.0,)) for i in range(100)] for count in (40, 50))
    assert not above(rate(lucky))
    assert above(rate(unlucky))
    assert rate(unlucky)["interval"] == pytest.approx(binomtest(50, 100).proportion_ci(), abs=1e-9)


@pytest.mark.parametrize("buffer", FACTORS["buffer"])
def test_certificates_of_all_settings_hold_as_often_as_they_state(buffer):
    sampled = [setting for setting in settings() if setting["buffer"] == buffer]
    sampled = [sampled[i] for i in np.random.default_rng(1).permutation(len(sampled))[:16]]
    for name, levels in FACTORS.items():
        if name not in ("kind", "buffer"):
            assert {setting[name] for setting in sampled} == set(levels), f"no run has every level of {name}"
    rates = rate([run_setting(setting, {}, 10**5 + seed) for seed, setting in enumerate(sampled)])
    assert not above(print_rate(f"{buffer} buffer", rates))


@pytest.mark.parametrize(("kind", "tasks", "picks"), [case for case in SHARP if case[1:] == (3, 0)])
def test_bounds_fail_exactly_as_often_as_theory_says_where_they_are_sharp(kind, tasks, picks):
    rates = print_rate(kind, rate([sharp(kind, tasks, picks, 10**5 + seed) for seed in range(40)]))
    assert sharp_rate(kind, tasks, picks) <= DELTA
    assert not above(rates)
    assert binomtest(rates["violated"], rates["runs"], sharp_rate(kind, tasks, picks)).pvalue > LEVEL


@pytest.mark.parametrize("anytime", [False, True])
def test_a_hold_out_holds_for_any_method(anytime):
    cases = [(METHODS[seed % 4], SCENARIOS[seed % 3], anytime, {}, seed) for seed in range(36)]
    assert not above(print_rate("hold-out", rate([holdout(*case) for case in cases])))


@pytest.mark.parametrize("kind", FACTORS["kind"])
def test_all_families_hold_at_once(kind):
    sampled = [setting for setting in settings() if setting["kind"] == kind]
    sampled = [sampled[i] for i in np.random.default_rng(2).permutation(len(sampled))[:5]]
    runs = [run_setting(setting, ALL, 2 * 10**5 + seed) for seed, setting in enumerate(sampled)]
    assert not above(print_rate(f"all families, {kind}", rate(runs)))
    assert sum(len(run.ratios) for run in runs) > 40  # statements of something that can happen


def test_all_families_hold_for_a_hold_out_of_any_method():
    cases = [(METHODS[seed % 4], SCENARIOS[seed % 3], seed % 5 < 2, ALL, seed) for seed in range(24)]
    assert not above(print_rate("all families, hold-out", rate([holdout(*case) for case in cases])))


def test_what_the_proofs_for_families_need_cannot_be_left_out():
    cases = exact_cases()
    for name, case in cases.items():
        print(
            f"{name}: {case['broken']:.3f} at {case['delta']}; as it should be {case['as it should be']:.3f}"
        )
        assert case["broken"] > case["delta"] >= case["as it should be"], name
    exactly = ("average: no exception from N - 1 errors on", "average: more than a quarter of delta")
    assert [round(cases[name]["broken"], 3) for name in exactly] == [0.284, 0.381]


@pytest.mark.parametrize("name", FAILING)
def test_what_breaks_an_assumption_is_found_out(name):
    """The controls that fail most; `make validity` has all of them, and the same runs unbroken."""
    rates = rate([control(name, True, 10**5 + seed) for seed in range(16)])
    assert above(print_rate(name, rates))


def test_the_memory_overflows_at_most_once_in_a_hundred():
    assert 0 < largest_overflow(range(1, 3000, 60)) <= ALLOWED
    for memory, sizes in OVERFLOWS.items():
        for count in simulated_overflow(memory, sizes, seeds=200):
            assert binom.sf(count - 1, 200, ALLOWED) > LEVEL
    assert min(simulated_overflow(200, OVERFLOWS[200], seeds=200, by_marks=True)) > 100


def test_marks_are_uniform_and_independent():
    p_values = mark_p_values(seeds=500)
    assert min(p_values.values()) > LEVEL, p_values


def test_marks_that_depend_on_each_other_would_be_found_out():
    column = over_seeds("mark", 1, rows=20, seeds=100)
    assert joint_p(column, np.roll(column, 1)) > LEVEL
    assert joint_p(column, column) < LEVEL
    assert joint_p(column, np.sort(column)) > LEVEL  # only equality row by row counts
    assert joint_p(np.sort(column), np.sort(np.roll(column, 1))) < LEVEL


def test_the_recorded_results_have_no_fault_and_the_page_shows_them():
    results = json.loads(RESULTS.read_text())
    assert not faults(results)
    assert PAGE.read_text() == page(results), "run: make validity, or tests/validity/record.py --page"


def test_a_fault_in_the_results_is_named():
    results = json.loads(RESULTS.read_text())
    results["sharp"][0] |= {"violated": results["sharp"][0]["runs"]}
    next(iter(results["controls"].values()))["broken"]["violated"] = 0
    next(iter(results["programs"]["controls"].values()))["broken"]["violated"] = 0
    results["programs"]["sharp"][0] |= {"violated": results["programs"]["sharp"][0]["runs"]}
    case = next(iter(results["families"]["cases"].values()))
    case["broken"], case["as it should be"] = 0.0, 1.0
    results["overflow"]["largest chance"] = 0.02
    results["marks"]["neighbouring rows"] = 0.0
    sentences = faults(results)
    assert [sentence.split(":")[0] for sentence in sentences[:4]] == [
        *2 * ["VIOLATED beyond delta"],
        *2 * ["The control does not fail"],
    ]
    assert len(sentences) == 8
    assert all(sentence in page(results) for sentence in sentences)
