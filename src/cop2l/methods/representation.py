"""A model as a representation and a last linear layer, for methods that need the two apart."""

from typing import Any

import torch
from torch import Tensor, nn

from cop2l.errors import UserError


class Representation:
    """A model with logits = head(features(x)).

    The model's own `features` and `head` if it has both. Otherwise head is its last nn.Linear, and features are the inputs of
    that layer. The last one is the nn.Linear that runs last on an example.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self.model = model
        self.is_declared = callable(getattr(model, "features", None)) and isinstance(
            getattr(model, "head", None), nn.Module
        )
        self.head: nn.Module = model.head if self.is_declared else last_linear(model, example)  # type: ignore[assignment]

    def features_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, d) and logits (n, classes) of a batch."""
        if self.is_declared:
            features: Tensor = self.model.features(x)  # type: ignore[operator]
            return features, self.head(features)
        inputs_of_head: list[Tensor] = []

        def note_inputs(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            inputs_of_head.append(inputs[0])

        handle = self.head.register_forward_pre_hook(note_inputs)
        try:
            logits = self.model(x)
        finally:
            handle.remove()
        return inputs_of_head[-1], logits

    def features(self, x: Tensor) -> Tensor:
        """Features (n, d) of a batch."""
        return self.model.features(x) if self.is_declared else self.features_and_logits(x)[0]  # type: ignore[operator]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters below the head."""
        of_head = {id(p) for p in self.head.parameters()}
        return [p for p in self.model.parameters() if p.requires_grad and id(p) not in of_head]


def last_linear(model: nn.Module, example: Tensor) -> nn.Linear:
    """The nn.Linear that runs last.

    >>> last_linear(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4)), torch.zeros(1, 2))
    Linear(in_features=3, out_features=4, bias=True)
    """
    layers: list[nn.Linear] = []  # in the order in which they run

    def note_layer(module: nn.Linear, *_: Any) -> None:
        layers.append(module)

    handles = [m.register_forward_hook(note_layer) for m in model.modules() if isinstance(m, nn.Linear)]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    if not layers:
        raise UserError(
            "The model has no nn.Linear and no features() and head; give it those two, so that logits are "
            "head(features(x))."
        )
    return layers[-1]
