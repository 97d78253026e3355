"""A training step against torch and a sum by hand, and which rows are in a mini-batch."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from learner_cases import model_of, parameters, same_bits

from cop2l.kernel.exact import sample
from cop2l.kernel.training import Optimiser, mini_batches, train


def examples(n, width=25, classes=3):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, width, generator=draw), torch.randint(classes, (n,), generator=draw)
    return sample(x, y, 1, 0), torch.rand(n, generator=draw)


def batches_of(n, size, epochs, seed_words):
    """The positions of every mini-batch, and how many of them count."""
    for table in mini_batches(n, size, epochs, seed_words):
        for number, positions in enumerate(table):
            yield positions, min(size, n - number * size)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 11])
def test_every_mini_batch_is_filled_with_its_own_rows(n):
    def draw(*seed_words):
        return [(positions.tolist(), count) for positions, count in batches_of(n, 4, 2, seed_words)]

    batches = draw(0, "update", 1, 2)
    sizes = [4] * (n // 4) + [n % 4] * (n % 4 > 0)
    assert [count for _, count in batches] == sizes * 2
    for epoch in (batches[: len(sizes)], batches[len(sizes) :]):
        rows = [positions[:count] for positions, count in epoch]
        assert sorted(itertools.chain(*rows)) == list(range(n))
        assert all(positions == (own * 4)[:4] for (positions, _), own in zip(epoch, rows, strict=True))
    assert n > 4 or rows == [list(range(n))]  # a single mini-batch is not shuffled
    assert batches == draw(0, "update", 1, 2)
    if n == 11:
        others = [
            draw(*words)
            for words in ((1, "update", 1, 2), (0, "other", 1, 2), (0, "update", 2, 2), (0, "update", 1, 3))
        ]
        assert all(other != batches for other in others)
        assert batches[:3] != batches[3:]


@pytest.mark.parametrize("head", [None, [0, 2]])
@pytest.mark.parametrize("n", [5, 8, 11])
def test_training_goes_down_the_weighted_mean_of_every_mini_batch(n, head):
    """In float64, where what is left out of a mean shows; the head of the task is all classes, or two of them."""
    (trained, weight), classes = examples(n), head or [0, 1, 2]
    trained.y[trained.y == 1] = 2 if head else 1
    hidden = torch.tensor([[False] * 3, [c not in classes for c in range(3)]]) if head else None
    model, expected = model_of("linear", 3).double(), model_of("linear", 3).double()
    words = (0, "update", 1, 1)
    train(model, Optimiser(model, "sgd", 0.5), trained, weight, 2, 8, words, hidden)
    for positions, count in batches_of(n, 8, 2, words):
        rows = positions[:count]
        log_p = expected(trained.x[rows].double())[:, classes].log_softmax(1)
        losses = [-log_p[i, classes.index(int(label))] for i, label in enumerate(trained.y[rows])]
        loss = sum(w * one for w, one in zip(weight[rows].double(), losses, strict=True)) / count
        gradients = torch.autograd.grad(loss, list(expected.parameters()))
        for p, g in zip(expected.parameters(), gradients, strict=True):
            p.data -= 0.5 * g
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
    assert not model.training


def test_logits_may_have_another_precision_than_the_weights():
    class Single(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).float()

    (trained, weight), model = examples(8, width=5), Single(5, 3).double()
    start = parameters(model)
    train(model, Optimiser(model, "sgd", 0.1), trained, weight.double(), 1, 8, (0, "update", 1, 1))
    assert not same_bits(parameters(model), start)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_optimisers_are_those_of_torch(name):
    (trained, _), direct, composed = (
        examples(40),
        model_of("mlp", 3).double().eval(),
        model_of("mlp", 3).double().eval(),
    )
    optimiser, x = Optimiser(direct, name, 0.05), trained.x.double()
    reference = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05),
        "adam": lambda p: torch.optim.Adam(p, 0.05),
    }[name](composed.parameters())
    for _ in range(12):
        optimiser.descend(torch.autograd.grad(F.cross_entropy(direct(x), trained.y), optimiser.parameters))
        reference.zero_grad()
        F.cross_entropy(composed(x), trained.y).backward()
        reference.step()
    for one, other in zip(direct.parameters(), composed.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
        assert one.grad is None
