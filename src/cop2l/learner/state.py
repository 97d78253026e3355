"""The state that a learner carries from task to task beside its engine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certificates.certificate import Certificate
from cop2l.errors import UserError
from cop2l.kernel.exact import digest
from cop2l.learner.inputs import short_reason
from cop2l.models import MODELS, rebuild

TRAINED = set[str]()
"""Hashes of the parameters that learners of this process have trained."""


@dataclass
class State:
    """The state beside the engine. Lists are replaced, never changed in place, so that a shallow copy is a copy."""

    theta_0: dict[str, Tensor]
    """The initial parameters."""
    trained: list[str]
    """The names of the parameters that are trained."""
    threads: int
    """The number of threads of every computation."""
    not_valid: tuple[str, ...]
    """Reasons, as sentences, why the assumptions of the certificates do not hold for this data."""
    data: dict[str, Any] | None
    """How the data can be loaded again."""
    commitment: str | None
    """The hash of the commitment that certificates name."""
    theta_digest: str
    """The digest of the parameters after the newest task."""
    repeats: bool = False
    """Whether rows of a task were declared to be draws, so that equal ones are no copies."""
    hashes: list[np.ndarray] = field(default_factory=list)
    """For each task, the hash of every row."""
    void_tasks: tuple[int, ...] = ()
    """Tasks whose bounds do not hold, because they share rows with another task."""
    heads: list[tuple[int, ...]] = field(default_factory=list)
    """For each task, its classes."""
    fingerprints: list[str] = field(default_factory=list)
    """For each task, the fingerprint of its data."""
    claim_columns: list[dict[str, np.ndarray]] = field(default_factory=list)
    """For each task, the columns that claims need: `labels`, numbers of `groups`, and which rows were `wrong` just after it."""
    machines: list[str] = field(default_factory=list)
    """The machines that learned, the newest last."""
    classes: int | None = None
    """The number of outputs of the model; None before the first task."""
    certificate: Certificate | None = None
    """The certificate after the newest task."""
    issued_statements: list[list[Any]] | None = None
    """Of that certificate: family, task, subject and kind of each statement."""
    columns: list[str] | None = None
    """The names of the inputs in order, if the first task came in a data frame."""

    def issue(self, statements: Sequence[Mapping[str, Any]]) -> None:
        """Remember what the certificate after the newest task states; refuse a second one that states something else."""
        issued = [[s[name] for name in ("family", "task", "subject", "kind")] for s in statements]
        if not issued:
            raise UserError(
                "Without the data of any task there is nothing to certify from; give data={1: (x, y), ...}."
            )
        if self.issued_statements not in (None, issued):
            raise UserError(
                f"After task {len(self.heads)} a certificate was issued already, with other data at hand; a second one would"
                " spend delta twice. Use that one, or learn the next task first."
            )
        self.issued_statements = issued


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """A copy on the CPU of theta: all parameters and buffers of the model."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def load_parameters(model: nn.Module, theta: Mapping[str, Tensor]) -> None:
    """Put theta into the model, on its device."""
    device = next(model.parameters()).device
    model.load_state_dict({name: value.to(device) for name, value in theta.items()})


def trained_names(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def check_unchanged(learner: Any) -> None:
    """Refuse parameters that were changed after the newest task: no certificate would hold for them."""
    if digest(learner.model.state_dict()) != learner.state.theta_digest:
        when = f"task {learner.tasks_seen} was learned" if learner.tasks_seen else "the learner was made"
        raise UserError(
            f"The model's parameters were changed after {when}; put them back, or make or load the learner again: a certificate"
            " holds only for what it learned itself."
        )


def unused_copy(model: nn.Module) -> nn.Module:
    """A copy of a model, to be made before its first call, of which it may keep something; theta stays shared."""
    theta = model.state_dict(keep_vars=True).values()
    try:
        return deepcopy(model, {id(value): value for value in theta})
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"The model cannot be copied, so it cannot be checked: {short_reason(error)}."
        ) from None


def parameter_hashes(model: nn.Module) -> set[str]:
    """A hash of each trained parameter, whatever its name is."""
    return {digest({"": value}) for value in model.parameters() if value.requires_grad}


@contextmanager
def recorded_training(model: nn.Module) -> Iterator[None]:
    """Remember which parameters the block trains, so that no other learner takes them for initial ones."""
    before = parameter_hashes(model)
    yield
    TRAINED.update(parameter_hashes(model) - before)


def was_trained_before(model: nn.Module) -> bool:
    """Whether a learner of this process trained some of its parameters."""
    return not TRAINED.isdisjoint(parameter_hashes(model))


def has_other_weights(model: nn.Module) -> bool:
    """Whether it is a model of cop2l, with other weights than those of its seed."""
    description: Any = getattr(model, "description", None)
    if type(model) not in MODELS.values() or description is None:
        return False
    initial, weights = (dict(part.named_parameters()) for part in (rebuild(description), model))
    return initial.keys() != weights.keys() or not all(
        torch.equal(value.cpu(), initial[name].to(value.dtype)) for name, value in weights.items()
    )


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch use this many threads in a with statement."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def all_or_nothing(model: nn.Module, *owners: tuple[Any, Iterable[str]]) -> Iterator[None]:
    """If an error or an interruption ends the block, put the model and the named attributes of its owners back."""
    theta, unsaved = parameters(model), _unsaved(model)
    before = [(owner, name, _copied(getattr(owner, name))) for owner, names in owners for name in names]
    try:
        yield
        _check_unsaved(model, unsaved)
    except BaseException as error:
        load_parameters(model.eval(), theta)
        for name, value in unsaved.items():
            if isinstance(value, Tensor):
                model.get_buffer(name).copy_(value)
        for owner, name, value in before:
            setattr(owner, name, value)
        if isinstance(error, IndexError) and "in self" in str(error):  # of torch.nn.Embedding
            raise UserError(f"The model looks up an input that it does not have: {error}.") from error
        raise


def _copied(value: Any) -> Any:
    """A copy. The lists of a `State` are replaced, never changed in place, so that a shallow copy of it is enough."""
    return copy(value) if is_dataclass(value) else deepcopy(value)


def _check_unsaved(model: nn.Module, before: Mapping[str, Any]) -> None:
    """Refuse a model with changes that its state_dict lacks: a saved model would answer otherwise than the certified one."""
    for name, value in _unsaved(model).items():
        old = before.get(name, value)
        if not (torch.equal(value, old) if isinstance(value, Tensor) else repr(value) == repr(old)):
            raise UserError(
                f"The model's {name!r} changes as the model runs but is not in its state_dict, and its answers may change"
                " with it; make it a persistent buffer, or leave it out."
            )


def _unsaved(model: nn.Module) -> dict[str, Any]:
    """Buffers that the state_dict lacks, and numbers that modules of the user's own keep, such as a count of calls."""
    saved = model.state_dict().keys()
    numbers = {
        f"{prefix}.{name}".lstrip("."): value
        for prefix, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for name, value in vars(module).items()
        if isinstance(value, int | float | np.number) and name != "training"
    }
    return numbers | {name: value.clone() for name, value in model.named_buffers() if name not in saved}
