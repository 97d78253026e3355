"""What the baselines share: data on the device, batches, heads, saving; how they learn is their own."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cop2l.certify.inputs import by_name, check_finite, features, labelled, labels, wrong_shape
from cop2l.console import Progress, progress_display
from cop2l.errors import UserError, unknown
from cop2l.files import read_tensors, write_tensors
from cop2l.kernel.exact import head_masks
from cop2l.methods.buffer import Buffer, cycle, index_columns
from cop2l.methods.sgd import SGD
from cop2l.randomness import derive, generator, private_randomness
from cop2l.streams.task import SCENARIOS, Scenario

SAVED_METHOD = "method.safetensors"
BLOCK = 1024
"""Examples per forward pass outside training."""


@dataclass(frozen=True)
class MethodOptions:
    """Options, each with its default; numbers are checked."""

    by_scenario: ClassVar[dict[str, dict[str, Any]]] = {}
    """Defaults that differ in one scenario."""
    positive: ClassVar[tuple[str, ...]] = ()
    """The options that may not be 0."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), cast("type", type(field.default))
            positive = field.name in self.positive
            if kind is bool:
                good, wanted = isinstance(value, bool), "true or false"
            elif kind in (int, float):
                good = isinstance(value, (int, kind)) and not isinstance(value, bool)
                good = good and (value > 0 if positive else value >= 0) and value < inf
                wanted = "a whole number" if kind is int else "a number"
                wanted += " larger than 0" if positive else " not below 0"
            else:
                continue
            if not good:
                raise UserError(f"The option {field.name} is {value!r}; give {wanted}.")


@dataclass(frozen=True)
class CommonOptions(MethodOptions):
    """The options of every method that takes steps; a method's own class adds to them and sets its defaults."""

    epochs: int = 20
    """Passes over the examples that a task is learned from."""
    batch: int = 128
    """Examples of the task per step."""
    lr: float = 0.01
    """Learning rate of SGD."""

    positive: ClassVar[tuple[str, ...]] = ("epochs", "batch", "lr")


