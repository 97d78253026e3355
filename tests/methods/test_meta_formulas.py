"""La-MAML, CCLIS and CSReL against their formulas, by hand or by enumeration."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F

from cop2l.kernel.exact import head_masks
from cop2l.methods import method
from cop2l.methods.buffer import Buffer
from cop2l.methods.cclis import contrastive, hardness
from cop2l.methods.csrel import ModelCopies
from cop2l.models import build
from cop2l.randomness import generator


def test_lamaml_meta_gradient_is_second_order(two_weights, data):
    """One inner update: theta' = theta - a g, so d/dtheta = (1 - a H) g' and d/da = -g g' (a > 0)."""
    (x, y), _ = data
    start = torch.tensor([0.3, -0.2], dtype=torch.float64)
    x, y = torch.tensor(x), torch.tensor(y)

    def loss(w):
        return F.cross_entropy(w * x, y)

    rate = 0.3
    g = torch.autograd.functional.jacobian(loss, start)
    hessian = torch.autograd.functional.hessian(loss, start)
    after = torch.autograd.functional.jacobian(loss, start - rate * g)
    for_theta = after - hessian @ (rate * after)
    alpha = rate - 0.5 * (-g * after)
    learned = method("lamaml")(
        two_weights(start.tolist()), epochs=1, batch=5, inner=1, lr=rate, lr_alpha=0.5, clip=1e6
    )
    learned.learn(x, y)
    assert_allclose(learned.tensors["head.w"], alpha, rtol=1e-10)
    assert_allclose(learned.model.head.w.detach(), start - alpha * for_theta, rtol=1e-10)


def test_lamaml_meta_gradient_through_several_inner_updates(two_weights, data):
    """The chain of inner updates, written as one function of (theta, alpha) and given to autograd."""
    (x, y), (old_x, old_y) = ((torch.tensor(a), torch.tensor(b)) for a, b in data)
    learned = method("lamaml")(two_weights([0.3, -0.2]), inner=3, clip=1e6)
    theta = learned.model.head.w
    alpha = torch.tensor([0.4, -0.1], dtype=torch.float64, requires_grad=True)
    both = torch.cat([x, old_x]), torch.cat([y, old_y]), 1
    loss = learned.meta_loss({"head.w": theta}, {"head.w": alpha}, (x, y, 1), both)

    w, total = theta, 0
    for rows in ([0, 1], [2, 3], [4]):
        p = torch.softmax(w * x[rows], 1)
        g = ((p - F.one_hot(y[rows], 2)) * x[rows]).mean(0)
        w = w - torch.stack([alpha[0], torch.zeros(()).double()]) * g  # a rate below 0 counts as 0
        total = total + F.cross_entropy(w * both[0], both[1]) / 3
    assert_allclose(loss.detach(), total.detach(), rtol=1e-12)
    for gradient, by_hand in zip(
        torch.autograd.grad(loss, [theta, alpha]), torch.autograd.grad(total, [theta, alpha]), strict=True
    ):
        assert_allclose(gradient, by_hand, rtol=1e-10, atol=1e-15)


def test_lamaml_leaves_frozen_parameters_alone(data):
    model = build("multi-head", inputs=(2,), classes=2)
    model.shared.requires_grad_(False)
    before = model.shared.weight.clone()
    method("lamaml")(model, epochs=1, batch=2).learn(*data[0])
    assert torch.equal(model.shared.weight, before)


def test_lamaml_reservoir_is_within_its_budget_and_uniform():
    counts = np.zeros(8)
    for seed in range(200):
        learned = method("lamaml")(build("linear", inputs=(1,), classes=2), memory=3, seed=seed, epochs=1)
        for start in (0, 4):
            learned.learn(torch.arange(start, start + 4.0)[:, None], [0, 1, 0, 1])
        assert learned.memory_used == 3
        counts[learned.buffer.x.long().flatten()] += 1
    assert ((counts - 75) ** 2 / 75 * 7 / 5).sum() < 24.3  # chi-square, 7 degrees, P < 0.001


def test_lamaml_replays_what_has_passed_of_its_own_task_and_nothing_that_comes_later():
    learned = method("lamaml")(build("linear", inputs=(1,), classes=2), memory=4, epochs=2, batch=2, inner=1)
    steps = []

    def watched(theta, alpha, task, both):
        steps.append([batch[0].flatten().tolist() for batch in (task, both)])
        return type(learned).meta_loss(learned, theta, alpha, task, both)

    learned.meta_loss = watched
    for start in (0, 6):
        learned.learn(torch.arange(start, start + 6.0)[:, None], [0, 1] * 3)
    assert steps[0][0] == steps[0][1]  # at the very first step nothing has passed
    passed = set()
    for number, (new, both) in enumerate(steps):
        assert both[:2] == new
        replayed = both[2:]
        assert len(set(replayed)) == len(replayed) == (2 if number else 0)
        assert set(replayed) <= passed
        passed |= set(new)
    same_task = [set(both[2:]) & set(range(6)) for _, both in steps[1:3]]
    assert all(len(own) == 2 for own in same_task)


