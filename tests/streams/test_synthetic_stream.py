"""The risks of the synthetic stream are exact."""

import itertools
import math

import numpy as np
import pytest
import torch

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams import synthetic


def by_hand(stream, centres, predict, task, per_task, levels, noise):
    """The risk as a sum over classes and grid points, one coordinate's chance at a time."""
    total = []
    for place in range(per_task):
        label = (task - 1) * per_task + place
        for point in itertools.product(range(levels), repeat=len(centres[0])):
            chance = 1 / per_task
            for v, c in zip(point, centres[label], strict=True):
                weights = [math.exp(-abs(w - c) / noise) for w in range(levels)]
                chance *= weights[v] / math.fsum(weights)
            x = np.array([[2 * v / (levels - 1) - 1 for v in point]], np.float32)
            total.append(chance * (int(predict(x)[0]) != label))
    return math.fsum(total)


def test_risk_is_the_sum_over_the_grid():
    stream = synthetic(tasks=2, n=5, dimensions=2, levels=3, noise=0.8, problem=3)
    weights = np.random.default_rng(0).normal(size=(2, 4))

    def predict(x):
        return (x @ weights).argmax(axis=1)

    # A class's centre is its most likely grid point.
    centres = [
        np.rint((stream.support[stream.probability[c // 2, :, c].argmax()] + 1) / 2 * 2).astype(int)
        for c in range(4)
    ]
    for task in (1, 2):
        expected = by_hand(stream, centres, predict, task, 2, 3, 0.8)
        assert stream.risk(predict, task) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scenario", streams.SCENARIOS)
def test_empirical_errors_agree_with_the_risk(scenario):
    n = 40_000
    stream = synthetic(tasks=2, n=n, n_test=10, scenario=scenario)
    weights = np.random.default_rng(1).normal(size=(4, stream.classes))
    for x, y, t in stream:
        head = list(stream.heads[t - 1])

        def predict(inputs, head=head):
            return np.array(head)[(inputs @ weights[:, head]).argmax(axis=1)]

        risk = stream.risk(predict, t)
        errors = float((predict(x) != y).mean())
        assert abs(errors - risk) < 4.5 * math.sqrt(risk * (1 - risk) / n)
        assert stream.best_risk(t) <= risk


def test_probabilities_and_the_best_classifier():
    stream = synthetic(tasks=3, n=10)
    np.testing.assert_allclose(stream.probability.sum(axis=(1, 2)), 1, atol=1e-12)
    for t in (1, 2, 3):
        best = stream.probability[t - 1].argmax(axis=1)
        assert stream.risk(lambda _, best=best: best, t) == pytest.approx(stream.best_risk(t), abs=1e-12)
        assert 0.01 < stream.best_risk(t) < 0.2
    assert stream.risk(lambda x: torch.zeros(len(x), dtype=torch.int64), 2) == pytest.approx(1)


def test_the_seed_draws_the_sample_and_the_problem_the_distribution():
    first, again, sample, problem = (
        synthetic(n=50, **options) for options in ({}, {}, {"seed": 1}, {"problem": 1})
    )
    assert (first[0].x == again[0].x).all()
    assert (first[0].x != sample[0].x).any()
    assert (first.probability == sample.probability).all()
    assert (first.probability != problem.probability).any()
    assert (synthetic(n=50)[0].x == synthetic(n=80)[0].x[:50]).all(), "more examples extend the sample"


def test_slices_know_their_risk():
    stream = synthetic()
    assert stream[1:].risk(lambda x: [2] * len(x), 2) == pytest.approx(0.5)


def test_by_name_with_options():
    stream = streams.load("synthetic", tasks=2, n=30, classes_per_task=3, scenario="task-incremental", seed=4)
    assert (len(stream), stream.classes, len(stream[0].y), stream.scenario) == (2, 6, 30, "task-incremental")
    with pytest.raises(UserError, match="did you mean 'noise'"):
        streams.load("synthetic", noisy=1)
    for options in (
        {"noise": 0},
        {"n": 0},
        {"levels": 1},
        {"dimensions": 10**7, "levels": 10**7},
        {"tasks": 500},
        {"order_seed": 1},
        {"class_seed": 1},
        {"order": "reversed"},
    ):
        with pytest.raises(UserError):
            streams.load("synthetic", **options)
