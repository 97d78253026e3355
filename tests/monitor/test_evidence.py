"""The evidence: against the formula at high precision, as a supermartingale, and how often true claims are refuted."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cop2l.monitor import evidence
from cop2l.monitor.evidence import alternatives, log_evidence, start_times, starts_due

ALPHA = 0.1


def oracle(bound: float, batches: list[list[int]]) -> mpmath.mpf:
    """E_n from docs/theory.md, example by example: every start has its own product for every alternative."""
    with mpmath.workdps(60):
        b, qs = mpmath.mpf(bound), [mpmath.mpf(q) for q in alternatives(bound)]
        times, n = start_times().tolist(), 0
        products = [(mpmath.mpf(1) / 2, [mpmath.mpf(1)] * len(qs))]
        for batch in batches:
            for x in batch:
                ratios = [q / b if x else (1 - q) / (1 - b) for q in qs]
                products = [(w, [p * r for p, r in zip(ps, ratios, strict=True)]) for w, ps in products]
            before, n = n, n + len(batch)
            now = sum(before < time <= n for time in times)
            if now:
                products.append((mpmath.mpf(now) / (2 * len(times)), [mpmath.mpf(1)] * len(qs)))
        waiting = sum(time > n for time in times) / mpmath.mpf(2 * len(times))
        return sum(w * sum(ps) / len(qs) for w, ps in products) + waiting


def counted(bound: float, batches: list[list[int]]) -> float:
    n = errors = 0
    at, starts = [], []
    for batch in batches:
        before, n, errors = n, n + len(batch), errors + sum(batch)
        if starts_due(before, n):
            at.append(n)
            starts.append(errors)
    return float(log_evidence(bound, n, errors, at, starts))


BOUNDS = st.floats(1e-9, 1 - 1e-9) | st.sampled_from([1e-12, 0.01, 0.05, 0.3, 0.4999999, 0.5, 0.9, 1 - 1e-12])


@settings(max_examples=150, deadline=None)
@given(BOUNDS, st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=6))
def test_it_is_the_formula_rounded_down(bound, batches):
    expected = mpmath.log(oracle(bound, batches))
    value = counted(bound, batches)
    assert value <= expected
    assert expected - value <= 1e-9 * (1 + abs(expected))


def test_large_counts_are_rounded_down_and_do_not_overflow():
    for bound, n, errors in [
        (0.05, 10**9, 10**8),
        (1e-6, 10**9, 10**9),
        (0.3, 10**7, 0),
        (0.5, 10**6, 500_700),
    ]:
        with mpmath.workdps(60):
            b, qs = mpmath.mpf(bound), [mpmath.mpf(q) for q in alternatives(bound)]
            logs = [errors * mpmath.log(q / b) + (n - errors) * mpmath.log((1 - q) / (1 - b)) for q in qs]
            total = sum(mpmath.exp(log) for log in logs) / (2 * len(qs)) + mpmath.mpf(1) / 2
            expected = mpmath.log(total)
        value = float(log_evidence(bound, n, errors))
        assert value <= expected
        assert expected - value <= 1e-4 * (1 + abs(expected) * 1e-6)


def test_alternatives_lie_above_the_bound_and_starts_share_one_half():
    for bound in (1e-12, 1e-3, 0.05, 0.5, 0.99, 1 - 1e-12):
        rates = alternatives(bound)
        assert rates
        assert all(bound < q < 1 for q in rates)
    assert len(start_times()) == evidence.STARTS == starts_due(0, 10**18)


# ---- simulation: many streams at once, in batches of 20

STREAMS, LENGTH, BATCH = 600, 1500, 20


def alarms(rate_of, bound=0.1, seed=0, streams=STREAMS, length=LENGTH) -> np.ndarray:
    """The streams that ever reach 1/ALPHA; rate_of(uniform, last error, log evidence) gives the conditional mean."""
    rng = np.random.default_rng(seed)
    errors, last_error = np.zeros(streams, np.int64), np.zeros(streams)
    evidence_now, alarmed = np.zeros(streams), np.zeros(streams, bool)
    at, starts = [], []
    for n in range(1, length + 1):
        last_error = rng.random(streams) < rate_of(rng.random(streams), last_error, evidence_now)
        errors = errors + last_error
        if n % BATCH == 0:
            if starts_due(n - BATCH, n):
                at.append(n)
                starts.append(errors)
            evidence_now = log_evidence(
                bound, n, errors, at, np.stack(starts, 1) if starts else np.empty((streams, 0))
            )
            alarmed |= evidence_now >= -math.log(ALPHA)
    return alarmed


def too_many(alarmed: np.ndarray) -> bool:
    """More than ALPHA, beyond three deviations."""
    return bool(alarmed.mean() > ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / len(alarmed)))


def half_after_an_error(uniform, last, now):
    return np.where(last, 0.05, 0.1)


def resting_when_accused(uniform, last, now):
    """At the bound while the evidence is between, far below it otherwise: dependent on all of the past."""
    return np.where((now > -2) & (now < 2), 0.1, 0.02)


def a_random_rate(uniform, last, now):
    return 0.1 * uniform


RATES = {
    "at the bound": lambda uniform, last, now: 0.1,
    "half after an error": half_after_an_error,
    "resting when accused": resting_when_accused,
    "a random rate": a_random_rate,
}


@pytest.mark.parametrize("name", RATES)
def test_a_true_claim_is_refuted_with_probability_alpha_at_most(name):
    assert not too_many(alarms(RATES[name]))


def test_a_false_claim_is_refuted():
    assert alarms(lambda uniform, last, now: 0.15, streams=200).mean() > 0.99


def test_drift_after_long_good_service_is_found():
    steps = iter(range(10**9))

    def late(uniform, last, now):
        return 0.02 if next(steps) < 5000 else 0.3

    assert alarms(late, streams=100, length=5400).mean() > 0.99


# ---- controls: what docs/theory.md forbids


def test_control_alternatives_below_the_bound_refute_claims_that_hold(monkeypatch):
    monkeypatch.setattr(evidence, "alternatives", lambda bound: (0.01, 0.02, 0.05, 0.2, 0.4))
    assert too_many(alarms(lambda uniform, last, now: 0.02, streams=200))


def test_control_beginning_again_after_each_window():
    windows = [alarms(RATES["at the bound"], seed=seed, streams=300, length=300) for seed in range(60)]
    assert too_many(np.any(windows, 0))
    assert not too_many(windows[0])


def test_control_good_news_that_comes_later():
    """Errors are reported at once, right answers 200 examples later."""
    rng, delay, streams = np.random.default_rng(3), 200, 300
    is_error = rng.random((streams, 1000)) < 0.1
    alarmed = np.zeros(streams, bool)
    for end in range(BATCH, 1001, BATCH):
        errors = is_error[:, :end].sum(1)
        right = (~is_error[:, : max(0, end - delay)]).sum(1)
        for stream in range(streams):
            n = int(errors[stream] + right[stream])
            alarmed[stream] |= log_evidence(0.1, n, int(errors[stream])) >= -math.log(ALPHA)
    assert too_many(alarmed)
