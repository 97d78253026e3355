"""Advice: said in a sentence when it should be, not said when not, and nothing changes by it."""

import warnings

import numpy as np
import pytest
from learner_cases import model_of

from cop2l import CoP2L
from cop2l.cli import main
from cop2l.errors import Advice

GOOD = {"memory": 60, "optimiser": "adam", "lr": 0.05, "epochs": 20, "max_iterations": 2}


def easy(seed=0, n=120):
    """Two classes that a line separates."""
    y = np.random.default_rng(seed).integers(0, 2, size=n)
    return (np.random.default_rng(seed).normal(size=(n, 4)) + 4 * y[:, None] - 2).astype(np.float32), y


def advice(learner, x, y, **arguments):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        learner.learn(x, y, **arguments)
    assert all(warning.category is Advice for warning in warned)
    assert all(warning.filename == __file__ for warning in warned)  # the line that called learn
    return [str(warning.message) for warning in warned]


def a_learner(**changes):
    return CoP2L(model_of("linear", 2, inputs=4), **{**GOOD, **changes})


def test_nothing_is_said_where_all_is_well():
    learner = a_learner()
    assert [advice(learner, *easy(seed)) for seed in (0, 1)] == [[], []]


@pytest.mark.parametrize("stop", ["preference", "none"])
def test_underfitting_says_what_to_change(stop):
    x, y = easy()
    slow = {"lr": 1e-6, "k": 32, "stop": stop}
    (sentence,) = advice(a_learner(**slow), -x, y)
    assert "of the examples of task 1: it underfits; try another lr or more epochs" in sentence
    assert "counts as another attempt" in sentence
    assert "adam" not in sentence  # it is used already
    (sentence,) = advice(a_learner(**slow, optimiser="sgd"), -x, y)
    assert ", adam as the optimiser, or inputs of a scale near 1" in sentence


def test_the_command_line_shows_it_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("always", Advice)
        assert main(["run", "synthetic", "method=cop2l", "lr=1e-6", "--out", "run"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "it underfits" in line]
    assert lines
    assert all(line.startswith("Warning: The model misclassifies") for line in lines)
