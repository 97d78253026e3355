"""CoP2L: the learner that certifies itself."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from cop2l.certificates import notebook
from cop2l.certificates.bounding import statements as all_statements
from cop2l.certificates.bounding import void_statements
from cop2l.certificates.certificate import Certificate, content_of
from cop2l.certificates.commitment import commitment
from cop2l.console import Progress, progress_display
from cop2l.errors import UserError, unknown
from cop2l.kernel.building import description_of
from cop2l.kernel.exact import Examples, check_alone, digest, exact_arithmetic, head_masks, machine, sample
from cop2l.kernel.learning import set_tensors
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.learner import advice, counting, saved
from cop2l.learner.engine import Engine
from cop2l.learner.inputs import by_name, check_finite, features, inputs, labelled, wrong_shape
from cop2l.learner.presets import Choice, OptionValues
from cop2l.learner.presets import options as choose_options
from cop2l.learner.repeats import MOST_REASONS, copy_warnings, row_hashes, shared_row_findings
from cop2l.learner.scoring import outputs
from cop2l.learner.state import (
    State,
    all_or_nothing,
    check_unchanged,
    has_other_weights,
    parameters,
    recorded_training,
    trained_names,
    unused_copy,
    was_trained_before,
)
from cop2l.learner.validation import Data, check_data, check_model, check_task
from cop2l.models import Classifier
from cop2l.streams.task import SCENARIOS

ENGINE_STATE = ("masked_classes", "trace", "sizes", "buffer", "sets")


class CoP2L:
    """Learns tasks one after the other, keeps a small memory, and certifies its error on every task.

    >>> from cop2l.models import build
    >>> from cop2l.streams import load
    >>> stream = load("synthetic", tasks=2, n=100)
    >>> learner = CoP2L(build("linear", inputs=stream[0].x.shape[1:], classes=stream.classes, seed=0), memory=50)
    >>> for x, y, t in stream:
    ...     learner.learn(x, y)
    >>> certificate = learner.certify({t: (x, y) for x, y, t in stream})
    >>> learner.tasks_seen, sorted(certificate.bounds), certificate.kind
    (2, [1, 2], 'preference')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scenario: str = "class-incremental",
        preset: str = Choice.preset,
        not_valid: Sequence[str] = (),
        data: dict[str, Any] | None = None,
        commitment: str | None = None,
        repeats: bool = False,
        **options: Unpack[OptionValues],
    ) -> None:
        """Prepare a model for its first task.

        Args:
            model: A model of `cop2l.models.build`, or any torch module that returns one row of logits per example.
            scenario: "class-incremental", "task-incremental" or "domain-incremental".
            preset: The set of default options: "picking" or "paper" (docs/configuration.md).
            not_valid: Reasons, as sentences, why the assumptions of the certificates do not hold for this data.
            data: How the data can be loaded again (stream, tasks, class_seed, holdout ...); certificates contain it.
            commitment: The hash of a commitment made before; certificates contain it.
            repeats: Whether rows of a task may be equal because each was drawn on its own, as in discrete data. Otherwise
                all but one of several equal rows count as errors.
            options: Fields of `cop2l.kernel.options.Options`; the preset gives the others.
        """
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        check_model(model)
        # The plain memory layout, because kernels may round others (channels last) differently.
        for value in [*model.parameters(), *model.buffers()]:
            value.data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.data)
        self.model, self.unused, self.scenario = model.eval(), unused_copy(model), scenario
        self.options: Options = choose_options(preset, **options)
        self.engine, theta_0 = Engine(model, self.options), parameters(model)
        self.state = State(
            theta_0=theta_0,
            trained=trained_names(model),
            threads=torch.get_num_threads(),
            not_valid=tuple(not_valid),
            data=data,
            commitment=commitment,
            theta_digest=digest(theta_0),
            repeats=repeats,
        )

    def __repr__(self) -> str:
        total = f" of {self.options.tasks}" if self.options.tasks else ""
        memory = f"memory {self.memory_used} of {self.options.memory}"
        return (
            f"CoP2L({self._model_name}, {self.scenario}, tasks learned: {self.tasks_seen}{total}, {memory})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("model", f"{self._model_name}, {self.description['parameters']} parameters"),
            ("scenario", self.scenario),
            ("tasks learned", f"{self.tasks_seen} of {self.options.tasks or 'any number'}"),
            ("examples kept", f"{self.memory_used} of {self.options.memory}"),
            ("delta", self.options.delta),
        ]
        certificate = "" if self.certificate is None else self.certificate._repr_html_()
        table = notebook.table(rows, text_columns=(0, 1))
        return notebook.card("CoP2L", table, certificate, colour=notebook.QUIET)

    @property
    def _model_name(self) -> str:
        return str(self.description["name"] or self.description["class"].rpartition(".")[2])

    @property
    def tasks_seen(self) -> int:
        """The number of tasks that were learned."""
        return len(self.engine.sets)

    @property
    def memory_used(self) -> int:
        """The number of examples of past tasks in memory. With buffer="threshold" it may, rarely, exceed `memory`."""
        return sum(len(part) for part in self.engine.buffer)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate after the newest task; None until `certify` is called."""
        return self.state.certificate

    @property
    def description(self) -> dict[str, Any]:
        """The name or class of the model, its architecture, and its number of parameters."""
        description = description_of(self.model)
        names = [name for name, _ in self.model.named_parameters()]
        frozen = [name for name in names if name not in self.state.trained]
        if frozen and isinstance(self.model, Classifier):
            description = {**description, "frozen": frozen}
        return {**description, "parameters": sum(self.state.theta_0[name].numel() for name in names)}

    def learn(
        self,
        x: Any,
        y: Any = None,
        *,
        classes: Sequence[int] | None = None,
        groups: Any = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task. An error or an interruption leaves the learner as it was.

        Args:
            x: The inputs: an array, tensor, memory map, sparse matrix, data frame, torch Dataset or DataLoader.
            y: The labels, class numbers 0, 1, ... of the whole stream; or the name of their column in x. Leave it out if x
                gives (x, y) pairs or has a column `label`.
            classes: The classes of this task, fixed in advance; needed if the scenario is task-incremental.
            groups: The name of each example's group, if groups are claimed.
            progress: A function that gets the events; True or False shows progress or not; None shows it on a terminal and
                in a notebook.
        """
        check_unchanged(self)
        x, columns = by_name(x, y, self.state.columns)
        x, labels, head, width = check_task(self, *labelled(x, y), classes, groups)
        group_numbers = counting.group_numbers(groups, self.options, len(labels))
        engine, state, task, seed = self.engine, self.state, self.tasks_seen + 1, self.options.seed
        parameter = next(self.model.parameters())
        data_hash = fingerprint(len(labels), blocks_of(x, labels), group_numbers)
        if isinstance(x, Tensor):
            x = x.to(parameter.device)
        hashes = row_hashes(x, parameter, seed)
        findings = [*shared_row_findings(task, hashes, state.hashes)]
        reasons = [reason for _, reason in findings] + [*advice.one_class(task, head, labels, self.scenario)]
        remarks = list(
            () if counting.declared_draws(state.data, state.repeats) else copy_warnings(task, hashes)
        )
        if not self.tasks_seen and was_trained_before(self.model):
            reasons.append(advice.TRAINED_BEFORE)
        elif not self.tasks_seen and not state.commitment and has_other_weights(self.model):
            remarks.append(advice.OTHER_WEIGHTS)
        advice.warn_user([*reasons, *remarks])
        if engine.ranks is not None:
            engine.ranks.check_agreement(self, data_hash, head)
            progress = progress if engine.ranks.is_first else False
        with (
            all_or_nothing(self.model, (engine, ENGINE_STATE), (self, ("state",))),
            recorded_training(self.model),
            progress_display(progress) as engine.progress,
            exact_arithmetic(state.threads),
        ):
            state.heads, state.classes, state.columns = [*state.heads, head], width, columns
            engine.masked_classes = self._masked_classes()
            S = sample(x, labels.to(parameter.device), task, seed)
            self._train(S)
            void_tasks = {number for numbers, _ in findings for number in numbers}
            state.void_tasks = tuple(sorted({*state.void_tasks, *void_tasks}))
            state.not_valid = tuple(dict.fromkeys([*state.not_valid, *reasons]))[:MOST_REASONS]
            state.fingerprints, state.hashes = [*state.fingerprints, data_hash], [*state.hashes, hashes]
            state.claim_columns = [*state.claim_columns, counting.claim_columns(engine, S, group_numbers)]
            current = machine(self.model)
            state.machines = [name for name in state.machines if name != current] + [current]
            state.issued_statements = state.certificate = None
            state.theta_digest = digest(self.model.state_dict())
            advice.warn_user(advice.underfitting(engine, S))

    def _train(self, S: Examples) -> None:
        """Train on the sample of a task; at the first task, refuse models whose answers could not be repeated."""
        is_first = not self.tasks_seen
        if is_first:
            check_alone(self.model, [S.x], self.unused)
        self.engine.learn(S)
        if is_first:  # once more: initial weights of zero would show nothing
            check_alone(self.model, [S.x], self.unused)

    def certify(self, data: Mapping[int, Data] | None = None) -> Certificate:
        """The certificate for every task that was learned.

        With probability at least 1 - delta over the draw of all samples and marks, all its statements hold at once, under the
        assumptions that it lists.

        A task's data must be what the task was learned from; it is read once, only to count errors. A task without data is
        bounded from the memory alone, where marks decide what is kept. This bound is much looser: 25 %, say, where the data
        gives 5 %. `cop2l.plan(error=, examples=, memory=, tasks=)` tells by how much beforehand.

        With tasks=T fixed in advance there is one certificate, after the last task; with tasks=None one after any task. A
        second one with other bounds would spend delta twice and is refused.

        Args:
            data: For each task number, (x, y) as in `learn`, or a function without arguments that yields such blocks.
        """
        data = check_data(self, data)
        records = counting.records(self, data)
        check_unchanged(self)  # the function that yields the data may have changed the model
        void_tasks = {*self.state.void_tasks, *counting.tasks_with_uncounted_copies(self, data)}
        statements = void_statements(all_statements(self.options, records), void_tasks)
        state = self.state
        state.issue(statements)
        content = content_of(
            self.options,
            statements,
            records,
            method="cop2l",
            scenario=self.scenario,
            classes=self._width,
            model=self.description,
            data=state.data,
            machine=state.machines[-1],
            earlier=state.machines[:-1],
            threads=state.threads,
            not_valid=list(state.not_valid),
            commitment=state.commitment,
        )
        tensors = {
            "theta_0": state.theta_0,
            "theta": parameters(self.model),
            "sets": set_tensors(self.engine.sets),
        }
        hashes = {name: digest(part) for name, part in tensors.items()}
        state.certificate = Certificate({**content, **hashes}, self.options, tensors)
        return state.certificate

    def commitment(self) -> dict[str, Any]:
        """What is fixed before learning: hand it to the auditor (docs/certificates.md)."""
        return commitment(
            self.model,
            self.options,
            method="cop2l",
            settings=None,
            scenario=self.scenario,
            classes=self._width,
            model=self.description,
            data=self.state.data,
            theta_0=digest(self.state.theta_0),
            threads=self.state.threads,
        )

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class of each example, on the CPU; a task-incremental learner needs the number of the task."""
        classes = [logits.argmax(1) for logits in self._logits(x, task)]
        return torch.cat(classes) if classes else torch.empty(0, dtype=torch.int64)

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits, one row per example, on the CPU. Nothing is certified of these numbers."""
        rows = [logits.softmax(1) for logits in self._logits(x, task)]
        return torch.cat(rows) if rows else torch.empty(0, self._width)

    def _logits(self, x: Any, task: int | None) -> Iterator[Tensor]:
        """The logits, block by block; minus infinity for classes of other tasks, if task-incremental."""
        if self.scenario != "task-incremental":
            task = None
        elif task not in range(1, self.tasks_seen + 1):
            raise UserError(
                f"A task-incremental learner predicts for one of its tasks: give task=1..{self.tasks_seen}."
            )
        x = inputs(features(x, self.state.columns))
        check_finite(x)
        with exact_arithmetic(torch.get_num_threads()):
            try:
                yield from outputs(self.model, x, task, self._masked_classes())
            except (RuntimeError, IndexError):
                if (message := wrong_shape(self.model, x)) is not None:
                    raise UserError(message) from None
                raise

    def save(self, folder: str | Path, *, certificate: bool = True) -> None:
        """Write all that the next task needs into one file and, unless `certificate` is false, the certificate beside it."""
        check_unchanged(self)
        saved.save(self, Path(folder), certificate)

    def restore(self, folder: str | Path) -> None:
        """Put this learner into the saved state; it must have the same model and options."""
        saved.restore(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "CoP2L":
        """The learner that `save` wrote into a folder. Load only files that you trust: nothing checks their examples.

        Args:
            folder: The folder.
            model: A model of the same architecture; needed only if it is a class of your own.
        """
        return saved.load(cls, Path(folder), model)

    @property
    def _width(self) -> int:
        """The number of outputs of the model."""
        width = self.state.classes or self.description.get("classes")
        if width is None:
            raise UserError(
                "The number of classes of the model is not known before the first task; set model.description."
            )
        return int(width)

    def _masked_classes(self) -> Tensor | None:
        """Which classes are not in the head of each task, if task-incremental."""
        if self.scenario != "task-incremental":
            return None
        device = next(self.model.parameters()).device
        return head_masks(self.state.heads, self._width, self.scenario, device)
