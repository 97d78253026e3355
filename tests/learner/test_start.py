"""The analytic start: a task begins with linear discriminant analysis of all prior parts and picks so far."""

import numpy as np
import pytest
import torch
from certify_cases import case_of, compress, model_of, rebuild_theta, same_bits, standing
from cop2l.learner.fast import FastLearner
from torch import nn

from cop2l import CoP2L
from cop2l.errors import UserError
from cop2l.kernel.checking import check_certificates
from cop2l.kernel.exact import certified_rows
from cop2l.kernel.learning import ReferenceLearner, gram
from cop2l.methods import method
from cop2l.models import build

WIDTH, CLASSES, TASKS = 12, 6, 3


def drawn(seed=0, n=240):
    """Three tasks of two classes each, well apart, no example twice."""
    draw = np.random.default_rng(seed)
    middle = 1.5 * draw.normal(size=(CLASSES, WIDTH))
    labels = [draw.integers(2 * t, 2 * t + 2, n) for t in range(TASKS)]
    return {
        t: ((middle[y] + draw.normal(size=(n, WIDTH))).astype(np.float32), y) for t, y in enumerate(labels, 1)
    }


def model_on(kind="linear"):
    more = {"hidden": 40} if kind == "random-features" else {}
    return build(kind, inputs=(WIDTH,), classes=CLASSES, seed=0, **more)


def learned(data, model="linear", **options):
    model = model_on(model)
    chosen = {
        "buffer": "count-only",
        "stop": "combined",
        "prior": 0.3,
        "memory": 100,
        "tasks": TASKS,
        "start": "slda",
    }
    learner = CoP2L(model, preset="paper", kind="combined", **(chosen | options))
    for x, y in data.values():
        learner.learn(x, y)
    return learner


def test_without_picks_it_is_slda_on_the_prior_parts():
    data = drawn()
    learner = learned(data, max_iterations=0, shrinkage=1e-3)
    baseline = method("slda")(model_on(), shrinkage=1e-3)
    for t, (x, y) in data.items():
        free = ~certified_rows(len(y), t, learner.options)
        baseline.learn(x[free], y[free])
    assert all(not record["picked"] for record in learner.certify(data).records)
    torch.testing.assert_close(learner.model.head.weight, baseline.model.head.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learner.model.head.bias, baseline.model.head.bias, rtol=1e-4, atol=1e-4)
    for x, _ in data.values():
        assert (learner.predict(x) == baseline.predict(x)).all()


@pytest.mark.parametrize("width", [7, 512, 513, 1100])
def test_the_gram_matrix_is_the_product(width):
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(30, width)))
    torch.testing.assert_close(gram(z), z.T @ z, rtol=1e-12, atol=1e-12)
    assert torch.equal(gram(z), gram(z).T)


def test_a_ridge_is_a_shrinkage_that_falls_with_the_number_of_examples():
    """(1 - e) Sigma + (e + r/N) I is (1 - e) Sigma + e' I up to the factor that e' leaves."""
    data = drawn()
    free = sum(int((~certified_rows(len(y), t, learned({}).options)).sum()) for t, (_, y) in data.items())
    ridge = 0.2 * free
    reference = learned(data, max_iterations=0, shrinkage=1e-12, ridge=ridge)
    equivalent = learned(
        data, max_iterations=0, shrinkage=0.2 / 1.2
    )  # Sigma/1.2 + 0.2/1.2: the same times 1.2
    torch.testing.assert_close(
        1.2 * reference.model.head.weight, equivalent.model.head.weight, rtol=1e-4, atol=1e-5
    )
    assert not torch.equal(reference.model.head.weight, equivalent.model.head.weight)


def test_a_covariance_that_cannot_be_inverted_is_refused():
    """Half of these features repeat the others."""
    data = {t: (1e4 * np.hstack([x[:, :6], x[:, :6]]), y) for t, (x, y) in drawn().items()}
    with pytest.raises(UserError, match="raise shrinkage"):
        learned(data, max_iterations=0, shrinkage=1e-12)
    assert torch.isfinite(learned(data, max_iterations=0, shrinkage=0.1).model.head.weight).all()


@pytest.mark.parametrize("buffer", ["count-only", "threshold", "uniform"])
@pytest.mark.parametrize("prior_memory", [0.0, 0.5])
def test_fast_path_kernel_and_reconstruction_agree(buffer, prior_memory):
    case = case_of(
        "class-incremental", (60, 50, 55), buffer=buffer, prior=0.4, prior_memory=prior_memory, start="slda",
        shrinkage=0.05, k=3, epochs=1, lr=0.02, memory=40, stop="none", max_iterations=6, batch=16,
    )  # fmt: skip
    first, second, again = (model_of("linear", case.classes) for _ in range(3))
    fast, plain = compress(first, case, FastLearner), compress(second, case, ReferenceLearner)
    assert standing(fast) == standing(plain)
    assert sum(len(sets.own_picks) for sets in plain.sets) > 0  # picks joined the sums
    assert float(plain.sums["count"].sum()) > sum(n - certified for n, certified in plain.sizes)
    rebuild_theta(again, plain, case)
    assert same_bits(again.state_dict(), second.state_dict())


@pytest.mark.parametrize("model", ["linear", "random-features"])
def test_it_is_saved_carried_on_and_verified(tmp_path, model):
    data = drawn()
    single = learned(data, model, k=2, max_iterations=8, lr=0.05, stop="none")
    begun = CoP2L.load(
        _saved(learned({1: data[1]}, model, k=2, max_iterations=8, lr=0.05, stop="none"), tmp_path)
    )
    for t in (2, 3):
        begun.learn(*data[t])
    assert same_bits(begun.model.state_dict(), single.model.state_dict())
    certificate = single.certify(data)
    certificate.save(tmp_path / "certificate")
    verdict = check_certificates([tmp_path / "certificate"], data, model_on(model))
    assert verdict.status == "valid", verdict
    assert sum(record["picked"] for record in certificate.records) > 0


def _saved(learner, folder):
    learner.save(folder / "state")
    return folder / "state"


def test_an_error_leaves_the_sums_as_they_were():
    data = drawn()
    learner = learned({1: data[1]})
    before = {name: value.clone() for name, value in learner.engine.sums.items()}

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(*data[2], progress=interrupt)
    assert all(torch.equal(before[name], value) for name, value in learner.engine.sums.items())


@pytest.mark.parametrize(
    "model", [build("mlp", inputs=(WIDTH,), classes=CLASSES), nn.Linear(WIDTH, CLASSES, bias=False)]
)
def test_a_model_that_trains_more_than_a_linear_head_is_refused(model):
    learner = CoP2L(model, preset="paper", kind="kl-tight", prior=0.3, start="slda")
    with pytest.raises(UserError, match="linear head"):
        learner.learn(*drawn()[1])


def test_without_a_prior_part_there_is_nothing_to_start_from():
    with pytest.raises(UserError, match="prior"):
        CoP2L(nn.Linear(WIDTH, CLASSES), preset="paper", start="slda")
