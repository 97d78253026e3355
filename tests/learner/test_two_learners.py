"""Initial weights know nothing of the data: a module that two learners share is marked, trained weights are a doubt."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from cop2l import CoP2L
from cop2l.errors import Advice
from cop2l.learner.advice import OTHER_WEIGHTS, TRAINED_BEFORE
from cop2l.methods import method
from cop2l.models import build

X = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
OPTIONS = {"preset": "picking", "memory": 20, "max_iterations": 2, "lr": 0.1, "tasks": 1}


def linear():
    return build("linear", inputs=(6,), classes=2)


def own():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def learned(model, **options):
    """A learner of one task, and what it warned of."""
    learner = CoP2L(model, **OPTIONS | options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.learn(X, Y)
    return learner, [str(warning.message) for warning in caught]


def trained_by_cop2l(model):
    learned(model)
    return model


def trained_by_a_baseline(model):
    method("replay")(model, epochs=1).learn(X, Y)
    return model


REUSED = {
    "the same module": lambda model: trained_by_cop2l(model),
    "that a baseline trained": lambda model: trained_by_a_baseline(model),
    "a copy": lambda model: copy.deepcopy(trained_by_cop2l(model)),
    "with a new head": lambda model: nn.Sequential(trained_by_cop2l(model), nn.Linear(2, 2)),
}


@pytest.mark.parametrize("make", [linear, own])
@pytest.mark.parametrize("reuse", REUSED)
def test_a_module_that_another_learner_trained_marks_the_certificate(make, reuse):
    """As when the cell of a notebook is run again with another seed."""
    learner, warned = learned(REUSED[reuse](make()), seed=1)
    assert TRAINED_BEFORE in warned
    assert learner.certify({1: (X, Y)}).not_valid == (TRAINED_BEFORE,)


@pytest.mark.parametrize("make", [linear, own])
def test_new_modules_copies_before_learning_and_loaded_learners_are_not_marked(make, tmp_path):
    model = make()
    early = copy.deepcopy(model)
    learner, warned = learned(model)
    learner.save(tmp_path)
    for other in (make(), early):
        learner, again = learned(other)
        assert again == warned
        assert learner.state.not_valid == ()
    loaded = CoP2L.load(tmp_path, model)
    assert loaded.certify({1: (X, Y)}).not_valid == ()


def test_trained_weights_of_a_built_in_model_are_a_doubt_unless_committed_to():
    model = linear()
    model.head.weight.data.mul_(2)
    assert OTHER_WEIGHTS in learned(copy.deepcopy(model))[1]
    assert OTHER_WEIGHTS not in learned(copy.deepcopy(model), commitment="0" * 64)[1]
    assert OTHER_WEIGHTS not in learned(linear())[1]
    assert OTHER_WEIGHTS not in learned(linear().double())[1]


def test_a_learner_that_failed_has_trained_nothing():
    model = linear()
    learner = CoP2L(model, **OPTIONS)

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(X, Y, progress=stop)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Another learner", Advice)
        learner.learn(X, Y)
    assert learner.state.not_valid == ()
