"""Whole runs of CoP2L on streams whose true risk is a finite sum: how often does a certificate fail?"""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from cop2l.certify.learner import CoP2L
from cop2l.models import build
from cop2l.streams.clouds import synthetic

DELTA = 0.3
SAME = {"k": 4, "lr": 0.1, "batch": 64, "omega": 2.0, "delta": DELTA}
CONFIGS = {
    "threshold": {"prior": 0.0, "buffer": "threshold", "stop": "preference", "epochs": 5, "memory": 150, "max_iterations": 8},
    "uniform": {"preset": "paper", "epochs": 5, "memory": 60, "max_iterations": 8},
    "witness": {
        "buffer": "witness", "stop": "combined", "claim": "combined", "prior": 0.5, "prior_memory": 0.5, "prior_epochs": 5,
        "epochs": 2, "memory": 150, "max_iterations": 4,
    },
}  # fmt: skip
RUNS = {"threshold": 50, "uniform": 40, "witness": 60}
KINDS = [
    ("threshold", "kl"), ("threshold", "kl-tight"), ("threshold", "preference"), ("threshold", "buffer"),
    ("uniform", "kl"), ("uniform", "kl-tight"),
    ("witness", "kl-tight"), ("witness", "preference"), ("witness", "combined"), ("witness", "buffer"),
]  # fmt: skip


def run(seed, tasks, scenario="domain-incremental", n=400, fixed=True, **config):
    """One run: for each certificate that it issues, for each task, (risk, bounds, record)."""
    stream = synthetic(
        tasks=tasks, n=n, dimensions=2, levels=7, noise=1.5, scenario=scenario, seed=seed, n_test=1, problem=3
    )
    model = build("linear", inputs=(2,), classes=stream.classes, seed=0)
    learner = CoP2L(model, scenario=scenario, seed=seed, tasks=tasks if fixed else None, **{**SAME, **config})
    issued = []
    for x, y, t in stream:
        learner.learn(x, y, classes=stream.heads[t - 1])
        if t < tasks and fixed:
            continue
        certificate = learner.certify({task.t: (task.x, task.y) for task in stream[:t]})
        risks = [stream.risk(lambda x, s=s: learner.predict(x, task=s), s) for s in range(1, t + 1)]
        issued.append([(risk, r.bounds, r) for risk, r in zip(risks, certificate.tasks, strict=True)])
    return issued


@cache
def simulated(config):
    scenarios = ("domain-incremental", "task-incremental")
    return [run(seed, 2, scenarios[seed % 4 == 3], **CONFIGS[config])[0] for seed in range(RUNS[config])]


def violations(config, bound):
    """In how many runs any task's risk is above its bound."""
    return sum(
        any(risk > bound(bounds, record) for risk, bounds, record in tasks) for tasks in simulated(config)
    )


def allowed(count, runs):
    """Whether as many violations are no sign of a rate above delta, at level 1e-4."""
    return binom.sf(count - 1, runs, DELTA) > 1e-4


@pytest.mark.parametrize(("config", "kind"), KINDS)
def test_certificates_fail_at_most_at_the_rate_that_they_state(config, kind):
    found = violations(config, lambda bounds, record: bounds[kind].value)
    print(f"{config} {kind}: {found} violations in {RUNS[config]} runs of two tasks at delta {DELTA}")
    assert allowed(found, RUNS[config])


@pytest.mark.parametrize("config", RUNS)
def test_the_share_of_errors_alone_would_be_found_out(config):
    """The simulation has power: the empirical error as if it were a bound fails far more often than delta allows."""
    found = violations(config, lambda bounds, r: r.errors / (r.n - r.compression - r.evicted))
    print(f"{config}, empirical error: {found} violations in {RUNS[config]} runs")
    assert not allowed(found, RUNS[config])


def test_all_certificates_ever_issued_hold_together():
    config = {**CONFIGS["witness"], "prior_epochs": 2, "max_iterations": 2}
    runs = [run(seed, 3, n=200, fixed=False, **config) for seed in range(25)]
    found = sum(
        any(risk > bounds["combined"].value for certificate in issued for risk, bounds, _ in certificate)
        for issued in runs
    )
    print(f"anytime combined: {found} violations in {len(runs)} runs of three certificates")
    assert all(len(issued) == 3 for issued in runs)
    assert allowed(found, len(runs))


@pytest.mark.parametrize(
    ("config", "kind", "factor"), [("threshold", "preference", 3.0), ("witness", "combined", 2.0)]
)
def test_certificates_are_sharp(config, kind, factor):
    """On the case that these runs are (linear head, two tasks of 400, risks of 10 to 20 %)."""
    ratios = [bounds[kind].value / risk for tasks in simulated(config) for risk, bounds, _ in tasks]
    values = [bounds[kind].value for tasks in simulated(config) for _, bounds, _ in tasks]
    print(f"{config} {kind}: median bound {np.median(values):.3f}, {np.median(ratios):.2f} times the risk")
    assert max(values) < 1
    assert np.median(ratios) <= factor
