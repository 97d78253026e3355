"""The scale of the inputs, set from the prior part of the first task and from nothing else."""

import numpy as np
import pytest
import torch
from torch import nn

from cop2l import CoP2L, verify
from cop2l.certify.prior import prior_part, scale_from
from cop2l.errors import UserError
from cop2l.kernel.exact import certified_rows
from cop2l.models import build
from cop2l.models.scale import LIMIT

ADAM = {"preset": "hybrid", "optimiser": "adam", "lr": 0.01, "prior_lr": None, "prior_epochs": 20, "tasks": 1}
QUICK = {**ADAM, "prior_epochs": 2}


def wild(n=240, seed=0):
    """Two classes in six columns: of sizes from 1e-5 to 1e6, far from 0, heavy-tailed, constant, and always 0."""
    draws = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = np.stack(
        [
            1e-5 * (y + draws.normal(size=n) / 4),
            1e6 * (20 + y + draws.normal(size=n) / 4),
            np.exp(4 * draws.normal(size=n)),
            np.full(n, 7.0),
            np.zeros(n),
            (draws.random(n) < 0.1) * 1e3 * y,
        ],
        axis=1,
    )
    return x.astype(np.float32), y


def part_of(x, y=None):
    """The prior part of a task of these examples, if three fifths of it are set aside."""
    return prior_part(x, np.zeros(len(x), np.int64) if y is None else y, 0.6, 0)


def mlp(**options):
    return build("mlp", inputs=(6,), classes=2, seed=0, hidden=16, **options)


