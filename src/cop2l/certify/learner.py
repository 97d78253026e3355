"""CoP2L: the learner that certifies itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify import advice, notebook, ranks, saved
from cop2l.certify.bounding import statements as all_statements
from cop2l.certify.certificate import Certificate, content_of
from cop2l.certify.fast import (
    SMALL_REQUESTS,
    ErrorCount,
    Fast,
    ScoringMode,
    exact_already,
    input_blocks,
    misclassified,
    outputs,
)
from cop2l.certify.inputs import blocks as blocks_in
from cop2l.certify.inputs import (
    check_finite,
    features,
    in_words,
    inputs,
    labelled,
    labels,
    reader,
    wrong_shape,
)
from cop2l.certify.presets import PRIOR, Choice, OptionValues
from cop2l.certify.presets import options as choose_options
from cop2l.certify.prior import LEAST_TO_TRY, STEPS, prior_part, scaled, settled
from cop2l.certify.state import (
    PROBED,
    State,
    load_parameters,
    own_numbers,
    parameters,
    state,
    trained,
    unsaved,
)
from cop2l.console import Progress, shown
from cop2l.errors import UserError, unknown
from cop2l.kernel.learning import (
    Examples,
    answers,
    check_alone,
    digest,
    exact_arithmetic,
    linear_head,
    sample,
    score,
    tensor,
)
from cop2l.kernel.options import Options, Refusal
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.kernel.verify import counts_and_parts, group_numbers, machine, outside_heads, set_tensors
from cop2l.models import MODELS, Classifier
from cop2l.models.scale import Scale
from cop2l.randomness import private_randomness
from cop2l.streams.task import SCENARIOS

Data = tuple[Any, Any] | Callable[[], Iterable[tuple[Any, Any]]] | Any
"""A task's data: (x, y) as in `learn`, or x alone where it carries its labels, or a callable that yields (x, y) blocks."""

