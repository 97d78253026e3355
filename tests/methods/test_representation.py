"""Features and last layer of models that say so, and of those that do not."""

import pytest
import torch
from torch import nn

from cop2l.errors import UserError
from cop2l.methods import method
from cop2l.methods.representation import Representation
from cop2l.models import build


class Shuffled(nn.Module):
    """Its last linear layer is not the last in the list of modules."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.hidden = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.hidden(x).relu())


@pytest.mark.parametrize("model", [Shuffled(), build("mlp", inputs=(4,), classes=2, dropout=0.0)])
def test_logits_are_the_head_of_the_features(model):
    x = torch.randn(5, 4)
    split = Representation(model, x[:1])
    features, logits = split.features_and_logits(x)
    assert torch.equal(split.head(features), logits)
    assert torch.equal(logits, model(x))
    assert torch.equal(split.features(x), features)
    assert {id(p) for p in split.parameters} == {id(p) for p in model.hidden.parameters()}


def test_a_model_without_a_linear_layer_is_told_what_to_have():
    with pytest.raises(UserError, match="features"):
        Representation(nn.Conv2d(1, 2, 1), torch.zeros(1, 1, 2, 2))


@pytest.mark.parametrize("name", ["icarl", "lfl", "cclis"])
def test_methods_that_need_features_take_a_model_of_ones_own(name):
    options = {"cclis": {"head_epochs": 2}}.get(name, {})
    scenario = "domain-incremental" if name == "lfl" else "class-incremental"
    learned = method(name)(Shuffled(), scenario=scenario, epochs=2, batch=4, **options)
    x, y = torch.randn(12, 4), torch.arange(12) % 2
    learned.learn(x, y)
    assert learned.predict(x).shape == (12,)
