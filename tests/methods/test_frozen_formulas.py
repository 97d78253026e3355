"""NCM, SLDA and RanPAC against their formulas and scikit-learn, for any order of tasks and any size of blocks."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from cop2l.errors import UserError
from cop2l.methods import base, frozen, method
from cop2l.methods.ranpac import RIDGES, normal_numbers
from cop2l.models import build
from cop2l.randomness import generator

NAMES = ("ncm", "slda", "ranpac")
WIDTH, CLASSES = 6, 6
ROUNDING = 1e-9
"""Relative to the largest number: what another order of float64 sums may change here."""


def examples(n=240, classes=CLASSES, seed=0, away=5.0):
    """Unbalanced, correlated clusters, far from the origin."""
    draws = np.random.default_rng(seed)
    y = draws.choice(classes, n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1)))
    mix = draws.normal(size=(WIDTH, WIDTH))
    x = draws.normal(size=(classes, WIDTH))[y] + 0.5 * draws.normal(size=(n, WIDTH)) @ mix + away
    return x.astype(np.float32), y


def learner(name, scenario="class-incremental", dtype=torch.float64, **options):
    chosen = {"random_features": 40, "ridge": 0.5} if name == "ranpac" else {}
    model = build("linear", inputs=(WIDTH,), classes=CLASSES).to(dtype)
    return method(name)(model, scenario=scenario, **{**chosen, **options})


def learn(learned, *tasks):
    for x, y in tasks:
        learned.learn(x, y)
    return learned


def by_class(x, y, order):
    return [(x[np.isin(y, pair)], y[np.isin(y, pair)]) for pair in order]


def close(a, b):
    """Equal up to rounding, unseen classes included."""
    a, b = np.asarray(a.detach()), np.asarray(b.detach())
    assert np.array_equal(np.isfinite(a), np.isfinite(b))
    scale = np.abs(b[np.isfinite(b)]).max()
    assert_allclose(a[np.isfinite(a)] / scale, b[np.isfinite(b)] / scale, rtol=0, atol=ROUNDING)


def solution(learned):
    return (
        (learned.tensors["W"],)
        if "W" in learned.tensors
        else (learned.model.head.weight, learned.model.head.bias)
    )


# ---- the formulas


def lengths(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("normalise", [True, False])
def test_ncm_is_the_nearest_mean(normalise):
    from sklearn.neighbors import NearestCentroid

    x, y = examples()
    new = np.concatenate([x, examples(seed=1)[0]])
    learned = learn(learner("ncm", normalise=normalise), (x, y))
    z, z_new = (lengths(v.astype(np.float64)) if normalise else v.astype(np.float64) for v in (x, new))
    means = np.array([z[y == c].mean(0) for c in range(CLASSES)])
    assert_allclose(learned.model.head.weight.detach(), 2 * means, rtol=1e-12)
    assert_allclose(learned.model.head.bias.detach(), -(means**2).sum(1), rtol=1e-12)
    nearest = ((z_new[:, None] - means) ** 2).sum(2).argmin(1)
    assert len(set(nearest)) == CLASSES
    assert np.array_equal(learned.predict(new), nearest)
    assert np.array_equal(nearest, NearestCentroid().fit(z, y).predict(z_new))
    assert np.array_equal(learned.model(torch.tensor(new).double()).argmax(1), nearest) is not normalise


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 1.0])
def test_slda_is_its_formula(epsilon):
    (x, y), (new, _) = examples(), examples(seed=1)
    learned = learn(learner("slda", shrinkage=epsilon), (x, y))
    z = x.astype(np.float64)
    means = np.array([z[y == c].mean(0) for c in range(CLASSES)])
    sigma = sum(np.outer(r, r) for r in z - means[y]) / len(z)
    precision = np.linalg.inv((1 - epsilon) * sigma + epsilon * np.eye(WIDTH))
    weight = means @ precision
    bias = -np.array([m @ precision @ m for m in means]) / 2
    assert_allclose(learned.model.head.weight.detach(), weight, rtol=1e-8)
    assert_allclose(learned.model.head.bias.detach(), bias, rtol=1e-8)
    assert np.array_equal(learned.predict(new), (new @ weight.T + bias).argmax(1))


def test_slda_is_that_of_scikit_learn():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = examples()
    epsilon = 0.05
    learned = learn(learner("slda", shrinkage=epsilon), (x, y))
    z = x.astype(np.float64)
    variance = np.mean((z - np.array([z[y == c].mean(0) for c in range(CLASSES)])[y]) ** 2)
    share = epsilon / (
        epsilon + (1 - epsilon) * variance
    )  # scikit-learn shrinks towards the mean variance, SLDA towards 1
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=share).fit(z, y)
    scale = (1 - share) / (1 - epsilon)
    assert_allclose(learned.model.head.weight.detach(), reference.coef_ * scale, rtol=1e-8)
    without_priors = reference.intercept_ - np.log(
        reference.priors_
    )  # the paper's classes are equally likely
    assert_allclose(learned.model.head.bias.detach(), without_priors * scale, rtol=1e-8)


def random_features(x):
    return np.maximum(
        x.astype(np.float64) @ normal_numbers(0, "projection", WIDTH * 40).reshape(WIDTH, 40), 0
    )


def test_ranpac_is_ridge_regression_on_random_features():
    from sklearn.linear_model import Ridge

    (x, y), (new, _) = examples(), examples(seed=1)
    learned = learn(learner("ranpac", ridge=3.0), *by_class(x, y, [(0, 1, 2), (3, 4, 5)]))
    h, onehot = random_features(x), np.eye(CLASSES)[y]
    weight = np.linalg.inv(h.T @ h + 3.0 * np.eye(40)) @ h.T @ onehot
    assert_allclose(learned.tensors["W"], weight, rtol=1e-7, atol=1e-10)
    reference = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(h, onehot)
    assert_allclose(learned.tensors["W"], reference.coef_.T, rtol=1e-7, atol=1e-10)
    outputs = random_features(new) @ weight
    assert_allclose(learned.logits(new), outputs, rtol=1e-6, atol=1e-9)
    assert np.array_equal(learned.predict(new), outputs.argmax(1))


@pytest.mark.parametrize("n", [30, 400])  # fewer examples than random features, and more
def test_ranpac_chooses_its_ridge_on_a_fifth_of_the_newest_task(n):
    x, y = examples(n=n)
    learned = learn(learner("ranpac", ridge=0.0), examples(seed=3), (x, y))
    withheld = torch.randperm(n, generator=generator(0, "ridge", 2))[: n // 5].numpy()
    fitted = np.setdiff1d(np.arange(n), withheld)
    h, onehot = random_features(x), np.eye(CLASSES)[y]
    errors = []
    for ridge in RIDGES[4:]:  # below, numpy's solution of n < 40 is rounding
        A = h[fitted].T @ h[fitted] + ridge * np.eye(40)
        W = np.linalg.solve(A, h[fitted].T @ onehot[fitted])
        errors.append(((h[withheld] @ W - onehot[withheld]) ** 2).sum())
    assert float(learned.tensors["ridge"]) == RIDGES[4:][int(np.argmin(errors))]
    assert 1e-4 < float(learned.tensors["ridge"]) < 1e8
    both_tasks = np.concatenate([random_features(examples(seed=3)[0]), h])
    assert_allclose(
        learned.tensors["G"], both_tasks.T @ both_tasks, rtol=1e-10
    )  # what was held out is learned, too


def test_the_random_projection_is_standard_normal_and_a_function_of_the_seed():
    from scipy.stats import kstest

    drawn = normal_numbers(1, "projection", 20000)
    assert kstest(drawn, "norm").pvalue > 1e-3
    assert not np.array_equal(drawn, normal_numbers(2, "projection", 20000))
    first, second = (learn(learner("ranpac"), task).tensors["P"] for task in (examples(), examples(seed=1)))
    assert torch.equal(first, second)


# ---- order and blocks


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_tasks_does_not_matter(name):
    x, y = examples()
    at_once = learn(learner(name), (x, y))
    new, _ = examples(seed=1)
    for order in ([(0, 1), (2, 3), (4, 5)], [(4, 5), (0, 1), (2, 3)], [(3,), (5, 0), (4, 2, 1)]):
        split = learn(learner(name), *by_class(x, y, order))
        for value, expected in zip(solution(split), solution(at_once), strict=True):
            close(value, expected)
        assert torch.equal(split.predict(new), at_once.predict(new))


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("name", NAMES)
def test_blocks_give_what_the_whole_gives(name, size, monkeypatch, tmp_path):
    x, y = examples()
    chosen = {"ridge": 0.0} if name == "ranpac" else {}
    at_once = learn(learner(name, **chosen), (x, y))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(frozen, "BLOCK", size)
    monkeypatch.setattr(base, "BLOCK", size)
    streamed = learn(learner(name, **chosen), (mapped, y))
    for value, expected in zip(solution(streamed), solution(at_once), strict=True):
        close(value, expected)
    assert torch.equal(streamed.predict(mapped), at_once.predict(x))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_read_a_block_at_a_time(name, monkeypatch):
    monkeypatch.setattr(frozen, "BLOCK", 16)
    monkeypatch.setattr(base, "BLOCK", 16)
    monkeypatch.setattr("cop2l.kernel.samples.ROWS", 16)
    x, y = examples()

    class Rows:
        """Rows that can be read in small blocks only."""

        def __len__(self):
            return len(x)

        def __getitem__(self, rows):
            assert isinstance(rows, slice)
            found = x[rows]
            assert len(found) <= 16
            return found

    assert torch.equal(
        learn(learner(name), (Rows(), y)).predict(Rows()), learn(learner(name), (x, y)).predict(x)
    )


def test_the_scatter_does_not_suffer_from_a_large_mean():
    x, y = examples(away=0.0)
    z = torch.tensor(x).double()
    for shift in (0.0, 1e6):
        statistics = frozen.empty_statistics(CLASSES, z, scatter=True)
        for rows in torch.arange(len(z)).split(11):
            frozen.add_examples(statistics, z[rows] + shift, torch.tensor(y)[rows])
        means = np.array([x[y == c].mean(0, dtype=np.float64) for c in range(CLASSES)])
        assert_allclose(statistics["scatter"], (x - means[y]).T @ (x - means[y]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_single_precision_decides_alike(name):
    (x, y), (new, _) = examples(), examples(seed=1)
    single, double = (learn(learner(name, dtype=dtype), (x, y)) for dtype in (torch.float32, torch.float64))
    assert all(value.dtype == torch.float64 for value in single.tensors.values())
    assert (single.predict(new) == double.predict(new)).double().mean() > 0.99


# ---- heads, empty classes, saving, memory, refusals


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_examples_is_never_predicted(name):
    x, y = examples()
    learned = learn(learner(name), *by_class(x, y, [(1, 4)]))
    assert set(learned.predict(100 * np.random.default_rng(0).normal(size=(500, WIDTH))).tolist()) == {1, 4}
    assert torch.equal(
        learned.logits(x).isneginf().any(0), torch.tensor([True, False, True, True, False, True])
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_task_predicts_within_its_head(name):
    x, y = examples()
    learned, free = learner(name, "task-incremental"), learner(name)
    heads = [(0, 1, 2), (3, 4, 5)]
    for (some, labels), head in zip(by_class(x, y, [(0, 1), (3, 4, 5)]), heads, strict=True):
        learned.learn(some, labels, classes=head)  # class 2 is in a head and has no examples
        free.learn(some, labels)
    logits = free.logits(x)
    for t, head in enumerate(heads, 1):
        best = torch.tensor(head)[logits[:, list(head)].argmax(1)]
        assert torch.equal(learned.predict(x, task=t), best)
        assert set(best.tolist()) == set(head) - {2}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_does_not_grow(name):
    x, y = examples()
    learned = learner(name)
    means = CLASSES * (WIDTH + 1)
    ranpac = WIDTH * 40 + 40 * 40 + 2 * 40 * CLASSES + CLASSES + 1  # P, G, C and W, counts, lambda
    for _ in range(2):
        learn(learned, (x, y))
        assert learned.memory_used == 0
        stored = sum(value.numel() for value in learned.tensors.values())
        assert stored == {"ncm": means, "slda": means + WIDTH**2, "ranpac": ranpac}[name]


class Backbone(nn.Module):
    """A fixed layer, dropout and a head."""

    def __init__(self, bias=True):
        super().__init__()
        self.below = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)

    def features(self, x):
        return self.below(x)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_backbone_is_used_as_in_evaluation(name):
    x, y = examples()
    model = Backbone()
    model.below.requires_grad_(False)
    fixed = model.below[0](torch.tensor(x)).detach()
    options = {"ridge": 1.0, "random_features": 20} if name == "ranpac" else {}
    learned = learn(method(name)(model, **options), (x, y))
    plain = learn(method(name)(build("linear", inputs=(WIDTH,), classes=CLASSES), **options), (fixed, y))
    assert torch.equal(learned.predict(x), plain.predict(fixed))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_learns_its_features_is_refused(name):
    x, y = examples()
    for model in (build("mlp", inputs=(WIDTH,), classes=CLASSES), Backbone()):
        learned = method(name)(model)
        with pytest.raises(UserError, match=r"learns on frozen features, .*'linear'.*[.]$"):
            learned.learn(x, y)
        assert (learned.tasks_seen, learned.tensors) == (0, {})


@pytest.mark.parametrize("name", ["ncm", "slda"])
def test_a_head_without_a_bias_is_refused(name):
    model = Backbone(bias=False)
    model.below.requires_grad_(False)
    learned = method(name)(model)
    with pytest.raises(UserError, match=r"nn\.Linear with a bias"):
        learned.learn(*examples())
    assert learned.tensors == {}


@pytest.mark.parametrize(
    ("name", "options"),
    [("slda", {"shrinkage": 0.0}), ("slda", {"shrinkage": 1.5}), ("ranpac", {"random_features": 0}), ("ranpac", {"ridge": -1.0})],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(name, options):
    with pytest.raises(UserError, match="The option"):
        learner(name, **options)


def test_there_is_no_learning_rate():
    with pytest.raises(UserError, match="lr"):
        learner("slda", lr=0.1)


def test_ranpac_takes_tasks_too_small_to_hold_anything_out():
    x, y = examples()
    learned = learn(learner("ranpac", ridge=0.0), (x[:3], y[:3]))
    assert float(learned.tensors["ridge"]) == 1.0
    assert torch.equal(learned.predict(x[:3]), torch.tensor(y[:3]))