OWN = ("heads", "fingerprints", "facts", "machines", "issued", "certificate", "learned", "_form", "_classes")
"""What learning a task changes in the learner itself."""
WANTS_INTEGERS = (
    "The model looks up integers such as token ids: give x as integers (int64), not as real numbers."
)
WANTS_NUMBERS = (
    "x holds integers, which reach the model as they are, like token ids, and it cannot take them: if they are quantities such "
    "as pixels, give them as real numbers (float32)."
)


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
        **options: Unpack[OptionValues],
    ) -> None:
        """`options` are the fields of `cop2l.kernel.options.Options`; what is not given comes from the preset.

        `not_valid` are reasons, in sentences, why the certificates' assumptions do not hold for this data. `data` says how
        the data can be had again (stream, tasks, class_seed, holdout ...), and `commitment` is the hash of a commitment made
        before: both are written into certificates.
        """
        if scenario not in SCENARIOS:
            raise unknown("scenario", scenario, SCENARIOS)
        if not isinstance(model, nn.Module):
            raise UserError(
                f"The model must be a torch module, such as models.build(...), not {model!r:.60}."
            )
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError("The model has no parameters to learn.")
        fixed = model.fixed if isinstance(model, Classifier) else ()
        if any(model.get_parameter(name).requires_grad for name in fixed):
            raise UserError(f"{', '.join(fixed)} of this model is never trained: put requires_grad back.")
        for name, value in model.state_dict().items():
            if not isinstance(value, Tensor):
                raise UserError(
                    f"The model keeps {name!r} in its state_dict, which is no tensor: make it a buffer."
                )
        if any(p.dtype == torch.bfloat16 for p in model.parameters()):
            raise UserError(
                "The losses of a model in bfloat16 are too coarse to pick by; convert it: model.float()."
            )
        if any(module._compiled_call_impl for module in model.modules()) or any(
            hasattr(module, "_orig_mod") for module in model.modules()
        ):
            raise UserError(
                "Give the model itself, not compiled: what torch.compile makes of it may round in another way."
            )
        for value in [*model.parameters(), *model.buffers()]:  # in the plain memory layout
            value.data = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.data)
        model.eval()
        self.model, self.scenario, self.data, self.commitment_hash = model, scenario, data, commitment
        self.options: Options = choose_options(preset, **options)
        self.not_valid = tuple(not_valid)
        self.certificate: Certificate | None = None
        self.heads: list[tuple[int, ...]] = []
        self.fingerprints: list[str] = []
        self.facts: list[dict[str, np.ndarray]] = []
        """Of each task's rows, as far as something is claimed of it: labels, numbers of groups, and which were wrong after it."""
        self.engine = Fast(model, self.options)
        self.ranks: ranks.Ranks | None = None
        """The processes that share the work of `learn` and `certify`: all make the same calls (docs/ranks.md)."""
        self.theta_0 = parameters(model)
        self.machines: list[str] = []
        self.threads = torch.get_num_threads()
        self.issued: list[list[Any]] | None = None
        """Of the certificate after the newest task: family, task, subject and kind of each statement."""
        self.learned = state(model, [], self.threads)
        """The state of the model that the newest task left."""
        self.trained = trained(model)
        """The names of the parameters that are trained."""
        self._first: tuple[str, tuple[int, ...] | None] | None = None
        """What gave scale and step: the fingerprint of the examples, and the classes with which steps were tried."""
        self._classes: int | None = None
        self._form: Any = None
        self._mode: ScoringMode | None = None

    @classmethod
    def from_prior(
        cls,
        model: nn.Module,
        x: Any,
        y: Any = None,
        *,
        scale: str | None = PRIOR,
        lr: str | float = PRIOR,
        classes: Sequence[int] | None = None,
        say: Callable[[str], None] = lambda _: None,
        **given: Any,
    ) -> "CoP2L":
        """A learner with a copy of the model; the examples that `learn(x, y)` will set aside decide the inputs' scale and lr.

        No other example is looked at, and these are not certified. `given` is what CoP2L takes, with a prior part, such as
        prior=0.05; with scale=None or a number for lr only the other is decided. `say` is told what was found.
        """
        stated = {name: value for name, value in given.items() if name not in ("claim", "shares", "groups")}
        chosen = choose_options(
            **{name: stated[name] for name in ("preset", "prior", "seed") if name in stated}
        )
        if not chosen.prior:
            raise UserError("Nothing is set aside to set scale or lr from; give prior=0.05, say.")
        x, y = labelled(x, y)
        part = prior_part(x, labels(y), chosen.prior, chosen.seed)
        shape = list(part.x.shape[1:]) if isinstance(part.x, Tensor) else []
        ids = (
            isinstance(part.x, Tensor)
            and not part.x.is_floating_point()
            and type(model) not in MODELS.values()
        )
        own: Any = getattr(model, "scale", None)
        stays = ids or (isinstance(own, Scale) and not own.limited)

        def make(constants: dict[str, list[float]] | None, step: float) -> "CoP2L":
            return cls(scaled(model, shape, constants), **(stated | {"lr": step}))

        scenario, head = stated.get("scenario", "class-incremental"), None
        if lr == PRIOR and len(part) >= LEAST_TO_TRY:
            head = make(None, STEPS[0])._checked(part.x, part.y, classes)[2]
        found = settled(scale == PRIOR and not stays, lr == PRIOR, part, make, classes, scenario, say)
        step: Any = {} if lr == PRIOR and found.lr is None else {"lr": found.lr if lr == PRIOR else lr}
        tried = {} if found.tried is None else {"data": {**(given.get("data") or {}), "tried": found.tried}}
        learner = cls(scaled(model, shape, found.scale), **(given | step | tried))
        learner._first = _print(part), head
        return learner

    def __repr__(self) -> str:
        fixed = f" of {self.options.tasks}" if self.options.tasks else ""
        memory = f"memory {self.memory_used} of {self.options.memory}"
        return f"CoP2L({self._model_name}, {self.scenario}, {self.tasks_seen}{fixed} tasks learned, {memory})"

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
        return str(self.description["name"] or type(self.model).__name__)

    @property
    def tasks_seen(self) -> int:
        """How many tasks were learned."""
        return len(self.engine.sets)

    @property
    def memory_used(self) -> int:
        """How many examples of past tasks are kept; a threshold buffer may, rarely, exceed the memory."""
        return sum(len(part) for part in [*self.engine.buffer, *self.engine.prior])

    @property
    def numbers_stored(self) -> int:
        """How many numbers are kept beside the model and the examples: the sums of an analytic start."""
        return sum(value.numel() for value in self.engine.sums.values())

    def numbers_foreseen(self, x: Any, classes: int) -> int:  # noqa: ARG002
        """How many that will be, whatever the tasks."""
        if self.options.start == "weights":
            return 0
        try:
            width = linear_head(self.model).in_features
        except Refusal as refusal:
            raise UserError(str(refusal)) from None
        return classes * (width + 1) + width**2

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The iterations of the newest task."""
        return self.engine.trace

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
        self._check_unchanged()
        x, y = labelled(x, y)
        made = [*self.model.parameters(), *self.model.buffers()]
        if not torch.is_grad_enabled() or any(value.is_inference() for value in made):
            raise UserError(
                "Learning needs gradients; call learn outside torch.no_grad() and torch.inference_mode(), and make or load the"
                " learner outside the latter."
            )
        if trained(self.model) != self.trained:
            raise UserError(
                "Other parameters are to be trained than when the learner was made; put requires_grad back."
            )
        x, found, head = self._checked(x, y, classes)
        if groups is not None and not self.options.groups:
            raise UserError(
                "Groups are given and none are claimed; leave them out, or make the learner with claim=('tasks', 'groups') and"
                " groups=('A', 'B')."
            )
        self._check_first(x, found, head)
        try:
            column = group_numbers(groups, self.options, len(found))
        except Refusal as refusal:
            raise UserError(str(refusal)) from None
        rows = blocks_of(x, y if isinstance(y, Tensor) else np.asarray(y))
        device, engine, first = next(self.model.parameters()).device, self.engine, not self.machines
        advice.give(advice.before(self.tasks_seen + 1, x, found, classes, self.model))
        print_of_data = fingerprint(len(found), rows, column)
        advice.give(advice.copied(self.tasks_seen + 1, x, self.data))
        if self.ranks is None:  # of several ranks each takes its own blocks there
            x = x.to(device) if isinstance(x, Tensor) else x
        found = found.to(device)
        advice.give(advice.again(self.tasks_seen + 1, print_of_data, self.fingerprints))
        if self.ranks is not None:
            self._agree({"data": print_of_data, "classes": head})
            progress = progress if self.ranks.first or callable(progress) else False
        engine.ranks = self.ranks
        with self._all_or_nothing(), shown(progress) as engine.progress, exact_arithmetic(self.threads):
            engine.outside = self._outside([*self.heads, head])
            S = sample(x, found, engine.task, self.options.seed)
            if first:
                check_alone(self.model, S, engine.outside)
            engine.learn(S)
            if first:  # once more: initial weights of zero would show nothing
                check_alone(self.model, S, engine.outside)
                self._check_undone(S)
            self.heads, self.fingerprints = [*self.heads, head], [*self.fingerprints, print_of_data]
            self.facts = [*self.facts, self._facts(S, column)]
            here = machine(self.model)
            self.machines = [other for other in self.machines if other != here] + [here]
            self.issued = self.certificate = None
            self.learned = self._state()
            advice.give(advice.after(engine, S))

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
        self._check_unchanged()
        if self.options.tasks not in (None, last):
            raise UserError(
                f"The claim is for {self.options.tasks} tasks, fixed in advance, and {last} were learned; "
                "learn the others first, or make a learner with tasks=None, which certifies after any task."
            )
        if strange := set(data) - set(range(1, last + 1)):
            raise UserError(f"There is no task {min(strange)} to certify; tasks 1 to {last} were learned.")
        every, shared, outside = (
            [np.zeros(rows, bool) for rows, _ in self.engine.sizes],
            self.ranks,
            self.engine.outside,
        )
        if shared is not None:
            self._agree({"data": sorted(data)})
        with exact_arithmetic(self.threads):
            count = (
                ranks.ErrorCount(shared, self.model, outside) if shared else ErrorCount(self.model, outside)
            )
            for task, wrong in enumerate(every, 1):
                self._count(task, data.get(task), wrong, count)
            count.finish()
            if shared is not None:
                shared.unite(every)
        self._check_unchanged()  # what gives the data may have changed it, and so may running it
        records = [self._record(task, task not in data, wrong) for task, wrong in enumerate(every, 1)]
        statements = all_statements(self.options, records)
        issued = [[s[name] for name in ("family", "task", "subject", "kind")] for s in statements]
        if not issued:
            raise UserError(
                "Without the data of any task there is nothing to certify from; give data={1: (x, y), ...}."
            )
        if self.issued not in (None, issued):
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
            classes=self._width(),
            model=self.description,
            data=self.data,
            machine=self.machines[-1],
            earlier=self.machines[:-1],
            threads=self.threads,
            not_valid=[*self.not_valid, *advice.known_twice(self.fingerprints)],
            commitment=self.commitment_hash,
        )
        theta, sets = parameters(self.model), set_tensors(self.engine.sets)
        tensors = {"theta_0": self.theta_0, "theta": theta, "sets": sets}
        hashes = {name: digest(part) for name, part in tensors.items()}
        self.certificate, self.issued = Certificate({**content, **hashes}, self.options, tensors), issued
        return self.certificate

    def commitment(self) -> dict[str, Any]:
        """What is fixed before learning, to be handed to an auditor (docs/certificate.md)."""
        from cop2l.certify.commitment import commitment

        return commitment(
            "cop2l",
            self.options,
            None,
            self.scenario,
            self._width(),
            self.description,
            self.data,
            digest(self.theta_0),
        )

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        """The class of each example, on the CPU; task-incremental learners need the task's number."""
        return self._of_logits(lambda logits: logits.argmax(1), x, task, torch.empty(0, dtype=torch.int64))

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits, on the CPU: one row per example. Nothing is certified of these numbers."""
        return self._of_logits(lambda logits: logits.softmax(1), x, task, torch.empty(0, self._width()))

    def _of_logits(self, rule: Callable[[Tensor], Tensor], x: Any, task: int | None, none: Tensor) -> Tensor:
        if self.scenario != "task-incremental":
            task = None
        elif task not in range(1, self.tasks_seen + 1):
            raise UserError(
                f"A task-incremental learner predicts for one of its tasks: give task=1..{self.tasks_seen}."
            )
        x = inputs(features(x))
        if self._mode is None or not self._mode.fits(self.model):
            self._mode = ScoringMode(self.model)
        small = len(x) <= SMALL_REQUESTS[-1] and exact_already(self._mode.like)
        with nullcontext() if small else exact_arithmetic(torch.get_num_threads()):
            every = outputs(self.model, x, task, self._outside(self.heads), self._mode)
            try:
                found = [rule(logits) for logits in every]
            except (RuntimeError, IndexError):
                if (said := wrong_shape(self.model, x)) is not None:
                    raise UserError(said) from None
                raise
        return none if not found else found[0] if len(found) == 1 else torch.cat(found)

    def save(self, folder: str | Path, *, certificate: bool = True) -> None:
        """Everything needed to learn the next task later, in one file, written at once; and the certificate, if wanted."""
        self._check_unchanged()
        saved.save(self, Path(folder), certificate)

    def restore(self, folder: str | Path) -> None:
        """Put this learner, made with the same model and options, into the saved state."""
        saved.restore(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module | None = None) -> "CoP2L":
        """A learner from its folder; `model` (same architecture) is needed only for a model of your own."""
        return saved.load(cls, Path(folder), model)

    @property
    def description(self) -> dict[str, Any]:
        """The model, for people and for those who build it again."""
        kind = type(self.model)
        own = {"name": None, "class": f"{kind.__module__}.{kind.__qualname__}"}
        described = getattr(self.model, "description", None) or own
        if isinstance(self.model, Classifier):
            every = [name for name, _ in self.model.named_parameters() if name not in self.model.fixed]
            if frozen := [name for name in every if name not in self.trained]:
                described = {**described, "frozen": frozen}
        size = sum(self.theta_0[name].numel() for name, _ in self.model.named_parameters())
        return {**described, "parameters": size}

    def _check_unchanged(self) -> None:
        """Refuse a model that is not as the newest task left it: no certificate would hold for it."""
        if self.model is not self.engine.model or not self.learned.still(self._state()):
            when = f"task {self.tasks_seen} was learned" if self.tasks_seen else "the learner was made"
            raise UserError(
                f"The model's parameters, its modules or its answers were changed after {when}; put them back, or make or load"
                " the learner again: a certificate holds only for what it learned itself."
            )

    def _check_undone(self, S: Examples) -> None:
        """Refuse a model that training changes beyond its state_dict: going back to a kept iteration would not undo it."""
        some = S.take(np.arange(PROBED) % len(S))
        theta, (before, _) = parameters(self.model), score(self.model, some)
        with private_randomness(some.y.device, self.options.seed, "undone"):
            answers(self.model.train(), some.take(np.arange(PROBED)).x)  # it may write into its input
        load_parameters(self.model, theta)
        if not torch.equal(score(self.model, some)[0], before):
            raise UserError(
                "Training changes something of the model that is not in its state_dict, and its answers with it; make it a "
                "persistent buffer."
            )

    def _state(self) -> State:
        return state(self.model, [*self.engine.buffer, *self.engine.prior], self.threads)

    def _check_first(self, x: Any, y: Tensor, head: tuple[int, ...]) -> None:
        """Refuse a first task whose prior part did not give scale and step: they could depend on certified examples."""
        if self.tasks_seen or self._first is None:
            return
        seen, told = self._first
        same = told in (None, head) or self.scenario != "task-incremental"
        if not same or seen != _print(prior_part(x, y, self.options.prior, self.options.seed)):
            raise UserError(
                "The first task is not the one that CoP2L.from_prior was given; learn the same examples first, in the same order,"
                " with the same classes."
            )

    def _record(self, task: int, gone: bool, wrong: np.ndarray) -> dict[str, Any]:
        """The integers of one task, from its data or from the memory alone."""
        rows, sets = len(wrong), self.engine.sets[task - 1]
        identity = {
            "task": task,
            "rows": rows,
            "head": list(self.heads[task - 1]),
            "fingerprint": self.fingerprints[task - 1],
        }
        facts, last = self.facts[task - 1], self.tasks_seen
        return identity | counts_and_parts(self.options, last, task, sets, wrong, facts, gone=gone)

    def _facts(self, S: Examples, groups: np.ndarray | None) -> dict[str, np.ndarray]:
        """What must be known later of the rows of a task that was just learned."""
        found = {} if groups is None else {"groups": groups}
        if "classes" in self.options.claim:
            found["labels"] = S.y.cpu().numpy()
        if "forgetting" in self.options.claim:
            count = misclassified if self.ranks is None else self.ranks.misclassified
            found["wrong"] = count(self.model, S, self.engine.outside)
        return found

    def _count(self, task: int, data: Data | None, wrong: np.ndarray, count: ErrorCount) -> None:
        """Have counted which rows of a task the model misclassifies, from one pass over its data or from the memory alone.

        The data must be what was learned from.
        """
        held = self.engine.buffer[task - 1]
        if data is None:
            if self.options.marked:
                count.add(held, wrong, held.row)
            return
        device, head = next(self.model.parameters()).device, frozenset(self.heads[task - 1])
        rows, start = len(wrong), 0
        other = UserError(
            f"The data given for task {task} is not what it was learned from: its fingerprint differs."
        )
        pair = data if isinstance(data, tuple | list) else (data,)
        if len(pair) != 2 and not callable(data) and reader(data) is None:
            raise UserError(
                f"The data for task {task} must be (x, y), or a callable that yields such blocks."
            )

        whole = not callable(data) and reader(pair[0]) is None

        def blocks() -> Iterator[tuple[Any, Any]]:
            nonlocal start
            for x, y in data() if callable(data) else blocks_in(*pair):
                x, y = inputs(x), y if isinstance(y, Tensor) else np.asarray(y)
                found, at = labels(y), np.full(len(y), task)
                if not whole:
                    # They wait until they are counted together, and may be read into the same memory.
                    x, y = tensor(x[:]).clone(), (found := found.clone())
                if len(x) != len(y) or start + len(y) > rows:
                    raise UserError(
                        f"The data given for task {task} has {len(x)} inputs and {len(y)} labels from row {start} on; "
                        f"it was learned from {rows} examples."
                    )
                if _form(x)[0] != _form(held.x)[0] or not head.issuperset(found.tolist()):
                    raise other
                part = Examples(x, found.to(device), at, at, at)  # neither rows nor marks count here
                count.add(part, wrong, slice(start, start + len(y)))
                start += len(y)
                yield x, y

        found = fingerprint(rows, blocks(), self.facts[task - 1].get("groups"))
        if start != rows or found != self.fingerprints[task - 1]:
            raise other

    def _agree(self, facts: dict[str, Any]) -> None:
        """Refuse ranks that differ in what decides the bits."""
        assert self.ranks is not None
        mine = {
            "options": self.options,
            "scenario": self.scenario,
            "threads": self.threads,
            "machine": machine(self.model),
            "parameters": digest(parameters(self.model)),
            "past tasks": digest(set_tensors(self.engine.sets)),
        }
        self.ranks.agree(mine | facts)

    def _checked(self, x: Any, y: Any, classes: Sequence[int] | None) -> tuple[Any, Tensor, tuple[int, ...]]:
        """The task's data in usable form; every wrong input is refused here, before anything changes."""
        task, classes = self.tasks_seen + 1, _plain(classes)
        if self.options.tasks is not None and task > self.options.tasks:
            raise UserError(
                f"This learner was made for {self.options.tasks} tasks, and all were learned; make one with tasks=None."
            )
        if self.options.memory < task:
            raise UserError(
                f"memory={self.options.memory} is smaller than the number of tasks, {task}; give each task at least one example."
            )
        normalising = any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.model.modules()
        )
        if self.options.batch == 1 and normalising:
            raise UserError(
                "A model with batch normalisation cannot train on a single example; use batch=2 or more."
            )
        x, found = inputs(x), labels(y)
        if len(x) != len(found):
            raise UserError(f"x has {len(x)} examples and y has {len(found)} labels; they must be as many.")
        if not len(found):
            raise UserError("The task is empty; give at least one example.")
        width, low, high = self._width(x), int(found.min()), int(found.max())
        own_heads = self.scenario == "task-incremental"
        if own_heads and classes is None:
            raise UserError(
                "A task-incremental task needs its own classes, fixed in advance: learn(x, y, classes=(...))."
            )
        head = tuple(sorted({*(range(width) if classes is None else classes)}))
        listed = str(head) if len(head) <= 20 else f"{head[0]} to {head[-1]}, {len(head)} of them"
        if not head or head[0] < 0 or head[-1] >= width:
            raise UserError(
                f"classes must name outputs of the model, 0 to {width - 1}, but they are {listed}."
            )
        if low < 0 or high >= width:
            raise UserError(
                f"Labels must be 0 to {width - 1} (the model has {width} outputs), but y has {low if low < 0 else high}; "
                "make the model with all classes that will ever come."
            )
        if not np.isin(found.numpy(), head).all():
            raise UserError(f"y has labels outside the task's own classes {listed}.")
        check_finite(x)
        return x, found, head

    def _width(self, x: Any = None) -> int:
        """How many outputs the model has: found by running it once on such inputs, or from its description."""
        if x is not None and self._form != _form(x):
            shape, integers = _form(x)
            held = _form(self.engine.buffer[0].x)[0] if self.engine.buffer else shape
            try:
                with ScoringMode(self.model):
                    logits = self.model(next(input_blocks(self.model, x[:1])))
            except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
                if "scalar types: Long, Int" in str(error):
                    raise UserError(WANTS_INTEGERS) from None
                if integers and "dtype" in str(error):
                    raise UserError(WANTS_NUMBERS) from None
                if (said := wrong_shape(self.model, x)) is not None:
                    raise UserError(said) from None
                raise UserError(
                    f"The model cannot take inputs of shape {shape}: {in_words(error)}."
                ) from None
            if self.engine.buffer and _form(self.engine.buffer[0].x)[1] != integers:
                raise UserError(
                    "Earlier tasks held other integers, or real numbers where these are integers: give all tasks one type."
                )
            if held != shape:
                raise UserError(
                    f"The inputs have the shape {shape}; earlier tasks had {held}: give all tasks one shape."
                )
            if logits.dim() != 2:
                raise UserError("The model must return one row of logits per example.")
            self._form, self._classes = _form(x), int(logits.shape[1])
        width = self._classes or self.description.get("classes")
        if width is None:
            raise UserError(
                "How many classes the model has is not known before the first task; set model.description."
            )
        return int(width)

    def _outside(self, heads: Sequence[tuple[int, ...]]) -> Tensor | None:
        if self.scenario != "task-incremental":
            return None
        return outside_heads(heads, self._width(), self.scenario, next(self.model.parameters()).device)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If anything goes wrong inside, the learner is as before."""
        engine, modes = self.engine, [m.training for m in self.model.modules()]
        theta = parameters(self.model)
        state = {name: getattr(engine, name) for name in ("outside", "trace")}
        state |= {name: list(getattr(engine, name)) for name in ("sizes", "buffer", "prior")}
        state |= {"sets": [replace(one) for one in engine.sets], "sums": dict(engine.sums)}
        own = {name: getattr(self, name) for name in OWN}
        hidden, numbers = unsaved(self.model), own_numbers(self.model)
        try:
            yield
            for name, number in own_numbers(self.model).items():
                if numbers.get(name, number) != number:
                    raise UserError(
                        f"The model's attribute {name!r} changes as the model runs, and its answers may change with it; make it "
                        "a persistent buffer, or leave it out."
                    )
            for name, value in unsaved(self.model).items():
                if not torch.equal(value, hidden[name]):
                    raise UserError(
                        f"The model's buffer {name!r} changes in training but is not in its state_dict; "
                        "register it as persistent."
                    )
        except BaseException as error:
            load_parameters(self.model, theta)
            for name, value in hidden.items():
                self.model.get_buffer(name).copy_(value)
            for module, training in zip(self.model.modules(), modes, strict=True):
                module.training = training
            for owner, before in ((engine, state), (self, own)):
                for name, value in before.items():
                    setattr(owner, name, value)
            if isinstance(error, Refusal):
                raise UserError(str(error)) from None
            if isinstance(error, IndexError):  # of torch.nn.Embedding
                raise UserError(f"The model looks up an input that it does not have: {error}.") from error
            raise


def _form(x: Any) -> tuple[tuple[int, ...], str]:
    """The shape of one example, and the type of integers; none of real numbers."""
    kind = str(x.dtype)
    return tuple(x.shape[1:]), kind if "int" in kind or "bool" in kind else ""


def _plain(classes: Any) -> list[int] | None:
    """Classes as Python's own integers."""
    try:
        return None if classes is None else [index(c) for c in classes]
    except TypeError:
        raise UserError(f"classes must be class numbers, such as [4, 5], not {classes!r:.60}.") from None


def _print(part: Examples) -> str:
    return fingerprint(len(part), blocks_of(part.x, part.y))
