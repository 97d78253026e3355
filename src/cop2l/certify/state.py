"""What a learner carries from task to task beside the engine: it goes back where learning a task fails.

The model is part of it: parameters that were changed by hand are refused, and so is what training changes without storing it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.certificate import Certificate
from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, digest, model_input, score
from cop2l.kernel.options import Refusal
from cop2l.randomness import private_randomness

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

PROBED = 128
"""So many examples show whether a step of training can be undone."""


@dataclass
class State:
    """Lists are never changed in place: a copy of this object is a copy of the state."""

    theta_0: dict[str, Tensor]
    trained: list[str]
    """The names of the parameters that are trained."""
    threads: int
    scale: str
    """Whether the prior examples of the first task scale the inputs ("prior") or nothing does ("none")."""
    not_valid: tuple[str, ...]
    """Reasons, in sentences, why the certificates' assumptions do not hold for this data."""
    data: dict[str, Any] | None
    """How the data can be had again."""
    commitment: str | None
    theta: str
    """The digest of the parameters that the newest task left."""
    repeats: bool = False
    """Whether it was declared that rows of a task may be equal, each drawn on its own."""
    hashes: list[np.ndarray] = field(default_factory=list)
    """Of each task a hash of every row, by which rows that come again are found when the data is gone."""
    void: tuple[int, ...] = ()
    """Tasks of which no bound holds, because of rows that are copies or that other tasks have too."""
    heads: list[tuple[int, ...]] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    facts: list[dict[str, np.ndarray]] = field(default_factory=list)
    """Of each task's rows, as far as something is claimed of it: labels, numbers of groups, and which were wrong after it."""
    machines: list[str] = field(default_factory=list)
    classes: int | None = None
    """How many outputs the model has; known at the first task."""
    certificate: Certificate | None = None
    issued: list[list[Any]] | None = None
    """Of the certificate after the newest task: family, task, subject and kind of each statement."""
    columns: list[str] | None = None
    """The names of the inputs, in order, if the first task came in a frame."""


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """theta: all parameters and buffers of the model, copied to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def load_parameters(model: nn.Module, theta: Mapping[str, Tensor]) -> None:
    """Put theta into the model, wherever that is."""
    device = next(model.parameters()).device
    model.load_state_dict({name: value.to(device) for name, value in theta.items()})


def trained_names(model: nn.Module) -> list[str]:
    """The names of the parameters that are trained."""
    return [name for name, value in model.named_parameters() if value.requires_grad]


def use_model(learner: "CoP2L", model: nn.Module) -> None:
    """Let a learner begin with this model, before its first task."""
    learner.model = learner.engine.model = model.eval()
    learner.state.theta_0, learner.state.trained = parameters(model), trained_names(model)
    learner.state.theta = digest(learner.state.theta_0)


def check_unchanged(learner: "CoP2L") -> None:
    """Refuse parameters that are not as the newest task left them: no certificate would hold for them."""
    if digest(learner.model.state_dict()) != learner.state.theta:
        when = f"task {learner.tasks_seen} was learned" if learner.tasks_seen else "the learner was made"
        raise UserError(
            f"The model's parameters were changed after {when}; put them back, or make or load the learner again: a certificate"
            " holds only for what it learned itself."
        )


def check_undone(model: nn.Module, S: Examples, seed: int) -> None:
    """Refuse a model that training changes beyond its state_dict: going back to a kept iteration would not undo it."""
    some = S.take(np.arange(PROBED) % len(S))
    theta, (before, _) = parameters(model), score(model, some)
    with private_randomness(some.y.device, seed, "undone"):
        model.train()(model_input(model, some.take(np.arange(PROBED)).x))  # it may write into its input
    load_parameters(model, theta)
    if not torch.equal(score(model, some)[0], before):
        raise UserError(
            "Training changes something of the model that is not in its state_dict, and its answers with it; make it a "
            "persistent buffer."
        )


@contextmanager
def all_or_nothing(learner: "CoP2L") -> Iterator[None]:
    """If anything goes wrong inside, the learner is as before."""
    engine, model = learner.engine, learner.model
    theta, hidden, numbers = parameters(model), _unsaved(model), _plain_numbers(model)
    modes, state = [module.training for module in model.modules()], replace(learner.state)
    carried = {name: getattr(engine, name) for name in ("masked_classes", "trace")}
    carried |= {name: list(getattr(engine, name)) for name in ("sizes", "buffer", "prior", "prior_counts")}
    carried |= {"sets": [replace(one) for one in engine.sets], "sums": dict(engine.sums)}
    try:
        yield
        for name, number in _plain_numbers(model).items():
            if numbers.get(name, number) != number:
                raise UserError(
                    f"The model's attribute {name!r} changes as the model runs, and its answers may change with it; make it "
                    "a persistent buffer, or leave it out."
                )
        for name, value in _unsaved(model).items():
            if not torch.equal(value, hidden.get(name, value)):
                raise UserError(
                    f"The model's buffer {name!r} changes in training but is not in its state_dict; register it as persistent."
                )
    except BaseException as error:
        load_parameters(model, theta)
        for name, value in hidden.items():
            model.get_buffer(name).copy_(value)
        for module, training in zip(model.modules(), modes, strict=True):
            module.training = training
        learner.state = state
        for name, value in carried.items():
            setattr(engine, name, value)
        if isinstance(error, Refusal):
            raise UserError(str(error)) from None
        if isinstance(error, IndexError):  # of torch.nn.Embedding
            raise UserError(f"The model looks up an input that it does not have: {error}.") from error
        raise


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that are not in the model's state_dict, so that they could not be rolled back or saved."""
    kept = model.state_dict().keys()
    return {name: value.clone() for name, value in model.named_buffers() if name not in kept}


def _plain_numbers(model: nn.Module) -> dict[str, str]:
    """Numbers, as texts, that modules of the user's own keep as plain attributes, such as a count of calls."""
    return {
        f"{name}.{key}".lstrip("."): repr(value)
        for name, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for key, value in vars(module).items()
        if isinstance(value, int | float) and key != "training"
    }
