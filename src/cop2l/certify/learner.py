"""CoP2L: the learner that certifies itself."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.certificate import SET_NAMES, Certificate, issue
from cop2l.certify.compress import compress_task, load_parameters, parameters, rebuilt
from cop2l.certify.counting import Data, compressed_in_buffer, counts, misclassified_rows
from cop2l.certify.environment import environment
from cop2l.certify.examples import row_major, sample
from cop2l.certify.history import History, Memory, certified_mask
from cop2l.certify.options import Options
from cop2l.certify.options import options as choose_options
from cop2l.certify.p2l import Progress
from cop2l.certify.record import Counts
from cop2l.certify.scoring import (
    ScoringMode,
    head_mask,
    logits_in_blocks,
    predict,
    prove_exact,
    score,
)
from cop2l.certify.training import exact_arithmetic, pinned_threads
from cop2l.errors import UserError, unknown
from cop2l.files import read_tensors, write_tensors
from cop2l.streams.fingerprint import fingerprint
from cop2l.streams.task import SCENARIOS

STATE_FORMAT = "cop2l-learner 1"
STATE_FILE = "learner.safetensors"


class CoP2L:
    """Learns tasks one after the other, keeps a small memory, and certifies its error on every task seen.

    >>> from cop2l.models import build
    >>> from cop2l.streams import load
    >>> stream = load("synthetic", tasks=2, n=100)
    >>> learner = CoP2L(build("linear", inputs=stream[0].x.shape[1:], classes=stream.classes, seed=0), memory=50)
    >>> for x, y, t in stream:
    ...     learner.learn(x, y)
    >>> learner.tasks_seen, len(learner.certificate.tasks), learner.certificate.claim
    (2, 2, 'combined')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scenario: str = "class-incremental",
        preset: str = "certified",
        not_valid: Sequence[str] = (),
        data: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`options` are the fields of `cop2l.certify.options.Options`; what is not given comes from the preset.

        `not_valid` are reasons, in sentences, why the certificates' assumptions do not hold for this data. `data` says
        how the data can be had again (stream, tasks, order_seed, holdout ...): it is written into certificates.
        """
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError("The model has no parameters to learn.")
        self.model = model
        self.scenario = scenario
        self.options: Options = choose_options(preset, **options)
        self.not_valid = tuple(not_valid)
        self.data = data
        self.memory = Memory(self.options)
        self.histories: list[History] = []
        self.certificate: Certificate | None = None
        self.trace: list[dict[str, Any]] = []
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = row_major(tensor.data)
        self._theta_0 = parameters(model)
        self._classes: int | None = None
        self._shape: Any = None
        self._proved = False
        self._machines: list[dict[str, Any]] = []
        model.eval()

    @property
    def tasks_seen(self) -> int:
        """How many tasks were learned."""
        return len(self.histories)

    @property
    def memory_used(self) -> int:
        """How many examples of past tasks are kept; a threshold buffer may, rarely, exceed the memory."""
        return len(self.memory)

    def learn(
        self,
        x: Any,
        y: Any,
        *,
        classes: Sequence[int] | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task and certify it; on an error or an interruption the learner is as before.

        x, y: arrays or tensors (x may be a memory map), labels 0..classes-1 of the whole stream. `classes`: the task's
        own classes, fixed in advance; needed if task-incremental. `progress`: a callable, or None for a bar on a
        terminal and nothing otherwise.
        """
        x, labels, head = self._checked(x, y, classes)
        shown = _progress(progress)
        device = next(self.model.parameters()).device
        history = History(
            self.tasks_seen + 1,
            len(labels),
            head,
            fingerprint(x, y if isinstance(y, Tensor) else np.asarray(y)),
        )
        if isinstance(x, Tensor):
            x = x.to(device)
        labels = labels.to(device)
        before = parameters(self.model), list(self.memory.candidates), list(self.memory.prior)
        past, machines, unsaved = (
            [History(**vars(h)) for h in self.histories],
            self._machines,
            self._unsaved(),
        )
        try:
            self.histories.append(history)
            outside = self._outside()
            with pinned_threads(self._threads()), exact_arithmetic():
                S = sample(x, labels, history.task, self.options.seed)
                if not self._proved:
                    prove_exact(self.model, S, outside)
                outcome = compress_task(
                    self.model, S, self.histories, self.memory, self.options, outside, shown
                )
                if not self._proved:  # once more: initial weights of zero would prove nothing
                    prove_exact(self.model, S, outside)
                self._check_unsaved(unsaved)
                here = environment(self.model)
                self._machines = [m for m in machines if m != here] + [here]
            certificate = self._certify({history.task: (x, y)}, known=history.task)
        except BaseException:
            load_parameters(self.model, before[0])
            self._check_unsaved(unsaved, put_back=True)
            self.model.eval()
            self.memory.candidates, self.memory.prior = before[1], before[2]
            self.histories, self._machines = past, machines
            raise
        finally:
            _close(shown)
        self._proved = True
        self.trace, self.certificate = outcome.trace, certificate

    def certify(self, data: Mapping[int, Data] | None = None, *, portable: bool = False) -> Certificate:
        """A certificate for every task seen; `data` maps task numbers to (x, y) or to a callable that yields blocks.

        A task's data is read once, for counting only, and must be what the task was learned from. For a task without
        data the buffer certificate is issued, from the memory alone, if the buffer is a threshold buffer. With
        `portable`, the examples of the compression sets travel in the certificate (they must be in `data`).
        """
        return self._certify(data, portable=portable)

    def _certify(
        self, data: Mapping[int, Data] | None, *, portable: bool = False, known: int | None = None
    ) -> Certificate:
        """`known`: the task whose data was just learned, so that its fingerprint need not be taken again."""
        data = dict(data or {})
        last = self.tasks_seen
        if not last:
            raise UserError("There is nothing to certify yet; learn a task first.")
        for task in data:
            if task not in range(1, last + 1):
                raise UserError(f"There is no task {task} to certify; tasks 1 to {last} were learned.")
        outside = self._outside()
        with pinned_threads(self._threads()), exact_arithmetic():
            found = [self._counted(h, data.get(h.task), outside, h.task == known) for h in self.histories]
            here = environment(self.model)
        certificate = issue(
            self.options,
            self.scenario,
            self._width(),
            self._description(),
            {**here, "earlier": [machine for machine in self._machines if machine != here]},
            [History(**vars(h)) for h in self.histories],
            found,
            self._theta_0,
            parameters(self.model),
            self.not_valid,
            self.data,
            self._portable(data) if portable else None,
        )
        self.certificate = certificate
        return certificate

    def _counted(self, history: History, data: Data | None, outside: Tensor | None, known: bool) -> Counts:
        wrong = compressed = None
        if data is not None:
            wrong, print_found = misclassified_rows(
                self.model, data, history, self.options, outside, fingerprinted=not known
            )
            if not known and print_found != history.fingerprint:
                raise UserError(
                    f"The data given for task {history.task} is not what it was learned from: its fingerprint differs."
                )
        elif self.options.marked:
            held = self.memory.candidates[history.task - 1]
            wrong_there = score(self.model, held, outside)[1].cpu().numpy()
            compressed = compressed_in_buffer(history, self.options, self.tasks_seen, held.row, wrong_there)
        return counts(history, self.options, self.tasks_seen, wrong, compressed)

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class of each example, on the CPU; task-incremental learners need the task's number."""
        x = _inputs(x)
        if self.scenario != "task-incremental":
            task = None
        elif task not in range(1, self.tasks_seen + 1):
            raise UserError(
                f"A task-incremental learner predicts for one of its tasks: give task=1..{self.tasks_seen}."
            )
        with exact_arithmetic():
            return predict(self.model, x, task, self._outside())

    def save(self, folder: str | Path) -> None:
        """Everything needed to learn the next task later, in one file, written at once; and the certificate."""
        folder = Path(folder)
        tensors: dict[str, Tensor] = {}
        for name, theta in (("theta_0", self._theta_0), ("theta", parameters(self.model))):
            tensors |= {f"{name}/{key}": value for key, value in theta.items()}
        for name, parts in (("candidates", self.memory.candidates), ("prior", self.memory.prior)):
            for number, part in enumerate(parts):
                tensors |= {
                    f"{name}/{number}/x": part.x.cpu(),
                    f"{name}/{number}/y": part.y.cpu(),
                    f"{name}/{number}/row": torch.from_numpy(np.array(part.row)),
                }
        for history in self.histories:
            for name in SET_NAMES:
                tensors[f"sets/{history.task}/{name}"] = torch.from_numpy(np.array(getattr(history, name)))
        state = {
            "format": STATE_FORMAT,
            "options": self.options.as_dict(),
            "scenario": self.scenario,
            "not_valid": list(self.not_valid),
            "data": self.data,
            "model": self._description(),
            "classes": self._classes,
            "machines": self._machines,
            "histories": [
                {key: value for key, value in asdict(h).items() if key not in SET_NAMES}
                for h in self.histories
            ],
        }
        write_tensors(folder / STATE_FILE, tensors, state)
        if self.certificate is not None:
            self.certificate.save(folder / "certificate")

    def restore(self, folder: str | Path) -> None:
        """Put this learner, made with the same model and options, into the saved state."""
        state, tensors = _read_state(Path(folder))
        if state["options"] != self.options.as_dict() or state["scenario"] != self.scenario:
            changed = [
                name for name, value in self.options.as_dict().items() if state["options"].get(name) != value
            ]
            raise UserError(
                f"The saved learner has other options ({', '.join(changed) or 'scenario'}); use those it was made with."
            )
        self._put(state, tensors, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "CoP2L":
        """A learner from its folder; `model` (same architecture) is needed only for a model of your own."""
        state, tensors = _read_state(Path(folder))
        if model is None:
            if not state["model"].get("name"):
                raise UserError(
                    f"The learner in {folder} has a model of your own; pass it: CoP2L.load(folder, model=...)."
                )
            theta = {name: tensors[name] for name in tensors if name.startswith("theta/")}
            model = rebuilt(
                state["model"], theta, state["machines"][-1]["device"] if state["machines"] else "cpu"
            )
        given = dict(state["options"])
        learner = cls(
            model, scenario=state["scenario"], not_valid=state["not_valid"], data=state["data"], **given
        )
        learner._put(state, tensors, Path(folder))
        return learner

    def _put(self, state: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {
                key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
            }

        try:
            load_parameters(self.model, part("theta/"))
        except RuntimeError as error:
            raise UserError(
                f"The model does not fit the saved learner: {str(error).splitlines()[0]}"
            ) from None
        self._theta_0 = part("theta_0/")
        self._classes, self._machines = state["classes"], state["machines"]
        self.not_valid = tuple(state["not_valid"])
        self.histories = []
        for entry in state["histories"]:
            sets: dict[str, Any] = {
                name: tensors[f"sets/{entry['task']}/{name}"].numpy() for name in SET_NAMES
            }
            self.histories.append(History(**{**entry, "head": tuple(entry["head"]), **sets}))
        device = next(self.model.parameters()).device
        memory = Memory(self.options)
        for name, into in (("candidates", memory.candidates), ("prior", memory.prior)):
            for number in range(len(self.histories)):
                if f"{name}/{number}/row" in tensors:
                    held = part(f"{name}/{number}/")
                    into.append(
                        sample(
                            held["x"].to(device),
                            held["y"].to(device),
                            number + 1,
                            self.options.seed,
                            held["row"].numpy(),
                        )
                    )
        self.memory = memory
        stored = folder / "certificate"
        self.certificate = Certificate.load(stored) if stored.exists() else None
        if self.certificate is not None and len(self.certificate.tasks) != len(self.histories):
            self.certificate = None  # the process was killed between writing the learner and its certificate
        self.model.eval()

    def _checked(self, x: Any, y: Any, classes: Sequence[int] | None) -> tuple[Any, Tensor, tuple[int, ...]]:
        """The task's data in usable form; every wrong input is refused here, before anything changes."""
        task = self.tasks_seen + 1
        if self.options.tasks is not None and task > self.options.tasks:
            raise UserError(
                f"This learner was made for {self.options.tasks} tasks, and all were learned; make one with tasks=None."
            )
        if self.options.memory < task:
            raise UserError(
                f"memory={self.options.memory} is smaller than the number of tasks, {task}; give each task at least one place."
            )
        if self.options.k == 1 and any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()
        ):
            raise UserError(
                "A model with batch normalisation cannot train on a single example; use k=2 or more."
            )
        x = _inputs(x)
        labels = _labels(y)
        if len(x) != len(labels):
            raise UserError(f"x has {len(x)} examples and y has {len(labels)} labels; they must be as many.")
        if not len(labels):
            raise UserError("The task is empty; give at least one example.")
        if all_prior(self.options, len(labels), task):
            raise UserError(
                "The prior part takes every example of the task; lower prior or give more examples."
            )
        width = self._width(x)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= width:
            raise UserError(
                f"Labels must be 0 to {width - 1} (the model has {width} outputs), but y has {low if low < 0 else high}."
            )
        if classes is None and self.scenario == "task-incremental":
            raise UserError(
                "A task-incremental task needs its own classes, fixed in advance: learn(x, y, classes=(...))."
            )
        head = tuple(range(width)) if classes is None else tuple(sorted({int(c) for c in classes}))
        if not head or head[0] < 0 or head[-1] >= width:
            raise UserError(f"classes must name outputs of the model, 0 to {width - 1}, but they are {head}.")
        if not np.isin(labels.numpy(), head).all():
            raise UserError(f"y has labels outside the task's own classes {head}.")
        _check_finite(x)
        return x, labels, head

    def _width(self, x: Any = None) -> int:
        """How many outputs the model has, found by running it once on such inputs."""
        if x is not None and self._shape != x.shape[1:]:
            with ScoringMode(self.model):
                try:
                    _, logits = next(iter(logits_in_blocks(self.model, x[:1])))
                except (RuntimeError, ValueError, IndexError, TypeError) as error:
                    raise UserError(
                        f"The model cannot take inputs of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
                    ) from None
            if logits.dim() != 2:
                raise UserError("The model must return one row of logits per example.")
            self._shape, self._classes = x.shape[1:], int(logits.shape[1])
        assert self._classes is not None
        return self._classes

    def _outside(self) -> Tensor | None:
        if self.scenario != "task-incremental":
            return None
        device = next(self.model.parameters()).device
        return head_mask([h.head for h in self.histories], self._width(), device)

    def _threads(self) -> int:
        """Training rounds differently with another number of threads: all tasks use that of the first."""
        return int(self._machines[0]["threads"]) if self._machines else torch.get_num_threads()

    def _unsaved(self) -> dict[str, Tensor]:
        """Buffers that are not in the model's state_dict, so that they could not be rolled back or saved."""
        saved = self.model.state_dict().keys()
        return {name: value.clone() for name, value in self.model.named_buffers() if name not in saved}

    def _check_unsaved(self, before: dict[str, Tensor], *, put_back: bool = False) -> None:
        for name, value in self._unsaved().items():
            if put_back:
                self.model.get_buffer(name).copy_(before[name])
            elif not torch.equal(value, before[name]):
                raise UserError(
                    f"The model's buffer {name!r} changes in training but is not in its state_dict; register it as persistent."
                )

    def _description(self) -> dict[str, Any]:
        kind = type(self.model)
        described = getattr(self.model, "description", None) or {
            "name": None,
            "class": f"{kind.__module__}.{kind.__qualname__}",
        }
        return {**described, "parameters": sum(p.numel() for p in self.model.parameters())}

    def _portable(self, data: Mapping[int, Data]) -> dict[str, Tensor]:
        warnings.warn(
            "A portable certificate contains training examples: they leave the house with it.", stacklevel=3
        )
        found = {}
        for history in self.histories:
            if history.task not in data or callable(data[history.task]):
                raise UserError(
                    f"A portable certificate needs the data of every task as arrays; task {history.task}'s is missing."
                )
            x, y = data[history.task]  # type: ignore[misc]
            wanted = np.union1d(
                np.union1d(history.first, history.second),
                np.flatnonzero(~certified_mask(history, self.options)),
            )
            found[f"{history.task}/row"] = torch.from_numpy(wanted)
            part = sample(_inputs(x), _labels(y), history.task, self.options.seed).take(wanted)
            found[f"{history.task}/x"], found[f"{history.task}/y"] = part.x.cpu(), part.y.cpu()
        return found


def all_prior(options: Options, n: int, task: int) -> bool:
    """Whether nothing of the task is left to certify."""
    return not certified_mask(History(task, n, ()), options).any()


def _inputs(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach()
    x = _array(x, "x must be an array of numbers whose first dimension counts the examples.")
    if not x.flags.c_contiguous:
        return x if isinstance(x, np.memmap) else torch.from_numpy(np.ascontiguousarray(x))
    with (
        warnings.catch_warnings()
    ):  # a read-only array, such as a memory map, is shared: nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def _array(values: Any, wanted: str) -> np.ndarray:
    """An array that torch can take: numbers, in this machine's byte order."""
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError):
        raise UserError(wanted) from None
    if array.ndim == 0:
        raise UserError(wanted)
    return array


def _labels(y: Any) -> Tensor:
    wanted = "y must be a one-dimensional array of integer class numbers."
    labels = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(_array(y, wanted)))
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(wanted)
    return labels.to(torch.int64)


def _check_finite(x: Any) -> None:
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096]
        part = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        if not part.is_floating_point() or bool(torch.isfinite(part.sum())):
            continue  # a sum with a NaN or an infinite part is never finite, and a sum is quicker
        if not bool(torch.isfinite(part).all()):
            raise UserError("x contains NaN or infinite values; clean the data first.")


def _read_state(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = folder / STATE_FILE
    if not path.exists():
        raise UserError(f"There is no saved learner in {folder}: the file {STATE_FILE} is missing.")
    tensors, state = read_tensors(path)
    if state.get("format") != STATE_FORMAT:
        raise UserError(f"{path} is not a learner that this version of cop2l can read.")
    return state, tensors


def _progress(progress: Progress | bool | None) -> Progress | None:
    if callable(progress):
        return progress
    if progress is False or not sys.stderr.isatty():
        return None
    from cop2l.certify.bar import Bar

    return Bar()


def _close(progress: Progress | None) -> None:
    close = getattr(progress, "close", None)
    if close is not None:
        close()
