"""Hold-out certificates: the stored learner is loaded, its errors are counted again, and it is learned again."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cop2l.audit.cut import Samples, only
from cop2l.audit.model import Builder, model_for
from cop2l.audit.prior import put_scale
from cop2l.audit.unread import as_read
from cop2l.errors import UserError
from cop2l.experiments.environment import threads
from cop2l.files import read_tensors
from cop2l.kernel.exact import digest
from cop2l.kernel.form import HOLDOUT_FILES, Unreadable, canonical
from cop2l.kernel.options import Options, Refusal, require
from cop2l.kernel.samples import Copies
from cop2l.kernel.verdict import Verdict
from cop2l.kernel.verify import Allowed, Say, machine, verify, verify_holdout
from cop2l.methods import METHODS, method

PASSES = ("epochs", "steps", "selections", "inner", "iterations")
"""Words in the names of settings that make learning longer."""
PREDICTS = ("tasks", "classes", "heads", "outputs", "tasks_seen")
"""What a stored learner says of itself and predicts by, beside its tensors."""
BROKEN = (UserError, RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class HoldoutRun:
    """The hold-out certificates of a run, and what an auditor checks them with."""

    notes: Verdict
    certificates: Sequence[Mapping[str, Any]]
    samples: Samples
    given: str | Builder | None
    allowed: Allowed
    say: Say

    def verdict(self) -> Verdict:
        """The verdict on the last certificate; what is wrong with an earlier one is noted."""
        notes, last = self.notes, self.certificates[-1]
        names = ("delta", "siblings", "seed", "kind", "claim", "shares", "groups", "tasks")
        used = {name: getattr(last["options"], name) for name in names}
        if last["options"] != Options(**used):
            notes.fault(
                "A hold-out certificate states options that only CoP2L has; they must be the defaults."
            )
        if len(self.certificates) > 1:
            notes.faults += verify([one["folder"] for one in self.certificates]).faults
        if self.samples.stream is not None:
            self.check_copies("", [x for x, *_ in self.parts()])
        again, found, learner = self.learned_again(), Verdict(), None
        for one in self.certificates:
            time = len(one["records"])
            withheld, learner = only(self.samples.withheld, time), None
            if withheld:
                stored = partial(_stored, one, self.given)
                learner = _usable(notes, "The stored learner cannot be used", stored)
            predict = _predictor(learner, one)
            with threads(one["threads"]):
                found = verify_holdout(
                    one["folder"], withheld if learner else {}, predict, again.get(time), self.allowed
                )
            if one is not last:
                notes.faults += [f"After task {time}: {fault}" for fault in found.faults]
        if learner is not None and self.samples.stream is not None:
            without, every = as_read([x for x, *_ in self.parts()], learner.model)
            self.check_copies(f"Without {without}, which the model does not read, ", every)
        return found

    def parts(self) -> list[tuple[Any, ...]]:
        """What was learned from, task by task, and then what was withheld."""
        return [*self.samples.learned.values(), *self.samples.withheld.values()]

    def check_copies(self, without: str, every: Sequence[Any]) -> None:
        """A withheld example that was learned from as a copy shows nothing."""
        copies, learned = Copies(), len(self.samples.learned)
        for x in every[:learned]:
            copies.add(x, x)
        for task, x in zip(self.samples.withheld, every[learned:], strict=bool(every)):
            count = max(copies.add(x, x))
            if count > self.allowed.repeated * len(x) + self.allowed.shared:
                self.notes.doubt(
                    f"{without}{count} of the {len(x)} withheld examples of task {task} are copies of other examples."
                )

    def learned_again(self) -> dict[int, dict[int, Any]]:
        """For each certificate whose learner is made again, bit for bit, without what was withheld: what was predicted.

        These are the classes predicted for the withheld examples of each task just after it was learned.
        """
        last, samples = self.certificates[-1], self.samples
        found, before = dict[int, dict[int, Any]](), dict[int, Any]()
        if samples.stream is None or len(samples.learned) < len(last["records"]):
            self.notes.doubt(
                "Learning again needs the data as a stream, so that the withheld part can be told from the rest."
            )
            return found
        times = {len(one["records"]): one for one in self.certificates}
        with threads(last["threads"]):  # from the beginning: CoP2L keeps their number
            new = partial(_new, last, self.given, samples)
            learner = _usable(self.notes, "The method cannot be made again", new)
            if learner is None:
                return found
            self.check_work(learner)
            for t, head in enumerate(samples.stream.heads[: len(last["records"])], 1):
                self.say(f"learning task {t} of {len(last['records'])} again")
                x, y, *groups = samples.learned[t]
                told = {"groups": groups[0]} if getattr(learner.options, "groups", ()) else {}
                learner.learn(x, y, classes=head, progress=None, **told)
                if t in samples.withheld:
                    before[t] = _predictor(learner, last)(samples.withheld[t][0], t)
                if t in times:
                    if _bits(times[t]["folder"] / HOLDOUT_FILES[0]) == _saved_bits(learner):
                        found[t] = dict(before)
                    else:
                        _differs(self.notes, t, times[t]["machine"], machine(learner.model))
        return found

    def check_work(self, learner: Any) -> None:
        """Say how long learning again takes, and refuse what is longer than allowed."""
        settings = self.certificates[-1]["settings"] or {}
        size = sum(p.numel() for p in learner.model.parameters())
        passes = sum(v for k, v in settings.items() if type(v) is int and any(word in k for word in PASSES))
        rows = sum(len(y) for _, y, *_ in self.samples.learned.values())
        operations = 12.0 * size * rows * max(1, passes)
        self.say(
            f"verification takes about {operations:.1e} operations: learning again, with memory beside the task"
        )
        if operations > self.allowed.operations:
            raise Unreadable(
                f"Verification takes {operations:.1e} operations, {self.allowed.operations:.1e} are allowed; raise the limit."
            )


def _predictor(learner: Any, certificate: Mapping[str, Any]) -> Any:
    told = certificate["scenario"] == "task-incremental"
    return lambda x, task: learner.predict(x, task=task if told else None)


def _new(certificate: Mapping[str, Any], given: str | Builder | None, samples: Samples | None = None) -> Any:
    """The method of a certificate with its model, before the first task; the samples may give the scale of its inputs."""
    name, settings = certificate["method"], dict(certificate["settings"] or {})
    require(name in METHODS, f"There is no method {name!r:.40}.")
    file = certificate["folder"] / HOLDOUT_FILES[0]
    model = model_for(certificate, given, file, "theta/" if name == "cop2l" else "model.")
    if model is None:
        raise UserError("its model is the issuer's own; give the function that builds it with --model")
    put_scale(certificate, samples or Samples(), model)
    more = {"seed": certificate["options"].seed} if "seed" not in settings else {}
    extra = {
        "data": certificate["data"],
        "not_valid": certificate["not_valid"],
        "commitment": certificate["commitment"],
        "preset": "cop2l",  # every option is given
    }
    return method(name)(
        model, scenario=certificate["scenario"], **settings, **more, **(extra if name == "cop2l" else {})
    )


def _stored(certificate: Mapping[str, Any], given: str | Builder | None) -> Any:
    """The learner of a certificate as it was stored."""
    from cop2l.certify.saved import FILE
    from cop2l.methods.base import SAVED_METHOD

    learner = _new(certificate, given)
    with tempfile.TemporaryDirectory() as scratch:
        name = FILE if certificate["method"] == "cop2l" else SAVED_METHOD
        shutil.copyfile(certificate["folder"] / HOLDOUT_FILES[0], Path(scratch) / name)
        learner.restore(scratch)
    require(
        learner.tasks_seen == len(certificate["records"]),
        "The stored learner has learned another number of tasks.",
    )
    return learner


def _differs(notes: Verdict, task: int, there: str, here: str) -> None:
    sentence = f"Learning again without the withheld examples gives another learner after task {task} than the stored one."
    if there == here:
        notes.fault(sentence)
    else:
        notes.doubt(f"{sentence} But it was made on another machine: {there}; this one is: {here}.")


def _bits(file: Path) -> tuple[str, str]:
    tensors, note = read_tensors(file)
    return digest(tensors), canonical({name: note.get(name) for name in PREDICTS})


def _saved_bits(learner: Any) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as scratch:
        learner.save(scratch)
        return _bits(next(Path(scratch).glob("*.safetensors")))


def _usable(notes: Verdict, what: str, make: Any) -> Any:
    """What `make` makes, or a fault; where memory is short nothing can be said."""
    try:
        return make()
    except Unreadable:
        raise
    except Refusal as refusal:
        notes.fault(f"{what}: {refusal}")
    except BROKEN as error:
        if "allocate" in str(error) or "out of memory" in str(error):
            raise
        sentence = f"{what}: {error}" if isinstance(error, UserError) else f"{what} ({type(error).__name__})"
        (notes.doubt if "issuer's own" in sentence else notes.fault)(f"{sentence.rstrip('.')}.")
    return None
