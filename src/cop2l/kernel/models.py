"""cop2l's own models, as plain torch modules: a batch of inputs to one logit per class of the whole stream."""

import inspect
import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.kernel.options import UserError, unknown
from cop2l.kernel.scale import scale_layer
from cop2l.randomness import uniform

Inputs = tuple[int, ...]


class Classifier(nn.Module):
    """A representation, then a linear head: logits = head(features(x))."""

    head: nn.Linear
    description: dict[str, Any]
    """Name and all arguments of `build`."""

    def features(self, x: Tensor) -> Tensor:
        """The penultimate representation: the input of the head."""
        return self.numbers(x).flatten(1)

    def numbers(self, x: Tensor) -> Tensor:
        """The scaled inputs in the model's precision; integers, such as pixels, count as numbers."""
        inputs, scale = x.to(self.head.weight.dtype), self._modules.get("scale")
        return inputs if scale is None else scale(inputs)

    def forward(self, x: Tensor) -> Tensor:
        """One logit per class of the stream."""
        logits: Tensor = self.head(self.features(x))
        return logits


class Linear(Classifier):
    """One linear layer, on features or on flattened inputs."""

    def __init__(self, inputs: Inputs, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(inputs), classes)


class MLP(Classifier):
    """One hidden layer with ReLU and dropout (784-512-10 on MNIST)."""

    def __init__(self, inputs: Inputs, classes: int, hidden: int = 512, dropout: float = 0.5) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(inputs), hidden)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.hidden(self.numbers(x).flatten(1))
        dropped: Tensor = self.dropout(hidden.relu())
        return dropped


class MLPHead(MLP):
    """An MLP on the features of a frozen backbone, without dropout by default."""

    def __init__(self, inputs: Inputs, classes: int, hidden: int = 512, dropout: float = 0.0) -> None:
        super().__init__(inputs, classes, hidden, dropout)


class MultiHead(Classifier):
    """A shared linear layer d x d without activation, then one linear head per task.

    All heads are one layer: every logit is always computed, and the learner masks those of other tasks.
    """

    def __init__(self, inputs: Inputs, classes: int) -> None:
        super().__init__()
        width = math.prod(inputs)
        self.shared = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        shared: Tensor = self.shared(self.numbers(x).flatten(1))
        return shared


class CNN(Classifier):
    """Five convolutions and a global max-pool, for small pictures such as 28 x 28."""

    def __init__(self, inputs: Inputs, classes: int, dropout: float = 0.25) -> None:
        super().__init__()
        if len(inputs) not in (2, 3) or min(inputs[-2:]) < 10:
            raise UserError(f"The model 'cnn' needs pictures of at least 10 x 10 pixels, not {inputs}; use 'mlp'.")
        self.picture = inputs if len(inputs) == 3 else (1, *inputs)
        self.body = nn.Sequential(
            *_convolutions(self.picture[0], 32), nn.MaxPool2d(2), nn.Dropout(dropout),
            *_convolutions(32, 64), nn.MaxPool2d(2), nn.Dropout(dropout),
            nn.Conv2d(64, 64, 1), nn.ReLU(), GlobalMaxPool(), nn.Dropout(dropout),
        )  # fmt: skip
        self.head = nn.Linear(64, classes)

    def features(self, x: Tensor) -> Tensor:
        channels: Tensor = self.body(self.numbers(x).reshape(-1, *self.picture))
        return channels.flatten(1)


