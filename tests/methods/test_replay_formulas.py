"""Replay, DER++, iCaRL, GDumb and joint training against their formulas, by hand."""

import collections

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from cop2l.errors import UserError
from cop2l.methods import REMARKS, method
from cop2l.methods.base import Learner
from cop2l.methods.buffer import Buffer, class_balanced, shares
from cop2l.methods.gdumb import greedy_balance
from cop2l.methods.icarl import herd
from cop2l.models import build
from cop2l.randomness import generator

WHOLE = {"batch": 10, "lr": 0.2, "scenario": "domain-incremental"}
"""One batch is the whole task, so that its order does not matter; it has the five stored examples twice."""


def weights(learned):
    return learned.model.head.w.detach().numpy()


def test_replay_is_one_mean_over_new_and_kept_examples(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    learned = method("replay")(two_weights(w.tolist()), epochs=2, memory=10, **WHOLE)
    for number, (x, y) in enumerate(data):
        learned.learn(x, y)
        for _ in range(2):
            g = gradient(w, x, y)
            if number:
                g = np.concatenate([g, *[gradient(w, *data[0])] * 2])  # the buffer has all of task 1
            w = w - 0.2 * g.mean(0)
        assert_allclose(weights(learned), w, rtol=1e-12)


def test_a_task_incremental_replay_batch_gives_each_example_its_own_head():
    learned = method("replay")(build("linear", inputs=(3,), classes=4), scenario="task-incremental", epochs=1)
    x = torch.randn(4, 3, generator=generator(0, "x"))
    learned.learn(x, [0, 1, 0, 1], classes=(0, 1))
    learned.learn(x, [3, 2, 3, 2], classes=(2, 3))
    logits, y, t = learned.model(x[:2]), torch.tensor([1, 3]), torch.tensor([1, 2])
    first = -torch.log_softmax(logits[0, :2], 0)[1]
    second = -torch.log_softmax(logits[1, 2:], 0)[1]
    assert_allclose(learned.loss(logits, y, t).detach(), ((first + second) / 2).detach(), rtol=1e-6)


def test_each_batch_of_an_epoch_has_a_full_batch_of_the_buffer_in_full_rounds(two_weights):
    learned = method("replay")(two_weights([0.0, 0.0]))
    learned.buffer = Buffer(y=torch.zeros(7))
    batches = list(learned.replay_batches(10, 4, 3))
    assert [(len(i), len(j)) for i, j in batches] == [(4, 4), (4, 4), (2, 4)] * 3
    epochs = [torch.cat([i for i, _ in batches[k : k + 3]]).tolist() for k in (0, 3, 6)]
    assert [sorted(order) for order in epochs] == [list(range(10))] * 3
    assert epochs[0] not in (epochs[1], sorted(epochs[0]))
    replayed = torch.cat([j for _, j in batches]).tolist()
    assert [sorted(replayed[k : k + 7]) for k in range(0, 35, 7)] == [list(range(7))] * 5


def test_rows_are_drawn_uniformly_and_shares_are_floor_m_over_t():
    counts = np.zeros(6)
    for seed in range(600):
        new = Buffer(x=torch.arange(6.0)[:, None], y=torch.zeros(6).long(), t=torch.ones(6).long())
        sampled = shares(Buffer(), new, 1, 2, generator(seed, "buffer"))
        assert len(sampled) == 2
        counts[sampled.x.long().flatten()] += 1
    assert ((counts - 200) ** 2 / 200 * 5 / 4).sum() < 20.5  # chi-square, 5 degrees, P < 0.001
    buffer, sizes = Buffer(), []
    for t in range(1, 5):
        new = Buffer(x=torch.zeros(9, 1), y=torch.zeros(9).long(), t=torch.full((9,), t))
        buffer = shares(buffer, new, t, 14, generator(0, "buffer", t))
        sizes.append(collections.Counter(buffer.t.tolist()))
    assert sizes == [{1: 9}, {1: 7, 2: 7}, {1: 4, 2: 4, 3: 4}, {1: 3, 2: 3, 3: 3, 4: 3}]


def test_weighted_replay_weighs_a_stored_example_by_those_of_its_task_and_class(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    learned = method("weighted-replay")(
        two_weights(w.tolist()), epochs=3, memory=8, lr=0.2, scenario="domain-incremental"
    )
    for t, (x, y) in enumerate([*data, data[0]]):
        stored = learned.buffer
        pairs = [*zip(stored.t.tolist(), stored.y.tolist(), strict=True)] if t else []
        weight = [(data[s - 1][1] == c).sum() / pairs.count((s, c)) for s, c in pairs]
        learned.learn(x, y)
        first, second = np.zeros(2), np.zeros(2)
        for step in range(1, 4):
            g = gradient(w, x, y)
            if t:
                g = np.concatenate(
                    [g, np.array(weight)[:, None] * gradient(w, stored.x.numpy(), stored.y.numpy())]
                )
            first, second = 0.9 * first + 0.1 * g.mean(0), 0.999 * second + 0.001 * g.mean(0) ** 2
            w = w - 0.2 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        assert_allclose(weights(learned), w, rtol=1e-9)
    assert len(weight) == 8
    assert sum(weight) == pytest.approx(
        10
    )  # of each class one of five examples is gone; the others of its task stand for it


def test_weighted_replay_trains_the_heads_of_its_examples_only():
    model = build("linear", inputs=(3,), classes=4)
    learned = method("weighted-replay")(model, scenario="task-incremental", epochs=2)
    x, before = torch.randn(4, 3, generator=generator(0, "x")), model.head.weight.detach().clone()
    learned.learn(x, [0, 1, 0, 1], classes=(0, 1))
    assert (model.head.weight == before).all(1).tolist() == [False, False, True, True]


def test_der_holds_stored_logits_and_replays_labels(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    learned = method("der++")(two_weights(w.tolist()), epochs=3, memory=10, alpha=0.4, beta=0.6, **WHOLE)
    (x0, y0), (x1, y1) = data
    learned.learn(x0, y0)
    for _ in range(3):
        w = w - 0.2 * gradient(w, x0, y0).mean(0)
    stored = w * x0
    assert_allclose(learned.buffer.logits, stored, rtol=1e-12)
    learned.learn(x1, y1)
    for _ in range(3):
        distance = (2 * (w * x0 - stored) * x0).sum(0) / x0.size
        g = gradient(w, x1, y1).mean(0) + 0.6 * gradient(w, x0, y0).mean(0)
        w = w - 0.2 * (g + 0.4 * distance)
    assert_allclose(weights(learned), w, rtol=1e-12)


def test_der_measures_the_distance_on_the_head_of_each_example_only():
    learned = method("der++")(
        build("multi-head", inputs=(3,), classes=5), scenario="task-incremental", epochs=1, memory=8
    )
    x = torch.randn(6, 3, generator=generator(0, "x"))
    learned.learn(x, [0, 1, 0, 1, 0, 1], classes=(0, 1))
    learned.learn(x, [2, 3, 4, 2, 3, 4], classes=(2, 3, 4))
    logits, stored = torch.ones(2, 5), torch.tensor([[0.0, 3.0, 9.0, 9.0, 9.0], [9.0, 9.0, 1.0, 1.0, 4.0]])
    expected = (1 + 4 + 0 + 0 + 9) / 5
    assert float(learned.distance(logits, stored, torch.tensor([1, 2]))) == pytest.approx(expected)


def test_class_balanced_keeps_the_smallest_marks_of_each_class():
    buffer = Buffer(
        x=torch.arange(6)[:, None],
        y=torch.tensor([0, 0, 0, 0, 1, 1]),
        mark=torch.tensor([0.4, 0.1, 0.3, 0.2, 0.9, 0.8]),
    )
    assert class_balanced(buffer, 5).x.flatten().tolist() == [1, 3, 4, 5]


def test_herding_brings_the_mean_of_the_chosen_nearest_to_the_mean_of_all():
    features = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator(1, "x")).double(), dim=1)
    chosen: list[int] = []
    for _ in range(12):
        rest = [i for i in range(30) if i not in chosen]
        distance = [(features.mean(0) - features[[*chosen, i]].mean(0)).norm() for i in rest]
        chosen.append(rest[int(np.argmin(distance))])
    assert herd(features, 12).tolist() == chosen


def test_icarl_learns_new_outputs_and_distils_old_ones_by_sigmoids(two_weights, data):
    w = np.array([0.3, -0.2])
    x0, x1 = data[0][0], data[1][0]
    learned = method("icarl")(two_weights(w.tolist()), epochs=2, batch=10, lr=0.2, memory=10)

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    learned.learn(x0, [0] * 5)
    for _ in range(2):  # class 1 is still to come: its output learns to be 0; the mean is over two outputs
        w = w - 0.2 * ((sigmoid(w * x0) - [1, 0]) * x0).mean(0) / 2
    assert_allclose(weights(learned), w, rtol=1e-12)
    learned.learn(x1, [1] * 5)
    both = np.concatenate([x1, x0])
    target = np.stack([sigmoid(w * both)[:, 0], np.r_[np.ones(5), np.zeros(5)]], 1)
    for _ in range(2):
        w = w - 0.2 * ((sigmoid(w * both) - target) * both).mean(0) / 2
    assert_allclose(weights(learned), w, rtol=1e-12)


def test_icarl_is_herded_nearest_mean_on_a_linear_head_and_is_said_to_be():
    x = torch.randn(40, 4, generator=generator(0, "x"))
    means = {}
    for name in ("linear", "mlp-head", "multi-head"):
        for lr in (0.01, 2.0):
            learned = method("icarl")(build(name, inputs=(4,), classes=4), epochs=5, lr=lr, memory=12)
            learned.learn(x[:20], [0, 1] * 10)
            learned.learn(x[20:], [2, 3] * 10)
            means[name, lr] = learned.tensors["means"]
        assert torch.equal(means[name, 0.01], means[name, 2.0]) == (name == "linear")
        assert (("icarl", name) in REMARKS) == (name == "linear")


def test_icarl_predicts_the_nearest_mean_of_exemplars(two_weights):
    learned = method("icarl")(two_weights([1.0, 1.0]), epochs=1, memory=4)
    x = np.array([[1.0, 0.1], [2.0, 0.0], [3.0, -0.1], [0.2, 1.0], [0.0, 5.0], [0.1, 2.0]])
    learned.learn(x, [0, 0, 0, 1, 1, 1])
    assert learned.memory_used == 4
    # by angle, whatever the length and whatever the logits say
    assert learned.predict(np.array([[0.1, 0.05], [0.2, 9.0], [0.6, 0.5], [0.5, 0.6]])).tolist() == [
        0,
        1,
        0,
        1,
    ]


def test_icarl_cuts_exemplars_to_the_first_of_their_herding_order():
    learned = method("icarl")(build("linear", inputs=(4,), classes=4), epochs=1, memory=12)
    x = torch.randn(20, 4, generator=generator(0, "x"))
    learned.learn(x, [0] * 10 + [1] * 10)
    first = [learned.buffer.rows(learned.buffer.y == c).x[:3] for c in (0, 1)]
    learned.learn(x, [2] * 10 + [3] * 10)
    for c in (0, 1):
        assert torch.equal(learned.buffer.rows(learned.buffer.y == c).x, first[c])
    assert collections.Counter(learned.buffer.y.tolist()) == {0: 3, 1: 3, 2: 3, 3: 3}


def test_icarl_refuses_classes_that_come_back_and_a_memory_below_one_per_class():
    learned = method("icarl")(build("linear", inputs=(4,), classes=4), epochs=1, memory=3)
    learned.learn(torch.randn(4, 4), [0, 1, 0, 1])
    with pytest.raises(UserError, match=r"the classes \[1\] before"):
        learned.learn(torch.randn(4, 4), [2, 1, 2, 1])
    with pytest.raises(UserError, match="raise the memory"):
        learned.learn(torch.randn(4, 4), [2, 3, 2, 3])


def test_gdumb_balances_greedily():
    draws = generator(0, "x")
    labels = [0] * 50 + [1] * 50 + [2] * 3
    stored = [labels[i] for i in greedy_balance(labels, 0, 20, draws)]
    counts = collections.Counter(stored)
    assert sum(counts.values()) == 20
    assert counts[2] == 3
    assert abs(counts[0] - counts[1]) <= 1


def test_gdumb_learns_from_the_buffer_alone_from_the_initial_weights(two_weights, data, gradient):
    start = np.array([0.3, -0.2])
    learned = method("gdumb")(two_weights(start.tolist()), epochs=2, memory=4, **WHOLE)
    for x, y in data:
        learned.learn(x, y)
        buffer = learned.buffer
        w = start
        for _ in range(2):
            w = w - 0.2 * gradient(w, buffer.x.numpy(), buffer.y.numpy()).mean(0)
        assert_allclose(weights(learned), w, rtol=1e-12)
        assert collections.Counter(buffer.y.tolist()) == {0: 2, 1: 2}


def test_joint_learns_everything_from_the_initial_weights(two_weights, data, gradient):
    start = np.array([0.3, -0.2])
    learned = method("joint")(two_weights(start.tolist()), epochs=2, **WHOLE)
    for x, y in data:
        learned.learn(x, y)
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    w = start
    for _ in range(2):
        w = w - 0.2 * gradient(w, x, y).mean(0)
    assert_allclose(weights(learned), w, rtol=1e-12)


def test_a_method_must_say_how_it_learns(two_weights):
    with pytest.raises(TypeError, match="fit"):
        Learner(two_weights([0.0, 0.0]))


def test_a_buffer_takes_inputs_of_one_shape():
    learned = method("replay")(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), epochs=1)
    learned.learn(torch.zeros(4, 4), [0, 1, 0, 1])
    with pytest.raises(UserError, match="make them equal"):
        learned.learn(torch.zeros(4, 2, 2), [0, 1, 0, 1])