class Learner(ABC):
    """A method defines `fit`, and `predict` if it does not take the largest logit."""

    Options: ClassVar[type[MethodOptions]] = CommonOptions
    refuses: ClassVar[dict[str, str]] = {}
    """Scenarios in which the method makes no sense, each with the reason."""
    restarts: ClassVar[bool] = False
    """Whether the method goes back to the initial weights, which are then kept."""
    in_blocks: ClassVar[bool] = False
    """Whether `fit` reads x in blocks; x is then given as it is, and may be larger than the memory."""

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
        self.losses: list[Tensor] = []
        self.progress: Progress | None = None
        self.initial = {k: v.detach().clone() for k, v in model.state_dict().items()} if self.restarts else {}
        self.buffer = Buffer()
        self.kept: dict[str, Tensor] = {}  # what a method carries from task to task beside model and buffer

    @abstractmethod
    def fit(self, x: Tensor, y: Tensor, t: int) -> None:
        """Learn task t from tensors on the model's device (x: unless in_blocks); the model is in train mode."""

    # ---- the protocol

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
        if y.ndim != 1 or len(x) != len(y) or not len(y):
            raise UserError(
                f"Task {t} has inputs {tuple(np.shape(x))} and labels {tuple(y.shape)}; give one per row."
            )
        head = tuple(int(c) for c in classes) if classes is not None else tuple(y.unique().tolist())
        if classes is None and self.scenario == "task-incremental":
            raise UserError(
                "A task-incremental task needs its head: give classes=, the task's class numbers."
            )
        if stray := sorted(set(y.unique().tolist()) - set(head)):
            raise UserError(f"Task {t} has labels {stray} that are not among its classes; correct classes=.")
        self.outputs = self.logits(x[:1]).shape[-1]
        if min(head) < 0 or max(head) >= self.outputs:
            raise UserError(
                f"Task {t} has classes {head}, but the model has outputs 0 to {self.outputs - 1} only; build it with all."
            )
        self.heads = [*self.heads[: t - 1], head]
        self.masked_classes = head_masks(self.heads, self.outputs, self.scenario, self.device)
        self.losses.clear()
        with (
            progress_display(progress) as self.progress,
            self.modes(),
            private_randomness(self.device, self.seed, "learn", t),
        ):
            self.model.train()
            self.fit(x, y, t)
        if not all(bool((p < inf).all()) for p in self.model.parameters()):
            smaller = "lr or strength" if hasattr(self.options, "strength") else "lr"
            raise UserError(
                f"Training diverged at task {t}: the weights are not numbers; choose a smaller {smaller}."
            )
        self.progress = None
        self.tasks_seen, self.columns = t, columns

    def __repr__(self) -> str:
        kept = f"memory {self.memory_used} of {self.memory}"
        return f"{type(self).__name__}({type(self.model).__name__}, {self.scenario}, tasks learned: {self.tasks_seen}, {kept})"

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """Class of each example, int64 on the CPU; `task` (from 1) selects the head if task-incremental."""
        x = features(x, self.columns)
        check_finite(x)
        return self.mask_logits(self.logits(x), task).argmax(1).cpu()

    @property
    def memory_used(self) -> int:
        """How many examples of past tasks are kept."""
        return len(self.buffer)

    # ---- for the methods

    @property
    def device(self) -> torch.device:
        """Where the model lives, and therefore the data."""
        return next(self.model.parameters()).device

    def batches(
        self,
        n: int,
        size: int,
        epochs: int,
        *,
        replay: int = 0,
        weights: Tensor | None = None,
        first: int = 0,
        total: int = 0,
    ) -> Iterator[Tensor]:
        """Index tensors: every epoch all of range(n) in a new order, `size` at a time.

        With replay > 0, each is followed by as many indices of n .. n+replay-1, which are drawn without
        replacement and reshuffled when exhausted: the rows of a buffer appended to the task. With weights, an
        epoch is n draws with replacement in proportion to them. A later phase of the same task goes on after
        `first` epochs of a `total`.
        """
        t, device = self.tasks_seen + 1, self.device
        old = n + cycle(replay, n * epochs, generator(self.seed, "replay", t, first)).to(device)
        for epoch in range(first, first + epochs):
            start = derive(self.seed, "epoch", t, epoch)
            torch.default_generator.manual_seed(start)  # `learn` puts the global state back
            if device.type == "cuda":
                torch.cuda.default_generators[device.index or 0].manual_seed(start)
            draws = torch.Generator().manual_seed(start)
            if weights is None:
                order = torch.randperm(n, generator=draws).to(device)
            else:
                order = torch.multinomial(weights.cpu(), n, replacement=True, generator=draws).to(device)
            for i in range(0, n, size):
                if replay:
                    j = (epoch - first) * n + i
                    yield torch.cat([order[i : i + size], old[j : min(j + size, j - i + n)]])
                else:
                    yield order[i : i + size]
            if self.progress and self.losses:
                loss = float(torch.stack(self.losses).mean())
                last = total or first + epochs
                self.progress({"task": t, "epoch": epoch + 1, "epochs": last, "loss": loss})
            self.losses.clear()

    def sgd(self, lr: float, **options: Any) -> SGD:
        """SGD over the trainable parameters of the model."""
        return SGD(self.model.parameters(), lr, self.losses, **options)

    def loss(self, logits: Tensor, y: Tensor, t: int | Tensor) -> Tensor:
        """Mean cross-entropy; if task-incremental, each example's over the head of its own task (from 1)."""
        return F.cross_entropy(self.own_head(logits, t), y)

    def own_head(self, logits: Tensor, t: int | Tensor) -> Tensor:
        """The logits, with those outside the head of task t at -inf if task-incremental."""
        return (
            logits if self.masked_classes is None else logits.masked_fill(self.masked_classes[t], -torch.inf)
        )

    def logits(self, x: Any) -> Tensor:
        """The model's outputs in eval mode."""
        return self.evaluate(self.model, x)

    def evaluate(self, function: Callable[[Tensor], Tensor], x: Any) -> Tensor:
        """A function of inputs, with the model in eval mode, in blocks, without gradients."""
        with self.modes(), torch.no_grad():
            self.model.eval()
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

    def mask_logits(self, logits: Tensor, task: int | None) -> Tensor:
        """The logits that may be predicted for a task: its own head if task-incremental, else all."""
        if task is not None and not 1 <= task <= self.tasks_seen:
            raise UserError(f"Task {task} has not been learned; give a task from 1 to {self.tasks_seen}.")
        return logits if task is None else self.own_head(logits, task)

    def restart(self) -> None:
        """Put the model back to the weights it came with (a pretrained part stays pretrained)."""
        self.model.load_state_dict(self.initial)

    def fit_buffer(self) -> None:
        """Learn from the buffer alone, from the initial weights, with the common options."""
        o = self.options
        x, y, tasks = self.buffer.values("x", "y", "t")
        self.restart()
        sgd = self.sgd(o.lr)
        for i in self.batches(len(x), o.batch, o.epochs):
            inputs, labels, own = index_columns(i, x, y, tasks)
            sgd.step(self.loss(self.model(inputs), labels, own))

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Put every module's train or eval mode back afterwards."""
        before = [(module, module.training) for module in self.model.modules()]
        try:
            yield
        finally:
            for module, training in before:
                module.training = training

    # ---- saving

    def save(self, folder: str | Path) -> None:
        """Everything needed to go on later, in one file, written at once."""
        groups = {
            "model": self.model.state_dict(),
            "initial": self.initial,
            "buffer": self.buffer.columns,
            "kept": self.kept,
        }
        note = {
            **self.identity(),
            "tasks_seen": self.tasks_seen,
            "heads": self.heads,
            "outputs": self.outputs,
            "columns": self.columns,
            "model": getattr(self.model, "description", None),
        }
        flat = {
            f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()
        }
        write_tensors(Path(folder) / SAVED_METHOD, flat, note)

    def restore(self, folder: str | Path) -> None:
        """Put a freshly constructed method (same model class, same options) into the saved state."""
        tensors, note = read_state(folder)
        for key, mine in self.identity().items():
            if note[key] != mine:
                raise UserError(
                    f"{folder} was saved with {key} {note[key]!r}, not {mine!r}; construct it so."
                )
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "initial": {}, "buffer": {}, "kept": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = value.to(self.device)
        self.model.load_state_dict(groups["model"])
        self.initial = groups["initial"]
        self.buffer = Buffer(**groups["buffer"])
        self.kept = groups["kept"]
        self.tasks_seen = note["tasks_seen"]
        self.heads = [tuple(head) for head in note["heads"]]
        self.outputs, self.columns = note["outputs"], note["columns"]
        self.masked_classes = head_masks(self.heads, self.outputs, self.scenario, self.device)

    def identity(self) -> dict[str, Any]:
        """What must agree between a saved method and the one that goes on."""
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
            from cop2l.models import rebuild

            model = rebuild(note["model"])
        loaded = cls(
            model,
            memory=note["memory"],
            seed=note["seed"],
            scenario=note["scenario"],
            **note["options"],
        )
        loaded.restore(folder)
        return loaded


def read_state(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a saved method, and what it says about itself."""
    path = Path(folder) / SAVED_METHOD
    if not path.exists():
        raise UserError(f"There is no saved method in {folder}; give the folder that save() wrote.")
    return read_tensors(path)