class GlobalMaxPool(nn.Module):
    """The largest value of each channel; unlike that of torch's adaptive pooling, its gradient is deterministic on CUDA."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(dim=(2, 3))


def _convolutions(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3), nn.ReLU()]


MODELS: dict[str, type[Classifier]] = {
    "mlp": MLP, "cnn": CNN, "linear": Linear, "mlp-head": MLPHead, "multi-head": MultiHead,
}  # fmt: skip


def build(name: str, *, inputs: Sequence[int], classes: int, seed: int = 0, scale: Any = None, **options: Any) -> Classifier:
    """A new model whose initial weights are a function of `seed`.

    inputs: the shape of one example. classes: the number of classes of the whole stream. scale: a shift and a factor that
    bring inputs near 1, such as [127.5, 0.0078125], or a list of shifts and one of factors, for columns or channels.

    >>> build("mlp", inputs=(28, 28), classes=10, seed=0).description
    {'name': 'mlp', 'inputs': [28, 28], 'classes': 10, 'seed': 0, 'hidden': 512, 'dropout': 0.5}
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    shape = tuple(inputs) if isinstance(inputs, Sequence) else ()
    # the product of a million sizes takes hours
    if not 0 < len(shape) < 9 or not all(hasattr(size, "__index__") and size >= 1 for size in (*shape, classes)):
        shown = f"{inputs!r:.60} and {classes!r:.60} classes"
        raise UserError(f"A model needs inputs, as (28, 28), the shape of one example, not {shown}.")
    shape, classes = tuple(map(index, shape)), index(classes)
    arguments = _defaults(name) | options
    _check_options(name, arguments)
    shapes_alone = torch.empty(0).is_meta  # the device that a caller chose who wants no weights
    with torch.device("meta"):
        model = MODELS[name](shape, classes, **arguments)
    if not shapes_alone:
        model.to_empty(device="cpu")
        initialise(model, seed)
    model.description = {"name": name, "inputs": list(shape), "classes": classes, "seed": int(seed), **arguments}
    if scale is not None:
        model.scale = scale_layer(scale, shape)
        model.description["scale"] = scale
    return model


def initialise(model: nn.Module, seed: int) -> None:
    """Set weights and biases of linear and convolutional layers to draws that are the same on every machine.

    They are uniform in +-1/sqrt(fan_in). Tensor i, counted from 0 in the order of the modules, has
    `uniform(seed, "initial weights", i)` / sqrt(fan_in), rounded to single precision. (torch's draws differ between processors.)
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    tensors = [(layer, tensor) for layer in layers for tensor in (layer.weight, layer.bias) if tensor is not None]
    for number, (layer, tensor) in enumerate(tensors):
        fan_in = layer.weight[0].numel()
        values = uniform(seed, "initial weights", number, n=tensor.numel()) / math.sqrt(fan_in)
        tensor.data.copy_(torch.from_numpy(values).float().view_as(tensor))


def rebuild(description: Mapping[str, Any]) -> Classifier:
    """The model of this description, with the weights of its seed."""
    missing = [key for key in ("name", "inputs", "classes", "seed") if key not in description]
    if missing:
        raise UserError(f"The description of the model lacks {', '.join(missing)}.")
    arguments = dict(description)
    frozen, model = arguments.pop("frozen", []), build(**arguments)
    parameters = [name for name, _ in model.named_parameters()]
    if not isinstance(frozen, list) or not all(name in parameters for name in frozen):
        raise UserError(f"The model {arguments['name']!r} has no parameters {frozen!r:.60} that could be frozen.")
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


def _defaults(name: str) -> dict[str, Any]:
    parameters = list(inspect.signature(MODELS[name]).parameters.values())[2:]  # after inputs, classes
    return {parameter.name: parameter.default for parameter in parameters}


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    defaults = _defaults(name)
    for option, value in options.items():
        if option not in defaults:
            choices = f"its options are: {', '.join(defaults)}." if defaults else "it has no options."
            raise UserError(f"The model {name!r} has no option {option!r}; {choices}")
        if option == "hidden" and (type(value) is not int or value < 1):
            raise UserError(f"The option 'hidden' of the model is a width of at least 1, not {value!r:.60}.")
        if option == "dropout" and (not isinstance(value, int | float) or not 0 <= value < 1):
            raise UserError(f"The option 'dropout' of the model is a share in [0, 1), not {value!r:.60}.")
