"""The model as a learner left it: its parameters, and what shows that it was changed since."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from cop2l.certify.fast import ScoringMode, input_blocks
from cop2l.kernel.learning import Examples, digest, exact_arithmetic, padded
from cop2l.kernel.verify import machine

PROBED = 128
"""For so many examples the answers of a model are compared with those that it gave before."""


class State(NamedTuple):
    """What a change of the model by hand would change."""

    theta: str
    kinds: list[tuple[str, type, bool]]
    """The name and the type of each module, and whether its forward was put there by hand."""
    unsaved: dict[str, str]
    answers: tuple[str, str] | None
    """Where the model ran, and its logits for some examples in memory: hooks, attributes and code can change them, too."""

    def still(self, now: "State") -> bool:
        """Whether it is the same now; a buffer that is not saved may have been added, as a cache is when it is first used."""
        return (
            self[:2] == now[:2]
            and self.unsaved.items() <= now.unsaved.items()
            and same_answers(self.answers, now.answers)
        )


def same_answers(one: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    """Whether nothing shows that two models answer differently; another machine may round in another way."""
    return one is None or other is None or one[0] != other[0] or one[1] == other[1]


def state(model: nn.Module, held: Sequence[Examples], threads: int) -> State:
    """The state of the model, with its answers for some of the newest examples held, and for zeros."""
    kinds = [(name, type(module), "forward" in vars(module)) for name, module in model.named_modules()]
    logits = dict[str, Tensor]()
    if held:
        newest = next((part for part in reversed(held) if len(part)), held[-1])
        some = padded(newest.x[:PROBED], PROBED)
        with exact_arithmetic(threads), ScoringMode(model):
            logits["logits"] = model(next(input_blocks(model, some, PROBED)))
    theta, answers = digest(parameters(model)), (machine(model), digest(logits)) if logits else None
    unseen = {name: digest({name: value}) for name, value in unsaved(model).items()}
    return State(theta, kinds, unseen, answers)


def trained(model: nn.Module) -> list[str]:
    """The names of the parameters that are trained."""
    return [name for name, value in model.named_parameters() if value.requires_grad]


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """theta: all parameters and buffers of the model, copied to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def load_parameters(model: nn.Module, theta: Mapping[str, Tensor]) -> None:
    """Put theta into the model, wherever that is."""
    device = next(model.parameters()).device
    model.load_state_dict({name: value.to(device) for name, value in theta.items()})


def unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that are not in the model's state_dict, so that they could not be rolled back or saved."""
    kept = model.state_dict().keys()
    return {name: value.clone() for name, value in model.named_buffers() if name not in kept}


def own_numbers(model: nn.Module) -> dict[str, str]:
    """Numbers, as texts, that modules of the user's own keep as plain attributes, such as a count of calls."""
    return {
        f"{name}.{key}".lstrip("."): repr(value)
        for name, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for key, value in vars(module).items()
        if isinstance(value, int | float) and key != "training"
    }
