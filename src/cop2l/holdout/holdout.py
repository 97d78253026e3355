"""A hold-out around any method: it withholds a part of each task, and certifies the method by it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certificates.bounding import statements as all_statements
from cop2l.certificates.bounding import void_statements
from cop2l.certificates.certificate import Certificate, content_of, stored_certificate
from cop2l.certificates.commitment import commitment
from cop2l.console import Progress, progress_display
from cop2l.errors import UserError
from cop2l.files import read_tensors, replace_folder, write_tensors
from cop2l.holdout import withheld
from cop2l.holdout.certificate import HoldoutCertificate
from cop2l.holdout.withheld import Withheld
from cop2l.kernel.building import description_of, scalable
from cop2l.kernel.exact import check_alone, digest, exact_arithmetic, machine, tensor, withheld_rows
from cop2l.kernel.exact import sample as examples
from cop2l.kernel.learning import Sets
from cop2l.kernel.models import MODELS
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint, numbers
from cop2l.kernel.scale import MIN_ROWS, Scale, fit_scale
from cop2l.learner import advice, counting
from cop2l.learner.inputs import by_name, check_finite, inputs, labelled, labels
from cop2l.learner.repeats import MOST_REASONS, copy_warnings, row_hashes
from cop2l.learner.state import (
    all_or_nothing,
    check_unchanged,
    has_other_weights,
    threads,
    unused_copy,
    was_trained_before,
)
from cop2l.learner.validation import Data, check_data, not_learned_from, task_blocks
from cop2l.methods import load, name_of
from cop2l.methods.base import Learner
from cop2l.streams.task import take_rows

FORMAT, SAVED_HOLDOUT = "cop2l-holdout 1", "withheld.safetensors"
SAVED = ("threads", "not_valid", "void_tasks", "void_means", "data", "commitment", "repeats", "issued")
"""The fields of `State` that are stored as they are."""


@dataclass
class State:
    """What a hold-out knows beside its method."""

    threads: int
    theta_digest: str
    """The digest of the parameters after the newest task."""
    not_valid: Sequence[str]
    data: dict[str, Any] | None
    commitment: str | None
    repeats: bool
    tasks: list[Withheld] = field(default_factory=list)
    void_tasks: Sequence[int] = ()
    """Tasks whose bounds do not hold, because another task learned from their withheld rows."""
    void_means: bool = False
    """Whether tasks share withheld rows, so that means over tasks do not hold."""
    issued: list[str] | None = None
    """The fingerprints of the rows that certified the newest task and those before it."""
    certificate: Certificate | None = None


class Holdout:
    """A method that certifies itself by a part of each task that it never learns from.

    >>> from cop2l.methods.replay import Replay
    >>> from cop2l.models import build
    >>> from cop2l.streams import load
    >>> stream = load("synthetic", tasks=2, n=200)
    >>> model = build("linear", inputs=stream[0].x.shape[1:], classes=stream.classes, seed=0)
    >>> learner = Holdout(Replay(model, memory=50), holdout=0.5, tasks=2)
    >>> for x, y, t in stream:
    ...     learner.learn(x, y)
    >>> certificate = learner.certify()
    >>> learner.tasks_seen, sorted(certificate.bounds), certificate.kind
    (2, [1, 2], 'holdout')
    """

    def __init__(
        self,
        learner: Learner,
        *,
        holdout: float = 0.5,
        keep_withheld: int = 2000,
        tasks: int | None = None,
        delta: float = 0.05,
        claim: Sequence[str] = ("tasks",),
        shares: Sequence[int] = (),
        groups: Sequence[str] = (),
        siblings: int = 1,
        scale: bool = True,
        repeats: bool = False,
        not_valid: Sequence[str] = (),
        data: dict[str, Any] | None = None,
        commitment: str | None = None,
    ) -> None:
        """Wrap a method before its first task.

        Args:
            learner: The method, such as WeightedReplay(model).
            holdout: The share of each task that is withheld: each row by itself, by a number drawn from the seed.
            keep_withheld: How many withheld rows of past tasks are kept to certify them when their data is gone.
            tasks: The number of tasks, if it is fixed in advance; None: a certificate after any task.
            delta: The probability that the claim fails.
            claim: The claimed families (docs/certificates.md).
            shares: How delta is divided between them.
            groups: The names of the groups, if they are claimed.
            siblings: How many commitments are made for the same data.
            scale: Whether the inputs are scaled by the learned rows of the first task. It wraps a module of your own: use
                `holdout.model`.
            repeats: Whether equal rows of a task are draws, as in discrete data.
            not_valid: Reasons, as sentences, why the assumptions do not hold for this data.
            data: How the data can be loaded again; certificates contain it.
            commitment: The hash of a commitment made before.
        """
        if not isinstance(learner, Learner):
            raise UserError(
                f"A hold-out wraps a method, such as WeightedReplay(model), not {type(learner).__name__}"
                f"{', which certifies itself' * hasattr(learner, 'certify')}."
            )
        if learner.tasks_seen:
            raise UserError(f"The method has learned {learner.tasks_seen} tasks already; wrap a new one.")
        if not (type(holdout) is float and 0 < holdout < 1) or keep_withheld < 0:
            raise UserError(
                f"holdout is {holdout!r} and keep_withheld {keep_withheld!r}; give a share between 0.0 and 1.0 and a number."
            )
        self.learner, self.holdout, self.keep_withheld, self.scale = learner, holdout, keep_withheld, scale
        self.unused = unused_copy(learner.model)
        claims: Any = {"claim": tuple(claim), "shares": tuple(shares), "groups": tuple(groups)}
        self.options = Options(
            kind="holdout", memory=max(2000, tasks or 1), seed=learner.seed, tasks=tasks, delta=delta, siblings=siblings, **claims
        )  # fmt: skip
        self.state = State(
            torch.get_num_threads(), digest(learner.model.state_dict()), tuple(not_valid), data, commitment, repeats
        )  # fmt: skip

    def __repr__(self) -> str:
        kept = f"withheld rows kept: {sum(len(task.y) for task in self.state.tasks)}"
        return f"Holdout({self.learner!r}, holdout={self.holdout:g}, {kept})"

    @property
    def model(self) -> nn.Module:
        """The model of the method."""
        return self.learner.model

    @property
    def scenario(self) -> str:
        """The scenario of the method."""
        return self.learner.scenario

    @property
    def tasks_seen(self) -> int:
        """The number of tasks that were learned."""
        return self.learner.tasks_seen

    @property
    def memory_used(self) -> int:
        """The number of stored examples: those of the method, and the withheld rows that are kept."""
        return self.learner.memory_used + sum(len(task.y) for task in self.state.tasks)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate after the newest task; None until `certify` is called."""
        return self.state.certificate

    @property
    def description(self) -> dict[str, Any]:
        """The description of the model, or its class."""
        return dict(description_of(self.model))

    def learn(
        self,
        x: Any,
        y: Any = None,
        *,
        classes: Sequence[int] | None = None,
        groups: Any = None,
        progress: Progress | bool | None = None,
    ) -> None:
        """Learn the next task from the rows that are not withheld. An error or an interruption changes nothing.

        Args:
            x: The inputs: an array, tensor, memory map, sparse matrix, data frame, torch Dataset or DataLoader.
            y: The labels, class numbers 0, 1, ... of the whole stream; or the name of their column in x.
            classes: The classes of this task, fixed in advance; needed if the scenario is task-incremental. Without it they are
                those of the learned rows.
            groups: The name of each example's group, if groups are claimed.
            progress: A function that gets the events; True or False shows progress or not; None shows it on a terminal.
        """
        check_unchanged(self)
        t, learner, state, seed = self.tasks_seen + 1, self.learner, self.state, self.options.seed
        if self.options.tasks is not None and t > self.options.tasks:
            raise UserError(
                f"This learner was made for {self.options.tasks} tasks, and all were learned; make one with tasks=None."
            )
        x, columns = by_name(x, y, learner.columns)
        x, y = labelled(x, y)
        x, y = inputs(x), labels(y)
        if len(x) != len(y):
            raise UserError(f"x has {len(x)} examples and y has {len(y)} labels; they must be as many.")
        check_finite(x)
        group_numbers = counting.group_numbers(groups, self.options, len(y))
        mask = withheld_rows(len(y), t, self.holdout, seed)
        if not mask.any() or mask.all():
            raise UserError(
                f"Task {t} has {len(y)} rows, too few to withhold the share {self.holdout:g} of them."
            )
        learned_rows, rows = np.flatnonzero(~mask), np.flatnonzero(mask)
        hashes = row_hashes(x, next(self.model.parameters()), seed)
        new = Withheld(
            len(y), fingerprint(len(y), blocks_of(x, y)), hashes[~mask], hashes[mask], np.zeros(len(rows), bool),
            np.zeros(len(rows), bool), np.empty(0, np.int64) if group_numbers is None else group_numbers[mask],
            np.arange(len(rows)), tensor(take_rows(x, rows)).cpu().clone(), y[rows],
        )  # fmt: skip
        findings = [*withheld.shared_rows(state.tasks, new)]
        reasons, notes = [reason for _, reason in findings], list[str]()
        if not counting.declared_draws(state.data, state.repeats):
            notes += copy_warnings(t, hashes)
        if t == 1 and was_trained_before(self.model):
            reasons.append(advice.TRAINED_BEFORE)
        elif t == 1 and not state.commitment and has_other_weights(self.model):
            notes.append(advice.OTHER_WEIGHTS)
        advice.warn_user([*reasons, *notes])
        with self._all_or_nothing(), progress_display(progress) as show, threads(state.threads):
            if show is not None:
                show({"task": t, "withheld": len(rows), "rows": len(y)})
            learned_x, learned_y = take_rows(x, learned_rows), y[learned_rows]
            if t == 1 and self.scale:
                self._scale_inputs(learned_x, learned_y)
            learner.learn(learned_x, learned_y, classes=classes, progress=show or False)
            learner.columns = columns
            self._check_labels(t, new.y)
            if t == 1:
                with exact_arithmetic(state.threads):
                    check_alone(self.model, [learned_x, new.x], self.unused, bits=False)
            past = [
                task.keep_rows(s, self.holdout, seed, self.keep_withheld // (t - 1))
                for s, task in enumerate(state.tasks, 1)
            ]
            past, new = withheld.mark_copies(past, new)
            first_errors = self._errors(t, new.x, new.y)
            state.tasks = [*past, replace(new, first_errors=first_errors)]
            state.void_tasks = sorted({*state.void_tasks, *(task for tasks, _ in findings for task in tasks)})
            state.void_means |= bool(findings)
            state.not_valid = list(dict.fromkeys([*state.not_valid, *reasons]))[:MOST_REASONS]
            state.issued = state.certificate = None
            state.theta_digest = digest(self.model.state_dict())

    def _scale_inputs(self, x: Any, y: Tensor) -> None:
        """Scale the inputs by the learned rows of the first task; constants that were given, and token ids, stay."""
        part, model = examples(x, y, 1, self.options.seed), self.model
        has_ids = not part.take(np.arange(1)).x.is_floating_point() and type(model) not in MODELS.values()
        if has_ids or isinstance(getattr(model, "scale", None), Scale):
            return
        constants = fit_scale(part, self.options.seed)
        if constants is None:
            advice.warn_user(
                [
                    f"The inputs are not scaled: the first task has {len(y)} learned rows, and {MIN_ROWS} are needed."
                ]
            )
            return
        scaled = scalable(model, list(x.shape[1:]))
        scaled.scale.set_constants(**constants)
        self.unused = unused_copy(scaled)
        self.learner.use_model(scaled)

    def _check_labels(self, t: int, y: Tensor) -> None:
        """Refuse a claim on classes if only withheld rows have one of them, as its head does not name it."""
        unknown = sorted(set(y.tolist()) - set(self.learner.heads[t - 1]))
        if unknown and "classes" in self.options.claim:
            raise UserError(
                f"Only withheld rows of task {t} have the class {unknown[0]}; name all classes of the task with classes=."
            )

    def _errors(self, task: int, x: Any, y: Tensor) -> np.ndarray:
        """Which rows are misclassified."""
        predicted = self.learner.predict(x, task=task if self.scenario == "task-incremental" else None)
        return np.asarray(numbers(predicted) != numbers(y))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If the block fails, the method, its model and this hold-out are as they were before."""
        learner, model = self.learner, self.model
        names = [name for name, value in vars(learner).items() if not callable(value)]
        description, was_scaled = getattr(model, "description", None), hasattr(model, "scale")
        with all_or_nothing(model, (learner, names), (self, ("state",))):
            try:
                yield
            except BaseException:
                learner.model = model
                if not was_scaled and hasattr(model, "scale"):  # the failed task scaled the inputs
                    del model.scale
                    model.description = description  # type: ignore[assignment]
                raise

    def certify(self, data: Mapping[int, Data] | None = None) -> Certificate:
        """The certificate for every task that was learned.

        With probability at least 1 - delta over the draw of the withheld rows, all its statements hold at once, under the
        assumptions that it lists (theorem `holdout` of docs/theory.md). With tasks=T fixed in advance there is one certificate,
        after the last task; with tasks=None one after any task. After each task the first one decides which rows certify.

        Args:
            data: For every task number, (x, y) as in `learn`, or a function without arguments that yields such blocks: then
                all withheld rows certify. Without it those that are kept do: all of the newest task, and `keep_withheld` of
                the others together.
        """
        data = check_data(self, data)
        state, T = self.state, self.tasks_seen
        if data and len(data) < T:
            raise UserError("Give the data of all tasks, to certify on all withheld rows, or none.")
        with threads(state.threads):
            samples = (
                self._given(data) if data else {t: (task.x, task.y) for t, task in enumerate(state.tasks, 1)}
            )
            records = [
                self._record(t, samples[t], repeated, all_rows=bool(data))
                for t, repeated in self._repeated(samples, data)
            ]
        check_unchanged(self)  # the function that yields the data may have changed the model
        issued = [record["fingerprint"] for record in records]
        if state.issued not in (None, issued):
            raise UserError(
                f"After task {T} a certificate was issued already, from other withheld rows; a second one would spend delta"
                " twice. Use that one, or learn the next task first."
            )
        claimed = void_statements(
            all_statements(self.options, records), state.void_tasks, means=state.void_means
        )
        identity = self._identity()
        if T > 1 and not data:
            identity["data"]["kept"] = True
        content = content_of(
            self.options, claimed, records, **identity, machine=machine(self.model), not_valid=list(state.not_valid),
            commitment=state.commitment,
        )  # fmt: skip
        state.issued, state.certificate = (
            issued,
            HoldoutCertificate(content, self.options, learner=self.learner),
        )
        return state.certificate

    def _given(self, data: Mapping[int, Data]) -> dict[int, tuple[Any, Tensor]]:
        """The withheld rows of tasks whose data is given again; refused if it is not what was learned."""
        samples = {}
        for t, task in enumerate(self.state.tasks, 1):
            mask, parts = task.mask(t, self.holdout, self.options.seed), list[tuple[Any, Tensor]]()

            def blocks(
                t: int = t, task: Withheld = task, mask: np.ndarray = mask, parts: Any = parts
            ) -> Iterator[Any]:
                start = 0
                for x, y in task_blocks(data[t], t, task.rows, task.x, None, self.learner.columns):
                    rows = np.flatnonzero(mask[start : start + len(y)])
                    parts.append((tensor(take_rows(x, rows)).clone(), y[rows]))
                    start += len(y)
                    yield x, y

            if fingerprint(task.rows, blocks()) != task.fingerprint:
                raise not_learned_from(t)
            samples[t] = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        return samples

    def _repeated(
        self, samples: Mapping[int, tuple[Any, Tensor]], data: Mapping[int, Data]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Each task, with the mask of the rows that repeat another one.

        These are rows that the model answers like another row. Rows that were learned from are compared by the model's answers
        if they are at hand; otherwise only equal inputs are found, by their hashes.
        """
        tasks = dict(enumerate(self.state.tasks, 1))
        if counting.declared_draws(self.state.data, self.state.repeats):
            yield from ((t, np.zeros(len(y), bool)) for t, (_, y) in samples.items())
            return
        with exact_arithmetic(self.state.threads):
            keys = {t: counting.answer_numbers(self.model, x) for t, (x, _) in samples.items()}
            learned_keys = {t: self._learned_answers(t, data[t]) for t in data}
        used = {t: np.zeros(len(rows), bool) for t, rows in keys.items()}
        for t, mask in counting.repeated_rows(keys, used, learned_keys).items():
            yield t, mask if data else mask | tasks[t].copied[tasks[t].kept_positions]

    def _learned_answers(self, t: int, data: Data) -> np.ndarray:
        """The answer numbers of the rows that a task learned from."""
        task, start, keys = self.state.tasks[t - 1], 0, list[np.ndarray]()
        learned = ~task.mask(t, self.holdout, self.options.seed)
        for x, y in task_blocks(data, t, task.rows, task.x, None, self.learner.columns):
            keys.append(
                counting.answer_numbers(
                    self.model, take_rows(x, np.flatnonzero(learned[start : start + len(y)]))
                )
            )
            start += len(y)
        return np.concatenate(keys)

    def _record(
        self, t: int, sample: tuple[Any, Tensor], repeated: np.ndarray, all_rows: bool
    ) -> dict[str, Any]:
        """The integers of a task, counted on these withheld rows."""
        task, (x, y) = self.state.tasks[t - 1], sample
        rows = slice(None) if all_rows else task.kept_positions
        group_numbers = task.groups[rows] if self.options.groups else None
        columns = {
            "errors": self._errors(t, x, y), "repeated": repeated, "labels": numbers(y), "groups": group_numbers,
            "wrong": task.first_errors[rows],
        }  # fmt: skip
        if not len(y):
            raise UserError(
                f"No withheld row of task {t} is kept, so it cannot be certified: give the data of all tasks."
            )
        counts = counting.task_record(self.options, self.tasks_seen, t, Sets(), columns)
        data_hash = fingerprint(len(y), blocks_of(x, y), group_numbers)
        head = sorted(int(c) for c in self.learner.heads[t - 1])
        return {"task": t, "rows": len(y), "head": head, "fingerprint": data_hash, **counts}

    def _identity(self) -> dict[str, Any]:
        """What a certificate and a commitment say of the method, its model and the division of the data."""
        learner, state = self.learner, self.state
        share = {"holdout": self.holdout, "keep_withheld": self.keep_withheld}
        return {
            "method": name_of(type(learner)),
            "settings": {"memory": learner.memory, **asdict(learner.options)},
            "scenario": self.scenario,
            "classes": int(learner.outputs or self.description.get("classes") or 0),
            "model": self.description,
            "data": {**(state.data or {}), **share},
            "threads": state.threads,
        }

    def commitment(self) -> dict[str, Any]:
        """What is fixed before learning: hand it to the auditor (docs/certificates.md)."""
        if self.scale and not self.tasks_seen and getattr(self.model, "scale", None) is None:
            raise UserError(
                "The first task scales the inputs, so there is nothing to commit to yet; use scale=False."
            )
        if not (identity := self._identity())["classes"]:
            raise UserError(
                "The number of classes of the model is not known before the first task; set model.description."
            )
        return commitment(self.model, self.options, theta_0=None, **identity)

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class of each example, on the CPU; a task-incremental learner needs the number of the task."""
        return self.learner.predict(x, task=task)

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits, one row per example, on the CPU. Nothing is certified of these numbers."""
        return self.learner.probabilities(x, task=task)

    def forget_withheld(self) -> None:
        """Delete the kept rows, which are raw data; tasks can then be certified only with their data."""
        none = np.empty(0, np.int64)
        self.state.tasks = [
            replace(task, kept_positions=none, x=task.x[:0].clone(), y=task.y[:0])
            for task in self.state.tasks
        ]

    def save(self, folder: str | Path, *, certificate: bool = True) -> None:
        """Write the method, the withheld rows that are kept and, unless `certificate` is false, the certificate."""
        check_unchanged(self)
        folder, state = Path(folder), self.state
        folder.mkdir(parents=True, exist_ok=True)
        self.learner.save(folder)
        note = {name: getattr(state, name) for name in SAVED} | {
            "format": FORMAT, "holdout": self.holdout, "keep_withheld": self.keep_withheld, "scale": self.scale,
            "options": self.options.as_dict(), "tasks": [(task.rows, task.fingerprint) for task in state.tasks],
        }  # fmt: skip
        write_tensors(folder / SAVED_HOLDOUT, withheld.tensors_of(state.tasks), note)
        if certificate and self.certificate is not None:
            replace_folder(folder / "certificate", self.certificate.save)

    def restore(self, folder: str | Path) -> None:
        """Bring a hold-out of the same method and options into the saved state."""
        tensors, note = _read(Path(folder))
        stored = {name: note[name] for name in ("holdout", "keep_withheld", "options", "commitment")}
        mine = (self.holdout, self.keep_withheld, self.options.as_dict(), self.state.commitment)
        if changed := [name for name, value in zip(stored, mine, strict=True) if stored[name] != value]:
            raise UserError(
                f"The saved hold-out has another {', '.join(changed)}; use what it was made with."
            )
        self._put(Path(folder), tensors, note, restored=False)

    @classmethod
    def load(cls, folder: str | Path, learner: Learner | None = None) -> Self:
        """The hold-out that `save` wrote. Load only files that you trust: nothing checks their rows.

        Args:
            folder: The folder.
            learner: The method, loaded from the same folder; needed only if it or its model is a class of your own.
        """
        folder = Path(folder)
        tensors, note = _read(folder)
        holdout = cls.__new__(cls)
        holdout.learner = load(folder) if learner is None else learner
        holdout.options = Options(**note["options"])
        holdout.holdout, holdout.keep_withheld, holdout.scale = (
            note["holdout"],
            note["keep_withheld"],
            note["scale"],
        )
        holdout.unused = unused_copy(holdout.model)
        holdout._put(folder, tensors, note, restored=True)
        return holdout

    def _put(self, folder: Path, tensors: dict[str, Tensor], note: dict[str, Any], restored: bool) -> None:
        """Take over the saved state; the method is restored already, or is restored here."""
        if not restored:
            self.learner.restore(folder)
        fields = {name: note[name] for name in SAVED if name not in ("void_tasks", "void_means", "issued")}
        self.state = State(theta_digest=digest(self.model.state_dict()), **fields)
        for name in ("void_tasks", "void_means", "issued"):
            setattr(self.state, name, note[name])
        self.state.tasks = withheld.read_tasks(tensors, note["tasks"])
        stored = stored_certificate(folder, self.tasks_seen)
        if stored and [record["fingerprint"] for record in stored.records] == self.state.issued:
            self.state.certificate = HoldoutCertificate(stored.content, stored.options, learner=self.learner)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not (folder / SAVED_HOLDOUT).exists():
        raise UserError(f"There is no saved hold-out in {folder}: the file {SAVED_HOLDOUT} is missing.")
    tensors, note = read_tensors(folder / SAVED_HOLDOUT)
    if note.get("format") != FORMAT:
        raise UserError(f"{folder / SAVED_HOLDOUT} is not a hold-out that this version of cop2l can read.")
    return tensors, note