def contrastive_by_hand(logits, y, past, weight):
    """Anchor by anchor, example by example."""
    losses = []
    for c in sorted(set(y)):
        positives = [i for i in range(len(y)) if y[i] == c]
        past_anchor = past[positives[0]]
        denominator = 0.0
        for j in range(len(y)):
            g = weight[j] * sum(k == y[j] for k in y) if past[j] and past_anchor and y[j] != c else 1.0
            denominator += math.exp(logits[j][c]) / g
        losses.append(math.log(denominator) - sum(logits[i][c] for i in positives) / len(positives))
    return losses


def test_cclis_loss_is_contrastive_with_importance_weights():
    logits = torch.randn(7, 5, generator=generator(0, "x"), dtype=torch.float64)
    y, past = [0, 0, 1, 1, 1, 3, 4], [True, True, True, True, True, False, False]
    weight = [0.2, 0.3, 0.1, 0.5, 0.2, 1.0, 1.0]
    found = contrastive(logits, torch.tensor(y), torch.tensor(past), torch.tensor(weight).double())
    assert_allclose(found, contrastive_by_hand(logits.tolist(), y, past, weight), rtol=1e-7)


def test_cclis_score_is_the_mean_share_in_the_other_classes():
    logits = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])
    e = logits.exp()
    share = e / e.sum(0)
    by_hand = [(share[0, 1] + share[0, 2]) / 2, (share[1, 0] + share[1, 2]) / 2]
    assert_allclose(hardness(logits, torch.tensor([0, 1])), by_hand, rtol=1e-6)


def test_cclis_keeps_equal_shares_with_their_sampling_weights():
    options = {"epochs": 1, "head_epochs": 1, "dimensions": 4}
    learned = method("cclis")(build("linear", inputs=(3,), classes=4), memory=9, **options)
    x = torch.randn(20, 3, generator=generator(0, "x"))
    learned.learn(x, torch.arange(20) % 2)
    logits = learned.evaluate(learned.projection(x).scores, x) / 0.5
    score = hardness(logits[:, :2], torch.arange(20) % 2)
    for c in (0, 1):
        mine = learned.buffer.rows(learned.buffer.y == c)
        assert len(mine) == 4
        of_class = score[c::2] / score[c::2].sum()
        where = [int((x[c::2] == row).all(1).nonzero()) for row in mine.x]
        assert_allclose(mine.weight, of_class[where], rtol=1e-5)
    first = learned.buffer
    learned.learn(x, 2 + torch.arange(20) % 2)
    assert [(learned.buffer.y == c).sum() for c in range(4)] == [2, 2, 2, 2]
    old = learned.buffer.rows(learned.buffer.t == 1)
    assert set(old.weight.tolist()) <= set(first.weight.tolist())


def test_cclis_represents_by_features_that_learn_or_by_the_first_layer_that_does():
    x = torch.randn(8, 3, generator=generator(0, "x"))
    options = {"epochs": 1, "head_epochs": 1}
    fixed = method("cclis")(build("linear", inputs=(3,), classes=2), **options)
    fixed.learn(x, torch.arange(8) % 2)
    parts = fixed.projection(x)
    assert torch.equal(parts.represent(x), parts.first(x))
    assert_allclose(fixed.logits(x), fixed.model.head(parts.first(x)).detach(), rtol=1e-5)
    learns = method("cclis")(build("multi-head", inputs=(3,), classes=2), **options)
    learns.learn(x, torch.arange(8) % 2)
    assert_allclose(learns.logits(x), learns.model(x).detach(), rtol=1e-5)


def test_csrel_selects_what_is_learnable_and_not_yet_learned():
    """Two directions, each shown many times, and wrong labels: the coreset of two has one of each direction.

    The wrong labels have the largest loss once the right ones are learned, but the reference model, which saw
    the whole task, has it too: it is not reducible.
    """
    a, b = [4.0, 0.0], [0.0, 4.0]
    x = torch.tensor([a] * 6 + [b] * 3 + [a] * 2)
    y = torch.tensor([0] * 6 + [1] * 3 + [1] * 2)
    reference = torch.tensor([0.3, 0.3, 0.2, 0.3, 0.3, 0.3, 0.1, 0.15, 0.1, 1.5, 1.5])
    learned = method("csrel")(
        build("linear", inputs=(2,), classes=2), selections=2, selection_steps=50, selection_lr=0.1
    )
    with torch.no_grad():
        learned.initial = {name: torch.zeros_like(value) for name, value in learned.initial.items()}
    candidates = Buffer(x=x, y=y, t=torch.ones_like(y), reference=reference)
    assert learned.coresets([candidates], 2)[0].tolist() == [2, 6]


