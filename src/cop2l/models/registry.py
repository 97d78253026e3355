"""Models by name: built from a seed, described in JSON, built again from the description."""

import inspect
import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import nn

from cop2l.errors import UserError, unknown
from cop2l.models.classifiers import CNN, MLP, Classifier, Linear, MLPHead, MultiHead, RandomFeatures
from cop2l.models.scale import scale_of
from cop2l.randomness import uniform

MODELS: dict[str, type[Classifier]] = {
    "mlp": MLP,
    "cnn": CNN,
    "linear": Linear,
    "mlp-head": MLPHead,
    "multi-head": MultiHead,
    "random-features": RandomFeatures,
}


def build(
    name: str,
    *,
    inputs: Sequence[int],
    classes: int,
    seed: int = 0,
    scale: Any = None,
    **options: Any,
) -> Classifier:
    """A new model; its initial weights are a function of `seed`.

    `inputs` is the shape of one example, `classes` the number of classes of the whole stream, `scale` a shift and a
    factor that bring inputs near 1, such as [127.5, 0.0078125], or a list of each, for columns or channels.

    >>> model = build("mlp", inputs=(28, 28), classes=10, seed=0)
    >>> model(torch.zeros(3, 28, 28)).shape, model.features(torch.zeros(3, 784)).shape
    (torch.Size([3, 10]), torch.Size([3, 512]))
    >>> model.description
    {'name': 'mlp', 'inputs': [28, 28], 'classes': 10, 'seed': 0, 'hidden': 512, 'dropout': 0.5}
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    try:
        shape, classes = tuple(index(size) for size in inputs), index(classes)
    except TypeError:
        raise UserError(
            f"A model needs the shape of one example and a number of classes: inputs=(28, 28) and classes=10, say, not "
            f"{inputs!r} and {classes!r}."
        ) from None
    if not shape or min(shape) < 1 or classes < 1:
        raise UserError(f"A model needs inputs and classes, not inputs {shape} and {classes} classes.")
    chosen = _defaults(name) | options
    _check(name, chosen)
    with torch.device("meta"):  # nothing is drawn
        model = MODELS[name](shape, classes, **chosen)
    model.to_empty(device="cpu")
    initialise(model, seed)
    model.description = {"name": name, "inputs": list(shape), "classes": classes, "seed": int(seed), **chosen}
    if scale is not None:
        model.scale = scale_of(scale, shape)
        model.description["scale"] = scale
    return model


def initialise(model: nn.Module, seed: int) -> None:
    """Weights and biases of linear and convolutional layers, uniform in +-1/sqrt(fan_in), the same on every machine.

    Tensor i, counted from 0 in the order of the modules, has `uniform(seed, "initial weights", i)` / sqrt(fan_in), rounded to
    single precision. (torch's own draws differ between processors.)
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    tensors = [
        (layer, tensor) for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None
    ]
    for number, (layer, tensor) in enumerate(tensors):
        fan_in = layer.weight[0].numel()
        values = uniform(seed, "initial weights", number, n=tensor.numel()) / math.sqrt(fan_in)
        tensor.data.copy_(torch.from_numpy(values).float().view_as(tensor))


def rebuild(description: Mapping[str, Any]) -> Classifier:
    """The same architecture again; the weights are those of its seed until the caller loads others.

    >>> rebuild(build("linear", inputs=(4,), classes=3, seed=1).description)
    Linear(
      (head): Linear(in_features=4, out_features=3, bias=True)
    )
    """
    missing = [key for key in ("name", "inputs", "classes", "seed") if key not in description]
    if missing:
        raise UserError(f"The description of the model lacks {', '.join(missing)}.")
    given = dict(description)
    frozen, model = given.pop("frozen", []), build(**given)
    known = [name for name, _ in model.named_parameters()]
    if not isinstance(frozen, list) or not all(name in known for name in frozen):
        raise UserError(f"The model {given['name']!r} has no parameters {frozen!r:.60} that could be frozen.")
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def _defaults(name: str) -> dict[str, Any]:
    parameters = list(inspect.signature(MODELS[name]).parameters.values())[2:]  # after inputs, classes
    return {parameter.name: parameter.default for parameter in parameters}


def _check(name: str, options: Mapping[str, Any]) -> None:
    known = _defaults(name)
    for option, value in options.items():
        if option not in known:
            has = f"its options are: {', '.join(known)}." if known else "it has no options."
            raise UserError(f"The model {name!r} has no option {option!r}; {has}")
        if option == "hidden" and (type(value) is not int or value < 1):
            raise UserError(f"The option 'hidden' of the model is a width of at least 1, not {value!r}.")
        if option == "dropout" and (not isinstance(value, int | float) or not 0 <= value < 1):
            raise UserError(f"The option 'dropout' of the model is a share in [0, 1), not {value!r}.")
