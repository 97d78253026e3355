"""The scale of the inputs, set from the prior part of the first task and from nothing else."""

import numpy as np
import pytest
import torch
from torch import nn

from cop2l import CoP2L, verify
from cop2l.errors import Advice, UserError
from cop2l.kernel.exact import certified_rows
from cop2l.kernel.scale import LIMIT, fit_scale
from cop2l.learner.prior import prior_part
from cop2l.models import build

ADAM = {
    "preset": "hybrid",
    "optimiser": "adam",
    "lr": 0.01,
    "prior_lr": None,
    "prior_epochs": 20,
    "tasks": 1,
    "scale": "prior",
}
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


def learned(model, x, y, **options):
    learner = CoP2L(model, **{**QUICK, **options})
    learner.learn(x, y)
    return learner


def own_model(seed=0):
    """A module of one's own, as an auditor's function builds it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def test_columns_of_any_size_come_near_one():
    x, y = wild()
    constants = fit_scale(part_of(x, y))
    scaled = (x - np.array(constants["shift"])) * np.array(constants["factor"])
    typical = np.median(np.abs(scaled[:, :3]), axis=0)
    assert (typical > 0.3).all()
    assert (typical < 1.5).all()
    assert (scaled[:, 3:5] == 0).all()
    assert np.abs(scaled[:, 5]).max() < 2
    assert all(np.log2(constants["factor"]) % 1 == 0)


def test_the_layer_takes_raw_inputs_and_holds_outliers():
    x, y = wild()
    learner = learned(mlp(), x, y)
    scaled = learner.model.scale(torch.from_numpy(x))
    assert scaled.abs().max() == LIMIT
    assert scaled[:, :2].abs().max() < LIMIT
    assert learner.description["scale"] == "prior"


def test_columns_that_are_mostly_0_keep_their_weights_among_each_other():
    draws = np.random.default_rng(0)
    sizes = np.array([0.1, 0.2, 0.4, 0.1, 3e5])
    x = (draws.random((200, 5)) < 0.2) * sizes * draws.uniform(0.8, 1.2, (200, 5))
    factor = fit_scale(part_of(x))["factor"]
    assert len(set(factor[:4])) == 1
    assert factor[4] < 1e-4 * factor[0]


def test_pictures_have_one_scale_for_each_channel_and_huge_values_stay_finite():
    draws = np.random.default_rng(0)
    x = draws.random((60, 3, 4, 5)) * np.array([255.0, 1.0, 1e-3])[:, None, None]
    found = fit_scale(part_of(x))
    assert [len(values) for values in found.values()] == [3, 3]
    assert found["factor"][2] > 64 * found["factor"][1] > 64 * 64 * found["factor"][0]
    assert len(fit_scale(part_of(x[:, 0]))["factor"]) == 1
    extreme = np.array([1e-38, 3e38, 1e38])[np.arange(60) % 3][:, None].astype(np.float32)
    assert build("linear", inputs=(1,), classes=2, scale=[*fit_scale(part_of(extreme)).values()])


def test_nothing_but_the_prior_part_is_looked_at():
    x, y = wild()
    first = learned(mlp(), x, y)
    certified = certified_rows(len(y), 1, first.options)
    x[certified], y[certified] = 1e9, 1
    other = learned(mlp(), x, y)
    assert first.state.theta_0.keys() == other.state.theta_0.keys()
    assert all(torch.equal(value, other.state.theta_0[name]) for name, value in first.state.theta_0.items())
    x[~certified] = 2
    assert not torch.equal(
        learned(mlp(), x, y).state.theta_0["scale.shift"],
        first.state.theta_0["scale.shift"],
    )


@pytest.mark.parametrize("build_model", [None, own_model])
def test_learned_saved_and_verified(build_model, tmp_path):
    x, y = wild()
    learner = learned(own_model() if build_model else mlp(), x, y, **ADAM)
    certificate = learner.certify({1: (x, y)})
    assert certificate.bounds[1] < 0.2
    certificate.save(tmp_path / "certificate")
    learner.save(tmp_path / "learner")
    again = CoP2L.load(tmp_path / "learner", build_model and build_model())
    assert torch.equal(again.probabilities(x), learner.probabilities(x))
    assert verify(tmp_path / "learner", {1: (x, y)}, model=build_model).status == "valid"
    verdict = verify(tmp_path / "certificate", {1: (x, y)}, model=build_model)
    assert verdict.status == "valid", verdict
    assert verify(tmp_path / "certificate", model=build_model).status == "cannot tell"


def test_a_scale_from_all_examples_is_found_out(tmp_path):
    x, y = wild()
    model = mlp(scale="prior")
    model.scale.set_constants(**fit_scale(prior_part(x, y, 0.99, 0)))
    learner = learned(model, x, y, scale="none")
    learner.certify({1: (x, y)}).save(tmp_path)
    verdict = verify(tmp_path, {1: (x, y)})
    assert verdict.status == "cannot tell"  # it is part of the initial parameters
    assert "may be fitted to the data" in verdict.unverified[0]


@pytest.mark.parametrize("model", [lambda: mlp().double(), lambda: mlp(scale="prior")])
def test_honest_scales_are_valid_in_double_precision_and_of_a_model_that_awaits_one(model, tmp_path):
    x, y = wild()
    learner = learned(model(), 1.1 * x.astype(np.float64), y)
    learner.certify({1: (1.1 * x.astype(np.float64), y)}).save(tmp_path)
    verdict = verify(tmp_path, {1: (1.1 * x.astype(np.float64), y)})
    assert verdict.status == "valid", verdict


def test_sparse_inputs_are_verified_as_they_were_learned(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x, y = wild()
    x = sparse.csr_matrix(x)
    learner = learned(mlp(), x, y)
    learner.certify({1: (x, y)}).save(tmp_path)
    assert verify(tmp_path, {1: (x, y)}).status == "valid"


def test_a_learner_is_saved_and_restored_before_and_after_its_first_task(tmp_path):
    x, y = wild()
    new = CoP2L(own_model(), **QUICK)
    new.save(tmp_path / "new")
    later = CoP2L.load(tmp_path / "new", own_model())
    for one in (new, later):
        one.learn(x, y)
    assert new.state.theta_digest == later.state.theta_digest
    new.save(tmp_path / "learned")
    restored = CoP2L(own_model(), **QUICK)
    restored.restore(tmp_path / "learned")
    assert restored.state.theta_digest == new.state.theta_digest
    assert torch.equal(restored.predict(x), new.predict(x))


def test_a_failed_first_task_leaves_no_scale_behind_that_another_one_keeps():
    x, y = wild()
    again = CoP2L(mlp(), **QUICK)
    with pytest.raises(KeyboardInterrupt):
        again.learn(100 * x, y, progress=interrupt)
    with pytest.raises(UserError, match="has scaled the inputs by its own examples; make the learner again"):
        again.learn(x[:30], y[:30])  # too few prior examples for a scale
    again.learn(x, y)
    assert again.state.theta_digest == learned(mlp(), x, y).state.theta_digest


def interrupt(_):
    raise KeyboardInterrupt


def test_too_few_examples_leave_the_inputs_as_they_are():
    x, y = wild(50)
    with pytest.warns(
        Advice, match="The inputs stay as they are: the first task has 5 prior examples, and 20 are needed"
    ):
        learner = learned(mlp(), x, y, prior=0.1)
    assert "scale" not in learner.description


def test_what_cannot_be_is_refused_in_a_sentence():
    x, y = wild()
    with pytest.raises(UserError, match="There is no prior part to scale the inputs from; give prior="):
        CoP2L(mlp(), preset="picking", scale="prior")
    with pytest.raises(UserError, match="x has 240 examples and y has 9 labels"):
        CoP2L(mlp()).learn(x, y[:9])
    with pytest.raises(
        UserError, match="The first task scales the inputs, so there is nothing to commit to yet"
    ):
        CoP2L(mlp()).commitment()
    for scale in ("all", [1.0], [0.0, 0.0], [[0.0] * 5, [1.0] * 5], [0.0, float("inf")], {"shift": 0}):
        with pytest.raises(UserError, match="give 'prior', or a shift and a factor"):
            mlp(scale=scale)


def test_a_scale_that_was_given_stays():
    x, y = wild()
    learner = learned(mlp(scale=[1.0, 2.0]), x, y)
    assert learner.description["scale"] == [1.0, 2.0]
    assert learner.model.scale(torch.full((1, 6), 99.0)).unique().tolist() == [196.0]


def test_token_ids_reach_the_model_as_they_are():
    ids, y = np.random.default_rng(0).integers(0, 9, (120, 4)), np.arange(120) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 2))
    assert type(learned(model, ids, y).model) is nn.Sequential
