"""Every model by name: shapes, seeds, descriptions, and the sizes that the experiments pin."""

import hashlib
import json
import math

import pytest
import torch
from torch import nn

from cop2l.errors import UserError
from cop2l.models import MODELS, build, rebuild

INPUTS = {"mlp": (28, 28), "cnn": (28, 28), "linear": (384,), "mlp-head": (384,), "multi-head": (384,)}


@pytest.fixture(params=sorted(MODELS))
def name(request):
    return request.param


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_logits_are_the_head_of_the_features(name):
    model = build(name, inputs=INPUTS[name], classes=7, seed=3).eval()
    x = torch.linspace(-1, 1, 5 * math.prod(INPUTS[name])).reshape(5, *INPUTS[name])
    assert isinstance(model.head, nn.Linear)
    assert model(x).shape == (5, 7)
    assert torch.equal(model(x), model.head(model.features(x)))


def test_what_is_frozen_is_named_by_its_parameters():
    description = build("mlp", inputs=(4,), classes=2).description
    assert not rebuild({**description, "frozen": ["hidden.bias"]}).hidden.bias.requires_grad
    for names in (["nothing"], "hidden.bias", [["hidden.bias"]], {"hidden.bias": 1}):
        with pytest.raises(UserError, match="has no parameters"):
            rebuild({**description, "frozen": names})


def test_weights_are_a_function_of_the_seed(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, inputs=INPUTS[name], classes=10, seed=5)
    assert torch.equal(before, torch.get_rng_state()), "building drew from the global generator"
    torch.manual_seed(2)
    again = build(name, inputs=INPUTS[name], classes=10, seed=5)
    other = build(name, inputs=INPUTS[name], classes=10, seed=6)
    assert same(first, again)
    assert not same(first, other)


DIGESTS = {
    "cnn": "4376c44bc4e879aa",
    "linear": "9e07afa3604cafbc",
    "mlp": "e644f180f09a5dba",
    "mlp-head": "49f70bfb9cdf36fd",
    "multi-head": "e617a70546e711c0",
}


def test_initial_weights_are_these_bits_on_every_machine(name):
    state = build(name, inputs=INPUTS[name], classes=10, seed=5).state_dict()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values()))
    assert digest.hexdigest()[:16] == DIGESTS[name]


def test_a_description_survives_json(name):
    model = build(name, inputs=INPUTS[name], classes=10, seed=5)
    again = rebuild(json.loads(json.dumps(model.description)))
    assert again.description == model.description
    assert same(model, again)
    again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(("name", "shares"), [("mlp", [0.5]), ("cnn", [0.25] * 3)])
def test_dropout_is_the_papers(name, shares):
    model = build(name, inputs=INPUTS[name], classes=10, seed=0)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == shares


def test_multi_head_has_no_activation_between_its_layers():
    model = build("multi-head", inputs=(6,), classes=4, seed=0).double()
    a, b = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zero = model(torch.zeros(1, 6).double())
    assert torch.allclose(model((a + b)[None]) + zero, model(a[None]) + model(b[None]))


def test_cnn_takes_channels_and_flat_pictures():
    colour = build("cnn", inputs=(3, 32, 32), classes=10, seed=0).eval()
    x = torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    assert torch.equal(colour(x), colour(x.flatten(1)))


def test_options_reach_the_model():
    model = build("mlp", inputs=(20,), classes=3, seed=0, hidden=16, dropout=0.0)
    assert model.head.in_features == 16
    assert model.description["hidden"] == 16
    assert torch.equal(model(torch.ones(2, 20)), model.eval()(torch.ones(2, 20)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mpl"}, "did you mean 'mlp'"),
        ({"name": "mlp", "width": 3}, "no option 'width'; its options are: hidden, dropout"),
        ({"name": "linear", "hidden": 3}, "it has no options"),
        ({"name": "mlp", "hidden": 0}, "'hidden'"),
        ({"name": "mlp", "hidden": True}, "'hidden'"),
        ({"name": "mlp", "inputs": 28}, "the shape of one example"),
        ({"name": "mlp", "classes": 2.5}, "and 2.5"),
        ({"name": "mlp", "dropout": 1.5}, "'dropout'"),
        ({"name": "mlp", "classes": 0}, "0 classes"),
        ({"name": "mlp", "inputs": ()}, "inputs"),
        ({"name": "cnn", "inputs": (784,)}, "use 'mlp'"),
        ({"name": "cnn", "inputs": (8, 8)}, "at least 10 x 10"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as caught:
        build(**({"inputs": (28, 28), "classes": 10, "seed": 0} | arguments))
    assert "\n" not in str(caught.value)


def test_a_description_that_lacks_something():
    with pytest.raises(UserError, match="lacks inputs, seed"):
        rebuild({"name": "mlp", "classes": 10})


def test_initial_weights_are_those_of_the_seed_whatever_torchs_default_precision_is():
    expected = build("linear", inputs=(5,), classes=3, seed=1).double().state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        state = build("linear", inputs=(5,), classes=3, seed=1).state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(value, state[name]) for name, value in expected.items())
