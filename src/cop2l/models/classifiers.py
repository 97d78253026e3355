"""The trainable models: a batch of inputs to one logit per class of the whole stream.

Plain torch modules. Nothing is padded here: scoring pads where exactness asks for it.
"""

import math
from typing import Any

from torch import Tensor, nn

from cop2l.errors import UserError

Inputs = tuple[int, ...]


class Classifier(nn.Module):
    """A representation, then one linear layer: logits = head(features(x))."""

    head: nn.Linear
    description: dict[str, Any]
    """Name and all arguments: enough to build the same architecture again."""
    fixed: tuple[str, ...] = ()
    """Parameters that are never trained."""

    def features(self, x: Tensor) -> Tensor:
        """The penultimate representation: the input of the head."""
        return self.numbers(x).flatten(1)

    def numbers(self, x: Tensor) -> Tensor:
        """The inputs in the model's precision, scaled: integers, such as pixels, are quantities here."""
        found, scale = x.to(self.head.weight.dtype), self._modules.get("scale")
        return found if scale is None else scale(found)

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
        """The hidden layer."""
        hidden: Tensor = self.hidden(self.numbers(x).flatten(1))
        dropped: Tensor = self.dropout(hidden.relu())
        return dropped


class MLPHead(MLP):
    """An MLP on the features of a frozen backbone: no dropout unless asked for."""

    def __init__(self, inputs: Inputs, classes: int, hidden: int = 512, dropout: float = 0.0) -> None:
        super().__init__(inputs, classes, hidden, dropout)


class RandomFeatures(Classifier):
    """A linear head on fixed random features of the inputs: relu of a random projection that is never trained."""

    fixed = ("projection.weight",)

    def __init__(self, inputs: Inputs, classes: int, hidden: int = 2000) -> None:
        super().__init__()
        self.projection = nn.Linear(math.prod(inputs), hidden, bias=False).requires_grad_(False)
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """The random features."""
        projected: Tensor = self.projection(self.numbers(x).flatten(1))
        return projected.relu()


class MultiHead(Classifier):
    """A shared linear layer d x d without activation, then one linear head per task.

    All heads are one layer, so that every logit is always computed; the learner keeps those of the task.
    """

    def __init__(self, inputs: Inputs, classes: int) -> None:
        super().__init__()
        width = math.prod(inputs)
        self.shared = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """The shared layer."""
        shared: Tensor = self.shared(self.numbers(x).flatten(1))
        return shared


class CNN(Classifier):
    """Five convolutions and a global max-pool, for small pictures such as 28 x 28."""

    def __init__(self, inputs: Inputs, classes: int, dropout: float = 0.25) -> None:
        super().__init__()
        if len(inputs) not in (2, 3) or min(inputs[-2:]) < 10:
            raise UserError(
                f"The model 'cnn' needs pictures of at least 10 x 10 pixels, not {inputs}; use 'mlp'."
            )
        self.picture = inputs if len(inputs) == 3 else (1, *inputs)
        self.body = nn.Sequential(
            *_convolutions(self.picture[0], 32), nn.MaxPool2d(2), nn.Dropout(dropout),
            *_convolutions(32, 64), nn.MaxPool2d(2), nn.Dropout(dropout),
            nn.Conv2d(64, 64, 1), nn.ReLU(), GlobalMaxPool(), nn.Dropout(dropout),
        )  # fmt: skip
        self.head = nn.Linear(64, classes)

    def features(self, x: Tensor) -> Tensor:
        """The 64 channels after the global max-pool."""
        channels: Tensor = self.body(self.numbers(x).reshape(-1, *self.picture))
        return channels.flatten(1)


class GlobalMaxPool(nn.Module):
    """The largest value of each channel; unlike torch's adaptive pooling its gradient is deterministic on CUDA."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) to (n, channels)."""
        return x.amax(dim=(2, 3))


def _convolutions(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3), nn.ReLU()]