def own(seed=0):
    """A module of one's own, as an auditor's function builds it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def test_columns_of_any_size_come_near_one():
    x, y = wild()
    found = scale_from(part_of(x, y))
    scaled = (x - np.array(found["shift"])) * np.array(found["factor"])
    typical = np.median(np.abs(scaled[:, :3]), axis=0)
    assert (typical > 0.3).all()
    assert (typical < 1.5).all()
    assert (scaled[:, 3:5] == 0).all()
    assert np.abs(scaled[:, 5]).max() < 2
    assert all(np.log2(found["factor"]) % 1 == 0)


def test_the_layer_takes_raw_inputs_and_holds_outliers():
    x, y = wild()
    learner = CoP2L.from_prior(mlp(), x, y, **QUICK)
    scaled = learner.model.scale(torch.from_numpy(x))
    assert scaled.abs().max() == LIMIT
    assert scaled[:, :2].abs().max() < LIMIT
    assert learner.description["scale"] == "prior"


def test_columns_that_are_mostly_0_keep_their_weights_among_each_other():
    draws = np.random.default_rng(0)
    sizes = np.array([0.1, 0.2, 0.4, 0.1, 3e5])
    x = (draws.random((200, 5)) < 0.2) * sizes * draws.uniform(0.8, 1.2, (200, 5))
    factor = scale_from(part_of(x))["factor"]
    assert len(set(factor[:4])) == 1
    assert factor[4] < 1e-4 * factor[0]


def test_pictures_have_one_scale_for_each_channel_and_huge_values_stay_finite():
    draws = np.random.default_rng(0)
    x = draws.random((60, 3, 4, 5)) * np.array([255.0, 1.0, 1e-3])[:, None, None]
    found = scale_from(part_of(x))
    assert [len(values) for values in found.values()] == [3, 3]
    assert found["factor"][2] > 64 * found["factor"][1] > 64 * 64 * found["factor"][0]
    assert len(scale_from(part_of(x[:, 0]))["factor"]) == 1
    extreme = np.array([1e-38, 3e38, 1e38])[np.arange(60) % 3][:, None].astype(np.float32)
    assert build("linear", inputs=(1,), classes=2, scale=[*scale_from(part_of(extreme)).values()])


def test_nothing_but_the_prior_part_is_looked_at():
    x, y = wild()
    first = CoP2L.from_prior(mlp(), x, y, **QUICK)
    certified = certified_rows(len(y), 1, first.options)
    x[certified], y[certified] = np.nan, 1
    other = CoP2L.from_prior(mlp(), x, y, **QUICK)
    assert first.state.theta_0.keys() == other.state.theta_0.keys()
    assert all(torch.equal(value, other.state.theta_0[name]) for name, value in first.state.theta_0.items())
    assert (first.options, first.state.data) == (other.options, other.state.data)
    x[~certified] = 2
    assert not torch.equal(
        CoP2L.from_prior(mlp(), x, y, **QUICK).state.theta_0["scale.shift"],
        first.state.theta_0["scale.shift"],
    )


@pytest.mark.parametrize("build_model", [None, own])
def test_learned_saved_and_verified(build_model, tmp_path):
    x, y = wild()
    learner = CoP2L.from_prior(own() if build_model else mlp(), x, y, **ADAM)
    learner.learn(x, y)
    certificate = learner.certify({1: (x, y)})
    assert certificate.bounds[1] < 0.2
    certificate.save(tmp_path / "certificate")
    learner.save(tmp_path / "learner")
    again = CoP2L.load(tmp_path / "learner", build_model and build_model())
    assert torch.equal(again.probabilities(x), learner.probabilities(x))
    assert verify(tmp_path / "learner", {1: (x, y)}, model=build_model).status == "valid"
    verdict = verify(tmp_path / "certificate", {1: (x, y)}, model=build_model)
    assert verdict.status == "valid", verdict
    assert any("scale of the inputs was found again" in sentence for sentence in verdict.checked)
    assert verify(tmp_path / "certificate", model=build_model).status == "cannot tell"


def test_a_scale_from_all_examples_is_found_out(tmp_path):
    x, y = wild()
    model = mlp(scale="prior")
    model.scale.put(**scale_from(prior_part(x, y, 0.99, 0)))
    learner = CoP2L(model, **QUICK)
    learner.learn(x, y)
    learner.certify({1: (x, y)}).save(tmp_path)
    verdict = verify(tmp_path, {1: (x, y)})
    assert (
        "The scale of the inputs is not the one that the prior part of the first task gives."
        in verdict.faults
    )


@pytest.mark.parametrize("model", [lambda: mlp().double(), lambda: mlp(scale="prior")])
def test_honest_scales_are_valid_in_double_precision_and_of_a_model_that_awaits_one(model, tmp_path):
    x, y = wild()
    learner = CoP2L.from_prior(model(), 1.1 * x.astype(np.float64), y, **QUICK)
    learner.learn(1.1 * x.astype(np.float64), y)
    learner.certify({1: (1.1 * x.astype(np.float64), y)}).save(tmp_path)
    verdict = verify(tmp_path, {1: (1.1 * x.astype(np.float64), y)})
    assert verdict.status == "valid", verdict


def test_sparse_inputs_are_verified_as_they_were_learned(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x, y = wild()
    x = sparse.csr_matrix(x)
    learner = CoP2L.from_prior(mlp(), x, y, **QUICK)
    learner.learn(x, y)
    learner.certify({1: (x, y)}).save(tmp_path)
    assert verify(tmp_path, {1: (x, y)}).status == "valid"


def test_only_the_first_task_that_the_scale_comes_from_is_learned(tmp_path):
    x, y = wild(400)
    learner = CoP2L.from_prior(mlp(), x, y, **QUICK)
    learner.save(tmp_path)
    for one in (learner, CoP2L.load(tmp_path)):
        with pytest.raises(UserError, match=r"not the one that CoP2L\.from_prior was given"):
            one.learn(x[:200], y[:200])  # of the others, some decided the scale and would be certified
    learner.learn(x, y)


def test_too_few_examples_leave_all_as_it_is():
    x, y = wild(50)
    said = []
    learner = CoP2L.from_prior(mlp(), x, y, prior=0.1, say=said.append)
    assert "scale" not in learner.description
    assert said == [
        "The inputs stay as they are: the first task sets aside 5 examples, and 20 are needed; scale them by constants.",
    ]


def test_what_cannot_be_is_refused_in_a_sentence():
    x, y = wild()
    with pytest.raises(UserError, match="There is no prior part to scale the inputs from; give prior="):
        CoP2L.from_prior(mlp(), x, y)
    with pytest.raises(UserError, match="x has 240 examples and y has 9 labels"):
        CoP2L.from_prior(mlp(), x, y[:9], prior=0.5)
    for scale in ("all", [1.0], [0.0, 0.0], [[0.0] * 5, [1.0] * 5], [0.0, float("inf")], {"shift": 0}):
        with pytest.raises(UserError, match="give 'prior', or a shift and a factor"):
            mlp(scale=scale)


def test_a_scale_that_was_given_stays():
    x, y = wild()
    learner = CoP2L.from_prior(mlp(scale=[1.0, 2.0]), x, y, **QUICK)
    assert learner.description["scale"] == [1.0, 2.0]
    assert learner.model.scale(torch.full((1, 6), 99.0)).unique().tolist() == [196.0]


def test_token_ids_reach_the_model_as_they_are():
    ids, y = np.random.default_rng(0).integers(0, 9, (120, 4)), np.arange(120) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 2))
    learner = CoP2L.from_prior(model, ids, y, **QUICK)
    assert type(learner.model) is nn.Sequential
    learner.learn(ids, y)
