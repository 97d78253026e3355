"""EWC, SI, LwF and LFL against their formulas, written out by hand on two parameters."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from cop2l.errors import UserError
from cop2l.methods import method
from cop2l.models import build

WHOLE = {"batch": 5, "lr": 0.2, "scenario": "domain-incremental"}
"""One batch is the whole task, so that its order does not matter."""


def test_ewc_is_one_spring_per_past_task_as_stiff_as_the_mean_squared_gradient(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    learned = method("ewc")(two_weights(w.tolist()), epochs=3, strength=1.7, **WHOLE)
    springs = []
    for x, y in [*data, data[0]]:
        learned.learn(x, y)
        for _ in range(3):
            pull = sum((fisher * (w - then) for fisher, then in springs), np.zeros(2))
            w = w - 0.2 * (gradient(w, x, y).mean(0) + 1.7 * pull)
        springs.append(((gradient(w, x, y) ** 2).mean(0), w))
        assert_allclose(learned.model.head.w.detach(), w, rtol=1e-12)
    assert_allclose(learned.tensors["fisher.head.w"], sum(f for f, _ in springs), rtol=1e-12)


def test_ewc_averages_over_a_sample_when_told_to(two_weights, data, gradient):
    (x, y), _ = data
    learned = method("ewc")(two_weights([0.3, -0.2]), epochs=1, fisher_examples=1, **WHOLE)
    learned.learn(x, y)
    each = gradient(learned.model.head.w.detach().numpy(), x, y) ** 2
    assert min(np.abs(each - learned.tensors["fisher.head.w"].numpy()).sum(1)) < 1e-12


def test_si_omega_is_the_fall_of_the_loss_along_the_path(two_weights, data, gradient):
    w, lr, strength, damping = np.array([0.3, -0.2]), 0.2, 0.8, 0.05
    learned = method("si")(two_weights(w.tolist()), epochs=4, strength=strength, damping=damping, **WHOLE)
    importance = np.zeros(2)
    for x, y in [*data, data[0]]:
        learned.learn(x, y)
        start, omega = w, np.zeros(2)
        for _ in range(4):
            g = gradient(w, x, y).mean(0)
            after = w - lr * (g + 2 * strength * np.maximum(importance, 0) * (w - start))
            omega -= g * (after - w)
            w = after
        importance = importance + omega / ((w - start) ** 2 + damping)
        assert_allclose(learned.model.head.w.detach(), w, rtol=1e-12)
        assert_allclose(learned.tensors["head.w"], importance, rtol=1e-12)


@pytest.mark.parametrize("name", ["ewc", "si"])
def test_a_spring_too_stiff_for_the_step_diverges_and_that_is_said(name, two_weights, data):
    learned = method(name)(two_weights([0.3, -0.2]), epochs=200, strength=1e9, **WHOLE)
    learned.learn(*data[0])
    with pytest.raises(UserError, match=r"^Training diverged at task 2: .* smaller lr or strength\.$"):
        learned.learn(*data[1])
    assert learned.tasks_seen == 1
    with pytest.raises(UserError, match=r"^Training diverged at task 1: .* choose a smaller lr\.$"):
        method("finetuning")(build("mlp", inputs=(2,), classes=2), epochs=50, lr=1e30).learn(*data[0])


def test_lwf_distils_the_old_outputs_at_a_temperature(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    learned = method("lwf")(two_weights(w.tolist()), epochs=3, alpha=0.7, temperature=3.0, **WHOLE)

    def softmax(z):
        return np.exp(z) / np.exp(z).sum(1, keepdims=True)

    for number, (x, y) in enumerate(data):
        learned.learn(x, y)
        old = softmax(w * x / 3)
        for _ in range(3):
            # d/dlogit of KL(old, softmax(logit / T)) is (softmax - old) / T
            pull = ((softmax(w * x / 3) - old) / 3 * x).mean(0)
            w = w - 0.2 * (gradient(w, x, y).mean(0) + 0.7 * pull * (number > 0))
        assert_allclose(learned.model.head.w.detach(), w, rtol=1e-12)


def test_lwf_preserves_each_old_head_on_its_own_if_task_incremental():
    model = build("multi-head", inputs=(4,), classes=6)
    learned = method("lwf")(model, scenario="task-incremental", epochs=1)
    x = torch.zeros(6, 4)
    for head in [(0, 1), (2, 3), (4, 5)]:
        learned.learn(x, torch.tensor(head * 3), classes=head)
    assert learned.old_heads() == [[0, 1], [2, 3]]
    learned = method("lwf")(build("linear", inputs=(4,), classes=6), epochs=1)
    for head in [(0, 1), (2, 3), (4, 5)]:
        learned.learn(x, torch.tensor(head * 3), classes=head)
    assert learned.old_heads() == [[0, 1, 2, 3]]


def test_lfl_holds_the_features_and_freezes_the_last_layer(two_weights, data, gradient):
    v, w = np.array([1.1, 0.9]), np.array([0.3, -0.2])
    learned = method("lfl")(two_weights(w.tolist(), v.tolist()), epochs=3, strength=0.6, **WHOLE)
    for number, (x, y) in enumerate(data):
        learned.learn(x, y)
        before = v * x
        for _ in range(3):
            g = gradient(w, v * x, y).mean(0)  # in w; in v it is the same times w / v
            pull = 2 * ((v * x - before) * x).sum(0) / x.size
            step_v = g * w / v + 0.6 * pull * (number > 0)
            w = w - 0.2 * g * (number == 0)
            v = v - 0.2 * step_v
        assert_allclose(learned.model.head.w.detach(), w, rtol=1e-12)
        assert_allclose(learned.model.below.w.detach(), v, rtol=1e-12)


def test_lfl_compares_old_and_new_features_under_the_same_dropout(data):
    """At the first step of a task old and new weights are equal, so the distance and its gradient are 0."""
    moved = []
    for strength in (0.0, 1e6):
        model = build("mlp", inputs=(2,), classes=2, hidden=8)
        learned = method("lfl")(model, epochs=1, strength=strength, **WHOLE)
        learned.learn(*data[0])
        before = model.hidden.weight.detach().clone()
        learned.learn(*data[1])
        assert not torch.equal(model.hidden.weight, before)
        moved.append(model.hidden.weight.detach())
    assert torch.equal(*moved)


def test_lfl_says_so_when_there_is_nothing_below_the_last_layer(data):
    learned = method("lfl")(build("linear", inputs=(2,), classes=2), scenario="domain-incremental")
    with pytest.raises(UserError, match="a model with a hidden layer"):
        learned.learn(*data[0])
