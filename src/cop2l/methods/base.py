"""The base class of the baselines: inputs on the device, batches, heads, saving. Each baseline defines `fit`."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import inf
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cop2l.console import Progress, progress_display
from cop2l.errors import UserError, unknown
from cop2l.files import read_tensors, write_tensors
from cop2l.kernel.exact import head_masks
from cop2l.learner.inputs import by_name, check_finite, features, labelled, labels, wrong_shape
from cop2l.learner.state import recorded_training
from cop2l.learner.validation import checked_logits
from cop2l.methods.buffer import Buffer, cycle
from cop2l.methods.sgd import SGD
from cop2l.models import rebuild
from cop2l.randomness import derive, generator, private_randomness
from cop2l.streams.task import SCENARIOS, Scenario

SAVED_METHOD = "method.safetensors"
BLOCK = 1024
"""Examples per forward pass outside training."""


@dataclass(frozen=True)
class MethodOptions:
    """Options of a method, each with its default; truth values and numbers are checked."""

    by_scenario: ClassVar[dict[str, dict[str, Any]]] = {}
    """Defaults that differ in one scenario."""
    positive: ClassVar[tuple[str, ...]] = ()
    """The options that may not be 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), cast("type", type(field.default))
            positive = field.name in self.positive
            if kind is bool:
                valid, requirement = isinstance(value, bool), "true or false"
            elif kind in (int, float):
                valid = isinstance(value, (int, kind)) and not isinstance(value, bool)
                valid = valid and (value > 0 if positive else value >= 0) and value < inf
                requirement = "a whole number" if kind is int else "a number"
                requirement += " larger than 0" if positive else " not below 0"
            else:
                continue
            if not valid:
                raise UserError(f"The option {field.name} is {value!r}; give {requirement}.")


@dataclass(frozen=True)
class CommonOptions(MethodOptions):
    """The options of every method that takes training steps; a method's own class adds to them."""

    epochs: int = 20
    """Passes over the examples that a task is learned from."""
    batch: int = 128
    """Examples of the task per step."""
    lr: float = 0.01
    """Learning rate of SGD."""

    positive: ClassVar[tuple[str, ...]] = ("epochs", "batch", "lr")


