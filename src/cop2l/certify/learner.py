"""CoP2L: the learner that certifies itself."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify import advice, counting, notebook, prior, saved
from cop2l.certify.bounding import statements as all_statements
from cop2l.certify.bounding import void_statements
from cop2l.certify.certificate import Certificate, content_of
from cop2l.certify.commitment import commitment, precision
from cop2l.certify.fast import FastLearner
from cop2l.certify.inputs import by_name, check_finite, features, inputs, labelled, wrong_shape
from cop2l.certify.presets import SCALES, Choice, OptionValues
from cop2l.certify.presets import options as choose_options
from cop2l.certify.repeats import MOST_REASONS, copied_rows, copies, found_in_task, row_hashes
from cop2l.certify.scoring import misclassified, outputs
from cop2l.certify.state import (
    State,
    all_or_nothing,
    check_unchanged,
    check_undone,
    parameters,
    trained_names,
)
from cop2l.certify.validation import Data, check_model, check_task
from cop2l.console import Progress, progress_display
from cop2l.errors import UserError, unknown
from cop2l.kernel.exact import Examples, check_alone, digest, exact_arithmetic, head_masks, machine, sample
from cop2l.kernel.learning import set_tensors
from cop2l.kernel.options import PRIOR, Options
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.models import Classifier
from cop2l.streams.task import SCENARIOS


class CoP2L:
    """Learns tasks one after the other, keeps a small memory, and certifies its error on every task seen.

    >>> from cop2l.models import build
    >>> from cop2l.streams import load
    >>> stream = load("synthetic", tasks=2, n=100)
    >>> learner = CoP2L(build("linear", inputs=stream[0].x.shape[1:], classes=stream.classes, seed=0), memory=50)
    >>> for x, y, t in stream:
    ...     learner.learn(x, y)
    >>> certificate = learner.certify({t: (x, y) for x, y, t in stream})
    >>> learner.tasks_seen, sorted(certificate.bounds), certificate.kind
    (2, [1, 2], 'combined')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scenario: str = "class-incremental",
        preset: str = Choice.preset,
        scale: Literal["prior", "none"] | None = None,
        not_valid: Sequence[str] = (),
        data: dict[str, Any] | None = None,
        commitment: str | None = None,
        repeats: bool = False,
        **options: Unpack[OptionValues],
    ) -> None:
        """`options` are the fields of `cop2l.kernel.options.Options`; what is not given comes from the preset.

        `scale="prior"`: the prior examples of the first task scale the inputs (a module of your own is wrapped: use
        `learner.model`); "none": inputs are as they are; None: as the preset has it, "prior" in the default.
        `not_valid` are reasons, in sentences, why the certificates' assumptions do not hold for this data. `data` says how
        the data can be had again (stream, tasks, class_seed, holdout ...), and `commitment` is the hash of a commitment made
        before: both are written into certificates. `repeats` declares that rows of a task may be equal, each drawn on its own, as
        discrete data is: without it, all but one of equal rows count as errors.
        """
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        check_model(model)
        for value in [*model.parameters(), *model.buffers()]:  # in the plain memory layout
            value.data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.data)
        self.model, self.scenario = model.eval(), scenario
        self.options: Options = choose_options(preset, **options)
        scaling = scale or SCALES.get(preset, "none")
        if scaling not in ("none", PRIOR):
            raise unknown("scale", scaling, ("none", PRIOR))
        if scaling == PRIOR and not self.options.prior:
            raise UserError(
                "There is no prior part to scale the inputs from; give prior=0.05, say, or scale='none'."
            )
        self.engine, theta_0 = FastLearner(model, self.options), parameters(model)
        trained, threads = trained_names(model), torch.get_num_threads()
        facts = scaling, tuple(not_valid), data, commitment, digest(theta_0), repeats
        self.state = State(theta_0, trained, threads, *facts)

    def __repr__(self) -> str:
        fixed = f" of {self.options.tasks}" if self.options.tasks else ""
        memory = f"memory {self.memory_used} of {self.options.memory}"
        return (
            f"CoP2L({self._model_name}, {self.scenario}, tasks learned: {self.tasks_seen}{fixed}, {memory})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("model", f"{self._model_name}, {self.description['parameters']} parameters"),
            ("scenario", self.scenario),
            ("tasks learned", f"{self.tasks_seen} of {self.options.tasks or 'any number'}"),
            ("examples kept", f"{self.memory_used} of {self.options.memory}"),
            ("delta", self.options.delta),
        ]
        issued = "" if self.certificate is None else self.certificate._repr_html_()
        return notebook.card("CoP2L", notebook.table(rows, words=(0, 1)), issued, colour=notebook.QUIET)

    @property
    def _model_name(self) -> str:
        return str(self.description["name"] or self.description["class"].rpartition(".")[2])

    @property
    def tasks_seen(self) -> int:
        """How many tasks were learned."""
        return len(self.engine.sets)

    @property
    def memory_used(self) -> int:
        """How many examples of past tasks are kept; a threshold buffer may, rarely, exceed the memory."""
        return sum(len(part) for part in [*self.engine.buffer, *self.engine.prior])

    @property
    def certificate(self) -> Certificate | None:
        """The certificate after the newest task; None until `certify` is called."""
        return self.state.certificate

    @property
    def description(self) -> dict[str, Any]:
        """The model, for people and for those who build it again."""
        kind = type(self.model)
        own = {"name": None, "class": f"{kind.__module__}.{kind.__qualname__}"}
        described = getattr(self.model, "description", None) or own
        if isinstance(self.model, Classifier):
            every = [name for name, _ in self.model.named_parameters() if name not in self.model.fixed]
            if frozen := [name for name in every if name not in self.state.trained]:
                described = {**described, "frozen": frozen}
        size = sum(self.state.theta_0[name].numel() for name, _ in self.model.named_parameters())
        return {**described, "parameters": size}

    def learn(
        self,
        x: Any,
        y: Any = None,
        *,
        classes: Sequence[int] | None = None,
        groups: Any = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task; on an error or an interruption the learner is as before. Nothing is certified: see `certify`.

        x, y: arrays or tensors (x may be a memory map, or sparse),
        labels 0..classes-1 of the whole stream; y may be the name of a column of x (a frame, a Hugging Face data set), and is
        left out where x gives (x, y) pairs (a torch Dataset or DataLoader) or has a column `label`. `classes`: the task's own
        classes, fixed in advance; needed if task-incremental. `groups`: the name of each example's group, if groups are claimed.
        `progress`: a callable, True, False, or None: shown on a terminal and in a notebook only.
        """
        check_unchanged(self)
        x, columns = by_name(x, y, self.state.columns)
        x, y = labelled(x, y)
        x, found, head, width = check_task(self, x, y, classes)
        if groups is not None and not self.options.groups:
            raise UserError(
                "Groups are given and none are claimed; leave them out, or make the learner with claim=('tasks', 'groups') and"
                " groups=('A', 'B')."
            )
        if not self.tasks_seen and self.state.scale == PRIOR:
            prior.scale_inputs(self, x, found)
        column = counting.group_numbers(groups, self.options, len(found))
        engine, state, task = self.engine, self.state, self.tasks_seen + 1
        rows = blocks_of(x, y if isinstance(y, Tensor) else np.asarray(y))
        print_of_data = fingerprint(len(found), rows, column)
        like = next(self.model.parameters())
        hashes, device = row_hashes(x, like, self.options.seed), like.device
        findings = [*found_in_task(task, hashes, state.hashes)]
        reasons = [*(reason for _, reason in findings), *advice.one_class(task, head, found, self.scenario)]
        advice.warn_user([*reasons, *(() if self._draws else copies(task, hashes))])
        if engine.ranks is None:  # of several ranks each takes its own blocks there
            x = x.to(device) if isinstance(x, Tensor) else x
        else:
            engine.ranks.check_agreement(self, {"data": print_of_data, "classes": head})
            progress = progress if engine.ranks.is_first or callable(progress) else False
        with (
            all_or_nothing(self),
            progress_display(progress) as engine.progress,
            exact_arithmetic(state.threads),
        ):
            state.heads, state.classes, state.columns = [*state.heads, head], width, columns
            engine.masked_classes = self._outside()
            S = sample(x, found.to(device), task, self.options.seed)
            if task == 1:
                check_alone(self.model, S, engine.masked_classes)
            engine.learn(S)
            if task == 1:  # once more: initial weights of zero would show nothing
                check_alone(self.model, S, engine.masked_classes)
                check_undone(self.model, S, self.options.seed)
            state.fingerprints, state.hashes = [*state.fingerprints, print_of_data], [*state.hashes, hashes]
            state.void = tuple(sorted({*state.void, *(number for tasks, _ in findings for number in tasks)}))
            state.not_valid = tuple(dict.fromkeys([*state.not_valid, *reasons]))[:MOST_REASONS]
            state.facts = [*state.facts, self._facts(S, column)]
            here = machine(self.model)
            state.machines = [other for other in state.machines if other != here] + [here]
            state.issued = state.certificate = None
            state.theta = digest(self.model.state_dict())
            advice.warn_user(advice.underfitting(engine, S))

    def certify(self, data: Mapping[int, Data] | None = None) -> Certificate:
        """The certificate for every task seen; `data` maps task numbers to (x, y) or to a callable that yields blocks.

        A task's data is read once, for counting only, and must be what the task was learned from. For a task without data
        the bound is made from the memory alone, where marks decide what is kept; it is much looser (25 % where the data gives
        5 %, say): `cop2l.plan(error=, examples=, memory=, tasks=)` tells by how much beforehand. There is one certificate after
        the last task (tasks=T fixed in advance), or one after any task (tasks=None): another one with other bounds would spend
        delta twice.
        """
        if data is not None and not isinstance(data, Mapping):
            raise UserError("The data must be given by the numbers of its tasks: certify({1: (x, y), ...}).")
        # A task whose data is None is one without data: its errors cannot be counted.
        data, last = {t: own for t, own in (data or {}).items() if own is not None}, self.tasks_seen
        if not last:
            raise UserError("There is nothing to certify yet; learn a task first.")
        check_unchanged(self)
        if self.options.tasks not in (None, last):
            raise UserError(
                f"The claim is for {self.options.tasks} tasks, fixed in advance, and {last} were learned; "
                "learn the others first, or make a learner with tasks=None, which certifies after any task."
            )
        if strange := set(data) - set(range(1, last + 1)):
            raise UserError(f"There is no task {min(strange)} to certify; tasks 1 to {last} were learned.")
        wrong = counting.misclassified_rows(self, data)
        check_unchanged(self)  # what gives the data may have changed it, and so may running it
        records = [self._record(task, task not in data, rows) for task, rows in enumerate(wrong, 1)]
        unpaid = self._unpaid(data)
        advice.warn_user(
            f"Rows of task {task} repeat another, and its bound is 100 %: they count as errors where its data is given, in"
            " bounds of other kinds than kl."
            for task in unpaid
        )
        statements = void_statements(all_statements(self.options, records), {*self.state.void, *unpaid})
        issued = [[s[name] for name in ("family", "task", "subject", "kind")] for s in statements]
        if not issued:
            raise UserError(
                "Without the data of any task there is nothing to certify from; give data={1: (x, y), ...}."
            )
        state = self.state
        if state.issued not in (None, issued):
            raise UserError(
                f"After task {last} a certificate was issued already, with other data at hand; a second one would spend "
                "delta twice. Use that one, or learn the next task first."
            )
        content = content_of(
            "cop2l",
            self.options,
            statements,
            records,
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
        theta, sets = parameters(self.model), set_tensors(self.engine.sets)
        tensors = {"theta_0": state.theta_0, "theta": theta, "sets": sets}
        hashes = {name: digest(part) for name, part in tensors.items()}
        state.certificate, state.issued = Certificate({**content, **hashes}, self.options, tensors), issued
        return state.certificate

    def commitment(self) -> dict[str, Any]:
        """What is fixed before learning, to be handed to an auditor (docs/certificates.md)."""
        if self.state.scale == PRIOR and not self.tasks_seen:
            raise UserError(
                "The first task scales the inputs, so there is nothing to commit to yet; use scale='none'."
            )
        fixed = self._width, self.description, self.state.data, digest(self.state.theta_0)
        return commitment(
            "cop2l", self.options, None, self.scenario, *fixed, self.state.threads, precision(self.model)
        )

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class of each example, on the CPU; task-incremental learners need the task's number."""
        return self._of_logits(lambda logits: logits.argmax(1), x, task, torch.empty(0, dtype=torch.int64))

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits, on the CPU: one row per example. Nothing is certified of these numbers."""
        return self._of_logits(lambda logits: logits.softmax(1), x, task, torch.empty(0, self._width))

    def _of_logits(self, rule: Callable[[Tensor], Tensor], x: Any, task: int | None, none: Tensor) -> Tensor:
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
                found = [rule(logits) for logits in outputs(self.model, x, task, self._outside())]
            except (RuntimeError, IndexError):
                if (said := wrong_shape(self.model, x)) is not None:
                    raise UserError(said) from None
                raise
        return torch.cat(found) if found else none

    def save(self, folder: str | Path, *, certificate: bool = True) -> None:
        """Everything needed to learn the next task later, in one file, written at once; and the certificate, if wanted."""
        check_unchanged(self)
        saved.save(self, Path(folder), certificate)

    def restore(self, folder: str | Path) -> None:
        """Put this learner, made with the same model and options, into the saved state."""
        saved.restore(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "CoP2L":
        """A learner from its folder; `model` (same architecture) is needed only for a model of your own.

        What it learns and certifies rests on the memory, prior examples and sums in the file, which nothing checks.
        """
        return saved.load(cls, Path(folder), model)

    @property
    def _width(self) -> int:
        """How many outputs the model has."""
        width = self.state.classes or self.description.get("classes")
        if width is None:
            raise UserError(
                "How many classes the model has is not known before the first task; set model.description."
            )
        return int(width)

    @property
    def _draws(self) -> bool:
        """Whether rows that repeat are independent draws."""
        return counting.declared_draws(self.state.data, self.state.repeats)

    def _unpaid(self, data: Mapping[int, Data]) -> list[int]:
        """The tasks with rows that repeat and do not count as errors: without data, or by a bound that no theorem covers."""
        covered = data if self.options.kind not in ("kl", "kl-tight") else ()
        rows = () if self._draws else enumerate(self.state.hashes, 1)
        return [task for task, hashes in rows if task not in covered and copied_rows(hashes)]

    def _outside(self) -> Tensor | None:
        """Task-incremental: which classes are not in the head of each task."""
        if self.scenario != "task-incremental":
            return None
        device = next(self.model.parameters()).device
        return head_masks(self.state.heads, self._width, self.scenario, device)

    def _facts(self, S: Examples, groups: np.ndarray | None) -> dict[str, np.ndarray]:
        """What must be known later of the rows of a task that was just learned."""
        found = {} if groups is None else {"groups": groups}
        if "classes" in self.options.claim:
            found["labels"] = S.y.cpu().numpy()
        if "forgetting" in self.options.claim:
            count = misclassified if self.engine.ranks is None else self.engine.ranks.misclassified
            found["wrong"] = count(self.model, S, self.engine.masked_classes)
        return found

    def _record(self, task: int, gone: bool, wrong: np.ndarray) -> dict[str, Any]:
        """The integers of one task, from its data or from the memory alone."""
        state, sets = self.state, self.engine.sets[task - 1]
        head, fingerprint = list(state.heads[task - 1]), state.fingerprints[task - 1]
        identity = {"task": task, "rows": len(wrong), "head": head, "fingerprint": fingerprint}
        known = sets, wrong, state.facts[task - 1], gone
        return identity | counting.task_record(self.options, self.tasks_seen, task, *known)
