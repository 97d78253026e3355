"""Training against a loop that is written out."""

import pytest
import torch
import torch.nn.functional as F

from cop2l.kernel.exact import sample
from cop2l.kernel.training import Optimiser, train
from cop2l.models import build
from cop2l.randomness import generator


@pytest.mark.parametrize("n", [1, 3, 8, 9, 16, 21])
def test_an_epoch_visits_every_example_once_in_the_order_of_its_words(n):
    """Each step goes down the weighted mean over its mini-batch, and the last one has fewer examples."""
    draws = torch.Generator().manual_seed(n)
    x, y = torch.randn(n, 5, generator=draws, dtype=torch.float64), torch.randint(3, (n,), generator=draws)
    weight, words = torch.rand(n, generator=draws, dtype=torch.float64) + 0.5, (5, "update", 2, 7)
    model, written = (build("linear", inputs=(5,), classes=3, seed=0).double() for _ in range(2))
    train(model, Optimiser(model, "sgd", 0.3), sample(x, y, 1, 0), weight, 3, 8, words)
    order, optimiser = generator(5, "update order", 2, 7), torch.optim.SGD(written.parameters(), lr=0.3)
    for _ in range(3):
        rows = torch.randperm(n, generator=order) if n > 8 else torch.arange(n)
        for batch in torch.split(rows, 8):
            optimiser.zero_grad()
            (F.cross_entropy(written(x[batch]), y[batch], reduction="none") * weight[batch]).mean().backward()
            optimiser.step()
    for one, other in zip(model.parameters(), written.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)