@pytest.mark.parametrize("scenario", ["class-incremental", "task-incremental"])
def test_csrel_selects_for_several_tasks_at_once_what_it_selects_for_each(scenario):
    draws = torch.Generator().manual_seed(0)
    learned = method("csrel")(
        build("linear", inputs=(5,), classes=6),
        scenario=scenario,
        selection_steps=10,
        selection_lr=0.1,
        batch=8,
    )
    learned.heads, learned.outputs = [(0, 1), (2, 3), (4, 5)], 6
    learned.masked_classes = head_masks(learned.heads, 6, scenario, "cpu")
    tasks = [
        Buffer(
            x=torch.randn(n, 5, generator=draws),
            y=torch.randint(2 * t, 2 * t + 2, (n,), generator=draws),
            t=torch.full((n,), t + 1),
            reference=torch.rand(n, generator=draws),
        )
        for t, n in enumerate([14, 14, 40])
    ]
    together = learned.select(tasks, 12)
    assert together.shape == (3, 12)
    assert len({tuple(rows) for rows in together.tolist()}) == 3
    for task, rows in zip(tasks, together, strict=True):
        assert learned.select([task], 12)[0].tolist() == rows.tolist()


def test_csrel_never_selects_the_padding_of_a_shorter_task():
    learned = method("csrel")(build("linear", inputs=(2,), classes=2), selection_steps=3, selection_lr=0.1)
    tasks = [
        Buffer(
            x=torch.full((n, 2), torch.nan), y=torch.zeros(n, dtype=torch.int64),
            t=torch.full((n,), t), reference=torch.zeros(n),
        )
        for t, n in ((1, 5), (2, 9))
    ]  # fmt: skip
    assert int(learned.select(tasks, 4)[0].max()) < 5


class Tied(torch.nn.Module):
    """Two names for one weight."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_csrel_trains_tied_weights_side_by_side():
    model, x = Tied(), torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    assert_allclose(ModelCopies(model, 2)(x).detach(), model(x).detach(), rtol=1e-4, atol=1e-6)


def test_csrel_trains_models_side_by_side_with_their_own_statistics():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model[0].requires_grad_(False)
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    pair, single = ModelCopies(model, 2), ModelCopies(model, 1)
    before = {name: value.clone() for name, value in pair.state.items()}
    both = pair(x)
    for row in range(2):
        single.restart()
        assert_allclose(single(x[row : row + 1])[0].detach(), both[row].detach(), rtol=1e-4, atol=1e-6)
        assert_allclose(single.state["1.running_mean"], pair.state["1.running_mean"][row], rtol=1e-5)
    assert "0.weight" not in pair.state
    pair.restart()
    assert all(torch.equal(value, before[name]) for name, value in pair.state.items())


def test_csrel_reference_losses_come_from_a_model_of_the_task_alone(two_weights, data, gradient):
    (x, y), _ = data
    w = np.array([0.3, -0.2])
    options = {"epochs": 1, "batch": 5, "reference_epochs": 3, "reference_lr": 0.5}
    learned = method("csrel")(two_weights(w.tolist()), memory=10, **options)
    learned.learn(x, y)
    for _ in range(3):
        w = w - 0.5 * gradient(w, x, y).mean(0)
    p = np.exp(w * x) / np.exp(w * x).sum(1, keepdims=True)
    assert_allclose(learned.buffer.reference, -np.log(p[np.arange(5), y]), rtol=1e-10)


def test_csrel_weighs_the_buffer_by_alpha(two_weights, data, gradient):
    w = np.array([0.3, -0.2])
    options = {"epochs": 2, "batch": 10, "lr": 0.1, "alpha": 3.0, "reference_epochs": 1}
    learned = method("csrel")(two_weights(w.tolist()), memory=10, scenario="domain-incremental", **options)
    for number, (x, y) in enumerate(data):
        learned.learn(x, y)
        for _ in range(2):
            old = gradient(w, *data[0]).mean(0) * (number > 0)
            w = w - 0.1 * (gradient(w, x, y).mean(0) + 3.0 * old)
    assert_allclose(learned.model.head.w.detach(), w, rtol=1e-12)