class Learner(ABC):
    """A method: a subclass defines `fit`, and `predict` if it does not predict the class with the largest logit."""

    Options: ClassVar[type[MethodOptions]] = CommonOptions
    refuses: ClassVar[dict[str, str]] = {}
    """Scenarios in which the method makes no sense, each with the reason."""
    restarts: ClassVar[bool] = False
    """Whether the method uses the initial weights again; then they are stored in `initial`."""
    in_blocks: ClassVar[bool] = False
    """Whether `fit` reads x in blocks; then x stays where it is and may be larger than the memory."""

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: int = 2000,
        seed: int = 0,
        scenario: Scenario = "class-incremental",
        **options: Any,
    ) -> None:
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        if scenario in self.refuses:
            raise UserError(
                f"{type(self).__name__} cannot learn a {scenario} stream: {self.refuses[scenario]}"
            )
        if memory < 0:
            raise UserError(f"The memory is {memory} examples; give 0 or more.")
        names = [field.name for field in fields(self.Options)]
        for name in options:
            if name not in names:
                raise unknown(f"option of {type(self).__name__}", name, names)
        self.model = model
        self.memory = memory
        self.seed = seed
        self.scenario = scenario
        self.options: Any = self.Options(**{**self.Options.by_scenario.get(scenario, {}), **options})
        self.tasks_seen = 0
        self.columns: list[str] | None = None
        """The names of the inputs, in order, if the first task came in a frame."""
        self.heads: list[tuple[int, ...]] = []
        self.outputs = 0  # of the model: known at the first task
        self.masked_classes: Tensor | None = None
        self.losses: list[Tensor] = []  # of the steps of this epoch
        self.progress: Progress | None = None
        self.initial = {k: v.detach().clone() for k, v in model.state_dict().items()} if self.restarts else {}
        self.buffer = Buffer()
        self.tensors: dict[str, Tensor] = {}
        """What the method stores for the next task beside model and buffer, by name."""

    @abstractmethod
    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t from tensors on the model's device (x: unless in_blocks); the model is in train mode."""

    # ---- for the user

    def learn(
        self,
        x: Any,
        y: Any = None,
        *,
        classes: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task. `classes` is its head, fixed in advance; needed if task-incremental."""
        t = self.tasks_seen + 1
        x, columns = by_name(x, y, self.columns)
        x, y = labelled(x, y)
        x, y = x if self.in_blocks else self.inputs(x), labels(y).to(self.device)
        self.heads = [*self.heads[: t - 1], self.checked_head(x, y, classes)]
        self.masked_classes = head_masks(self.heads, self.outputs, self.scenario, self.device)
        self.losses.clear()
        with (
            progress_display(progress) as self.progress,
            self.train_mode(True),
            recorded_training(self.model),
            private_randomness(self.device, self.seed, "learn", t),
        ):
            self.fit(x, y, t)
        if not all(bool((p < inf).all()) for p in self.model.parameters()):
            option = "lr or strength" if hasattr(self.options, "strength") else "lr"
            raise UserError(
                f"Training diverged at task {t}: the weights are not numbers; choose a smaller {option}."
            )
        self.tasks_seen, self.columns = t, columns

    def checked_head(self, x: Any, y: Tensor, classes: Sequence[int] | None) -> tuple[int, ...]:
        """The classes of the next task; refuses labels, classes and inputs that do not fit each other or the model."""
        t = self.tasks_seen + 1
        if len(x) != len(y) or not len(y):
            raise UserError(
                f"Task {t} has inputs {tuple(np.shape(x))} and labels {tuple(y.shape)}; give one per row."
            )
        if classes is None and self.scenario == "task-incremental":
            raise UserError(
                "A task-incremental task needs its head: give classes=, the task's class numbers."
            )
        present = torch.unique(y).tolist()
        try:
            head = tuple(present if classes is None else map(index, classes))
        except TypeError:
            raise UserError(f"classes must be class numbers, such as [4, 5], not {classes!r:.60}.") from None
        if stray := sorted(set(present) - set(head)):
            raise UserError(f"Task {t} has labels {stray} that are not among its classes; correct classes=.")
        self.outputs = self.logits(x[:1]).shape[-1]
        if min(head) < 0 or max(head) >= self.outputs:
            raise UserError(
                f"Task {t} has classes {head}, but the model has outputs 0 to {self.outputs - 1} only; build it with all."
            )
        return head

    def __repr__(self) -> str:
        memory = f"memory {self.memory_used} of {self.memory}"
        return f"{type(self).__name__}({type(self.model).__name__}, {self.scenario}, tasks learned: {self.tasks_seen}, {memory})"

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """Class of each example, int64 on the CPU; `task` (from 1) selects the head if task-incremental."""
        x = features(x, self.columns)
        check_finite(x)
        return self.mask_logits(self.logits(x), task).argmax(1).cpu()

    @property
    def memory_used(self) -> int:
        """The number of stored examples of past tasks."""
        return len(self.buffer)

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits, one row per example, on the CPU; refused if the method does not predict by them."""
        if (type(self).predict, type(self).logits) != (Learner.predict, Learner.logits):
            raise UserError(f"{type(self).__name__} does not predict by probabilities.")
        return self.mask_logits(self.logits(features(x, self.columns)), task).softmax(1).cpu()

    def use_model(self, model: nn.Module) -> None:
        """Take another model before the first task."""
        self.model = model
        if self.restarts:
            self.initial = {k: v.detach().clone() for k, v in model.state_dict().items()}

    # ---- for the methods

    @property
    def device(self) -> torch.device:
        """The device of the model, and therefore of the data."""
        return next(self.model.parameters()).device

    def batches(
        self,
        n: int,
        size: int,
        epochs: int,
        *,
        weights: Tensor | None = None,
        first: int = 0,
        total: int = 0,
    ) -> Iterator[Tensor]:
        """Index tensors of `size` rows: each epoch goes through range(n) in a new order.

        weights: each epoch is n draws with replacement, in proportion to them. first, total: a later training of the same
        task counts its epochs from `first`, and progress is shown out of `total`.
        """
        t, device = self.tasks_seen + 1, self.device
        for epoch in range(first, first + epochs):
            epoch_seed = derive(self.seed, "epoch", t, epoch)
            torch.default_generator.manual_seed(epoch_seed)  # for dropout; `learn` restores the global state
            if device.type == "cuda":
                torch.cuda.default_generators[device.index or 0].manual_seed(epoch_seed)
            draws = torch.Generator().manual_seed(epoch_seed)
            if weights is None:
                order = torch.randperm(n, generator=draws).to(device)
            else:
                order = torch.multinomial(weights.cpu(), n, replacement=True, generator=draws).to(device)
            yield from torch.split(order, size)
            if self.progress and self.losses:
                loss = float(torch.stack(self.losses).mean())
                last = total or first + epochs
                self.progress({"task": t, "epoch": epoch + 1, "epochs": last, "loss": loss})
            self.losses.clear()

    def replay_batches(
        self, n: int, size: int, epochs: int, *, total: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`batches` of n rows of the task, each with the indices of `size` stored examples; with none if none are stored.

        The stored ones are drawn without replacement, and reshuffled when exhausted. As in Avalanche, the last batch of an
        epoch has `size` of them too, also where fewer rows of the task are left for it.
        """
        steps, width = epochs * -(-n // size), size if len(self.buffer) else 0
        draws = generator(self.seed, "replay", self.tasks_seen + 1, 0)
        stored = cycle(len(self.buffer), steps * size, draws).view(steps, width)
        return zip(self.batches(n, size, epochs, total=total), stored.to(self.device), strict=True)

    def sgd(self, lr: float) -> SGD:
        """SGD over the trainable parameters of the model."""
        return SGD(self.model.parameters(), lr, self.losses)

    def loss(self, logits: Tensor, y: Tensor, t: int | Tensor) -> Tensor:
        """Mean cross-entropy; if task-incremental, over the head of task t, or of each example's task."""
        return F.cross_entropy(self.head_logits(logits, t), y)

    def head_logits(self, logits: Tensor, t: int | Tensor) -> Tensor:
        """The logits; if task-incremental, those outside the head of task t are -inf."""
        if self.masked_classes is None:
            return logits
        return logits.masked_fill(self.masked_classes[t], -torch.inf)

    def mask_logits(self, logits: Tensor, task: int | None) -> Tensor:
        """The logits to predict from; if task-incremental, those outside the head of `task` are -inf."""
        if task is not None and not 1 <= task <= self.tasks_seen:
            raise UserError(f"Task {task} has not been learned; give a task from 1 to {self.tasks_seen}.")
        return logits if task is None else self.head_logits(logits, task)

    def logits(self, x: Any) -> Tensor:
        """The model's outputs in eval mode."""
        return self.evaluate(lambda rows: checked_logits(self.model(rows)), x)

    def evaluate(self, function: Callable[[Tensor], Tensor], x: Any) -> Tensor:
        """A function of the inputs, block by block, with the model in eval mode and without gradients."""
        with self.train_mode(False), torch.no_grad():
            blocks = [x[i : i + BLOCK] for i in range(0, max(len(x), 1), BLOCK)]
            try:
                return torch.cat([function(self.inputs(block)) for block in blocks])
            except RuntimeError:
                if (sentence := wrong_shape(self.model, x)) is not None:
                    raise UserError(sentence) from None
                raise

    def inputs(self, x: Any) -> Tensor:
        """Inputs as a tensor on the model's device, in the model's precision if they are real numbers."""
        with warnings.catch_warnings():  # nothing here writes to x, which may be a read-only memory map
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = (x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))).to(self.device)
        return tensor.to(next(self.model.parameters()).dtype) if tensor.is_floating_point() else tensor

    @contextmanager
    def train_mode(self, mode: bool) -> Iterator[None]:
        """Inside, the model is in train mode (or eval mode); afterwards each module is in its mode of before."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.train(mode)
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    # ---- saving

    def save(self, folder: str | Path) -> None:
        """Write the state of the method to one file; after `restore` or `load` it learns on as if uninterrupted."""
        groups = {
            "model": self.model.state_dict(),
            "initial": self.initial,
            "buffer": self.buffer.columns,
            "kept": self.tensors,
        }
        note = {
            **self.identity(),
            "tasks_seen": self.tasks_seen,
            "heads": self.heads,
            "outputs": self.outputs,
            "columns": self.columns,
            "model": getattr(self.model, "description", None),
        }
        tensors = {f"{group}.{name}": value for group in groups for name, value in groups[group].items()}
        write_tensors(Path(folder) / SAVED_METHOD, tensors, note)

    def restore(self, folder: str | Path) -> None:
        """Bring a method with the same options and a model of the same class into the saved state."""
        tensors, note = read_state(folder)
        for name, value in self.identity().items():
            if note[name] != value:
                raise UserError(
                    f"{folder} was saved with {name} {note[name]!r}, not {value!r}; construct it so."
                )
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "initial": {}, "buffer": {}, "kept": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = value.to(self.device)
        self.model.load_state_dict(groups["model"])
        self.initial, self.tensors = groups["initial"], groups["kept"]
        self.buffer = Buffer(**groups["buffer"])
        self.tasks_seen, self.outputs, self.columns = note["tasks_seen"], note["outputs"], note["columns"]
        self.heads = [tuple(head) for head in note["heads"]]
        self.masked_classes = head_masks(self.heads, self.outputs, self.scenario, self.device)

    def identity(self) -> dict[str, Any]:
        """What must be equal in a saved method and in the one that is restored from it."""
        return {
            "method": type(self).__name__,
            "memory": self.memory,
            "seed": self.seed,
            "scenario": self.scenario,
            "options": asdict(self.options),
        }

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> Self:
        """The saved method; `model` may be left out if it was made by cop2l.models.build."""
        _, note = read_state(folder)
        if model is None:
            if not note["model"]:
                raise UserError(
                    f"{folder} holds the weights of a model of your own; pass an instance as model=."
                )
            model = rebuild(note["model"])
        arguments = {name: note[name] for name in ("memory", "seed", "scenario")}
        method = cls(model, **arguments, **note["options"])
        method.restore(folder)
        return method


def read_state(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a saved method, and its note: options, heads, description of the model."""
    path = Path(folder) / SAVED_METHOD
    if not path.exists():
        raise UserError(f"There is no saved method in {folder}; give the folder that save() wrote.")
    return read_tensors(path)


class Method(Protocol):
    """What a run needs of a learner: a baseline, a hold-out around one, or CoP2L."""

    @property
    def tasks_seen(self) -> int: ...
    @property
    def memory_used(self) -> int: ...
    @property
    def scenario(self) -> str: ...
    @property
    def model(self) -> Any: ...
    @property
    def options(self) -> Any: ...
    def learn(
        self, x: Any, y: Any = None, *, classes: Sequence[int] | None = None, progress: Any = None
    ) -> None: ...
    def predict(self, x: Any, *, task: int | None = None) -> Tensor: ...
    def save(self, folder: str | Path) -> None: ...
    def restore(self, folder: str | Path) -> None: ...
