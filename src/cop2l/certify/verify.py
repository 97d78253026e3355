"""Checking a certificate without trusting it.

Four levels: its form and hashes; the arithmetic of every bound, from the integers; the integers, from the data; the
parameters and the sets, by making them again. A number in the file that can be recomputed is recomputed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.certificate import (
    ASSUMPTIONS,
    Certificate,
    content_digest,
    describe,
    file_digest,
    parse,
    read,
)
from cop2l.certify.compress import compress_task, digest, load_parameters, parameters, reconstruct
from cop2l.certify.counting import counts, misclassified_rows
from cop2l.certify.environment import BITS_DEPEND_ON, environment
from cop2l.certify.examples import Examples, sample
from cop2l.certify.history import History, Memory, certified_mask
from cop2l.certify.record import bounds_of, sharing
from cop2l.certify.scoring import head_mask, prove_exact
from cop2l.errors import UserError
from cop2l.models import rebuild
from cop2l.streams.task import SCENARIOS

Status = Literal["holds", "fails", "cannot tell"]
LEVELS = {
    1: "form and hashes",
    2: "arithmetic of the bounds",
    3: "evaluation on the data",
    4: "reconstruction of the model",
}


@dataclass
class Level:
    """What one level found, in sentences."""

    number: int
    status: Status = "holds"
    sentences: list[str] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def fail(self, sentence: str) -> None:
        self.status = "fails"
        self.sentences.append(sentence)

    def doubt(self, sentence: str) -> None:
        if self.status == "holds":
            self.status = "cannot tell"
        self.sentences.append(sentence)


@dataclass
class Verdict:
    """The outcome: `exit_code` 0 valid, 1 invalid, 2 cannot tell."""

    levels: list[Level]
    not_valid: tuple[str, ...] = ()
    certificate: Certificate | None = None

    @property
    def exit_code(self) -> int:
        if any(level.status == "fails" for level in self.levels) or self.not_valid:
            return 1
        return 2 if any(level.status == "cannot tell" for level in self.levels) else 0

    def __str__(self) -> str:
        lines = []
        for level in self.levels:
            lines.append(f"Level {level.number}, {LEVELS[level.number]}: {level.status}.")
            lines += [f"  - {sentence}" for sentence in level.sentences]
        lines += [f"The certificate declares itself not valid: {reason}" for reason in self.not_valid]
        conclusion = {
            0: "VALID: everything that the certificate states was checked and holds.",
            1: "INVALID: do not rely on this certificate.",
            2: "CANNOT TELL: nothing was found wrong, but not everything could be checked.",
        }
        return "\n".join([*lines, conclusion[self.exit_code]])


def verify(
    path: str | Path,
    data: Mapping[int, tuple[Any, Any]] | None = None,
    *,
    model: nn.Module | None = None,
    level: int = 4,
) -> Verdict:
    """Check the certificate in a folder, up to a level.

    `data` maps task numbers to (x, y), the samples the tasks were learned from. `model` is needed only for a model of
    your own: the same architecture, any weights. The certificate is never asked to name code to run.
    """
    first = Level(1)
    try:
        content, tensors = read(Path(path))
        certificate = parse(content, tensors)
        _check_form(first, Path(path), content, certificate)
    except UserError as error:
        first.fail(str(error))
        return Verdict([first])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        first.fail(f"The certificate does not have the documented form: {type(error).__name__} {error}.")
        return Verdict([first])
    verdict = Verdict([first], certificate.not_valid, certificate)
    if first.status != "fails" and level >= 2:
        verdict.levels.append(_check_arithmetic(certificate))
    if verdict.exit_code != 1 and level >= 3:
        verdict.levels += _check_model(certificate, dict(data or {}), model, level)
    return verdict


def _check_form(level: Level, folder: Path, content: dict[str, Any], certificate: Certificate) -> None:
    if content.get("digest") != content_digest(content):
        level.fail("The text of the certificate was changed after it was issued: its digest does not match.")
    expected = describe(certificate)
    for key in expected:
        if key != "made_by" and content.get(key) != expected[key]:
            level.fail(f"The field {key!r} contradicts the rest of the certificate.")
    unknown = set(content) - set(expected) - {"files", "digest"}
    if unknown:
        level.fail(
            f"The certificate has fields that its version does not have: {', '.join(sorted(unknown))}."
        )
    if content["assumptions"] != list(ASSUMPTIONS):
        level.fail("The assumptions are not those of this version of the certificate.")
    present = {file.name for file in folder.glob("*.safetensors")}
    if not isinstance(content.get("files"), dict) or set(content["files"]) != present:
        level.fail("The list of files does not match the files that are there.")
    else:
        for name, expected_digest in content["files"].items():
            if file_digest(folder / name) != expected_digest:
                level.fail(
                    f"The file {name} was changed after the certificate was issued: its hash does not match."
                )
    if certificate.scenario not in SCENARIOS:
        level.fail(f"There is no scenario {certificate.scenario!r}.")
    if not certificate.records:
        level.fail("The certificate covers no task.")
    for number, history in enumerate(certificate.histories, start=1):
        _check_sets(level, number, history, certificate)
    if level.status == "holds":
        level.say("The certificate is complete, has the documented form, and every hash matches.")


def _check_sets(level: Level, number: int, history: History, certificate: Certificate) -> None:
    name = f"task {number}"
    if history.task != number:
        level.fail(f"The records are not in the order of the tasks at {name}.")
        return
    for label in ("rows", "iterations"):
        if type(getattr(history, label)) is not int or getattr(history, label) < 0:
            level.fail(f"{label} of {name} is not a count.")
            return
    certified = certified_mask(history, certificate.options)
    for label in ("own", "first", "second", "picked"):
        rows = getattr(history, label)
        if rows.dtype != np.int64 or rows.ndim != 1 or (np.diff(rows) <= 0).any():
            level.fail(f"The set {label!r} of {name} is not a sorted set of row numbers.")
            return
        if len(rows) and (rows[0] < 0 or rows[-1] >= history.rows or not certified[rows].all()):
            level.fail(f"The set {label!r} of {name} has rows outside the certified part of the sample.")
            return
    if len(np.intersect1d(history.first, history.second)):
        level.fail(f"The compression sets of {name} are not disjoint.")
    whole = np.union1d(history.first, history.second)
    if len(np.setdiff1d(history.own, history.first)) or len(np.setdiff1d(whole, history.picked)):
        level.fail(f"The sets of {name} are not nested as they must be.")
    if len(history.left) != len(history.second):
        level.fail(
            f"{name.capitalize()} must have one message for each example of the second compression set."
        )
    elif len(history.left) and not (
        number < history.left.min() and history.left.max() <= len(certificate.records)
    ):
        level.fail(f"A message of {name} names a task after which the example cannot have left.")
    if len(history.second) and certificate.options.buffer != "uniform":
        level.fail(f"{name.capitalize()} has a second compression set, which this buffer policy never makes.")
    c = certificate.records[number - 1].counts
    if (c.compression, c.evicted, c.picked, c.iterations, c.prior, c.n, c.evicted_last) != (
        len(history.first),
        len(history.second),
        len(history.picked),
        history.iterations,
        int((~certified).sum()),
        int(certified.sum()),
        int((history.left == len(certificate.records)).sum()),
    ):
        level.fail(f"The counts of {name} do not match its sets.")


def _check_arithmetic(certificate: Certificate) -> Level:
    level = Level(2)
    messages = [history.iterations for history in certificate.histories]
    checked = 0
    for record in certificate.records:
        try:
            expected = bounds_of(record.counts, certificate.options, messages)
        except (UserError, TypeError) as error:
            level.fail(f"The counts of task {record.counts.task} are impossible: {error}")
            continue
        if expected != record.bounds:
            level.fail(f"The bounds stated for task {record.counts.task} do not follow from its counts.")
        checked += len(expected)
        if certificate.bound(record.counts.task) is None:
            level.doubt(
                f"Task {record.counts.task} has no bound: its data was not at hand when the certificate was issued."
            )
    if level.status != "fails":
        shared = (
            "at the number of tasks fixed in advance"
            if sharing(certificate.options, len(messages)) == "fixed"
            else ("at all times together")
        )
        level.say(
            f"{checked} bounds were recomputed from the counts; each is what is stated. They hold {shared}."
        )
    return level


def _check_model(
    certificate: Certificate, data: dict[int, tuple[Any, Any]], model: nn.Module | None, upto: int
) -> list[Level]:
    third, fourth = Level(3), Level(4)
    levels = [third, fourth][: upto - 2]
    model = model if model is not None else _rebuilt(certificate)
    if model is None:
        for level in levels:
            level.doubt("The model is not one of cop2l's own; give its architecture to check further.")
        return levels
    try:
        load_parameters(model, certificate.theta)
    except RuntimeError:
        for level in levels:
            level.fail("The parameters do not fit the model that the certificate describes.")
        return levels
    here, there = environment(model), certificate.environment
    other = [key for key in BITS_DEPEND_ON if here.get(key) != there.get(key)]
    with _threads(there.get("threads")):
        _evaluate(third, certificate, data, model, other)
        if third.status != "fails" and upto >= 4:
            _remake(fourth, certificate, data, model, other)
        elif third.status == "fails":
            levels = [third]
    return levels


def _evaluate(
    level: Level,
    certificate: Certificate,
    data: dict[int, tuple[Any, Any]],
    model: nn.Module,
    other: list[str],
) -> None:
    outside = _outside(certificate, model)
    last = len(certificate.records)
    seen: dict[bytes, int] = {}
    for history, record in zip(certificate.histories, certificate.records, strict=True):
        if history.task not in data:
            level.doubt(
                f"The data of task {history.task} was not given, so its errors could not be counted again."
            )
            continue
        x, y = data[history.task]
        try:
            _check_labels(y, certificate, history)
            wrong, print_found = misclassified_rows(model, (x, y), history, certificate.options, outside)
        except UserError as error:
            level.fail(str(error))
            continue
        if print_found != history.fingerprint:
            level.fail(
                f"The data of task {history.task} is not the data of the certificate: its fingerprint differs."
            )
            continue
        expected = counts(history, certificate.options, last, wrong, None)
        stated = record.counts
        if stated.errors is None:  # the data was gone: only the buffer was counted
            same = expected.compressed == stated.compressed and expected.selected == stated.selected
        else:
            same = expected == stated
        if same:
            level.say(
                f"Task {history.task}: the data is that of the certificate, and the errors were counted again: they agree."
            )
        elif other:
            level.doubt(
                f"Task {history.task}: the counts differ, but this machine differs from the issuer's in: {', '.join(other)}."
            )
        else:
            level.fail(f"Task {history.task}: the errors on the data are not those stated.")
        shared = _shared_rows(x, history.task, seen)
        if shared:
            level.fail(
                f"Task {history.task} has {shared} inputs that an earlier task has too: the tasks share examples."
            )


def _check_labels(y: Any, certificate: Certificate, history: History) -> None:
    labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if (
        not np.issubdtype(labels.dtype, np.integer)
        or labels.min(initial=0) < 0
        or labels.max(initial=0) >= certificate.classes
    ):
        raise UserError(f"The labels of task {history.task} are not classes of the model.")


def _shared_rows(x: Any, task: int, seen: dict[bytes, int]) -> int:
    """How many inputs of this task are, bit for bit, inputs of an earlier one."""
    shared = 0
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096]
        rows = np.ascontiguousarray(block.cpu().numpy() if isinstance(block, Tensor) else block)
        for row in rows:
            key = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            shared += seen.setdefault(key, task) != task
    return shared


def _remake(
    level: Level,
    certificate: Certificate,
    data: dict[int, tuple[Any, Any]],
    model: nn.Module,
    other: list[str],
) -> None:
    """Rebuild theta_T from the compression sets; then, with all data, learn again to confirm the sets themselves."""
    missing = [h.task for h in certificate.histories if h.task not in data]
    if missing and not certificate.examples:
        level.doubt(f"The data of task {missing[0]} was not given, so the model could not be rebuilt.")
        return
    outside, device = _outside(certificate, model), next(model.parameters()).device
    examples: list[tuple[Any, Tensor, np.ndarray]] = []
    priors: list[Examples | None] = []
    try:
        for history in certificate.histories:
            wanted = np.union1d(history.first, history.second)
            x, y, rows = (
                _portable_part(certificate, history) if missing else _given_part(data[history.task], history)
            )
            whole = sample(x.to(device), y.to(device), history.task, certificate.options.seed, rows)
            part = whole.take(np.flatnonzero(np.isin(rows, wanted)))
            examples.append((part.x, part.y, part.row))
            own = np.flatnonzero(~certified_mask(history, certificate.options))
            priors.append(
                whole.take(np.flatnonzero(np.isin(rows, own))) if certificate.options.prior else None
            )
            if len(part) != len(wanted) or (priors[-1] is not None and len(priors[-1]) != len(own)):
                level.fail(
                    f"The examples carried for task {history.task} are not those of its compression sets."
                )
                return
        load_parameters(model, certificate.theta_0)
        if examples and len(examples[0][1]):
            prove_exact(
                model,
                sample(examples[0][0], examples[0][1], 1, certificate.options.seed, examples[0][2]),
                outside,
            )
        reconstruct(model, certificate.histories, examples, certificate.options, outside, priors)
    except (UserError, RuntimeError, ValueError, IndexError, KeyError) as error:
        level.fail(f"The model could not be rebuilt from the compression sets: {error}")
        return
    if digest(parameters(model)) != digest(certificate.theta):
        if other:
            level.doubt(
                f"The rebuilt parameters differ, but so does this machine from the issuer's, in: {', '.join(other)}; "
                "repeat the check on a machine like the issuer's."
            )
        else:
            level.fail(
                "The parameters rebuilt from the compression sets and messages are not those of the certificate."
            )
        return
    used = sum(len(h.first) + len(h.second) for h in certificate.histories)
    level.say(f"The parameters were rebuilt, bit for bit, from {used} examples and the messages alone.")
    if missing:
        if certificate.options.buffer == "threshold":
            level.doubt("Without all data it could not be confirmed that no other example was ever picked.")
        return
    _relearn(level, certificate, data, model)


def _relearn(
    level: Level, certificate: Certificate, data: dict[int, tuple[Any, Any]], model: nn.Module
) -> None:
    """G counts every pick of the whole trajectory, so only learning again, with all data, can confirm it."""
    load_parameters(model, certificate.theta_0)
    options, device = certificate.options, next(model.parameters()).device
    memory, remade = Memory(options), list[History]()
    outside = _outside(certificate, model)
    for history in certificate.histories:
        x, y, _ = _given_part(data[history.task], history)
        remade.append(History(history.task, history.rows, history.head, history.fingerprint))
        compress_task(model, x.to(device), y.to(device), remade, memory, options, outside)
    for new, stated in zip(remade, certificate.histories, strict=True):
        for label in ("own", "first", "second", "left", "picked"):
            if not np.array_equal(getattr(new, label), getattr(stated, label)):
                level.fail(
                    f"Learning again from the data picks other examples of task {stated.task} than the set {label!r} states."
                )
                return
        if new.iterations != stated.iterations:
            level.fail(
                f"Learning again from the data keeps another number of iterations at task {stated.task}."
            )
            return
    if digest(parameters(model)) != digest(certificate.theta):
        level.fail("Learning again from the data gives other parameters.")
        return
    level.say(
        "Learning again from all the data picked the same examples and gave the same parameters, bit for bit."
    )


def _given_part(data: tuple[Any, Any], history: History) -> tuple[Tensor, Tensor, np.ndarray]:
    x, y = data
    x = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    y = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    return x, y.to(torch.int64), np.arange(history.rows, dtype=np.int64)


def _portable_part(certificate: Certificate, history: History) -> tuple[Tensor, Tensor, np.ndarray]:
    part = {name: certificate.examples[f"{history.task}/{name}"] for name in ("x", "y", "row")}
    return part["x"], part["y"].to(torch.int64), part["row"].numpy()


def _outside(certificate: Certificate, model: nn.Module) -> Tensor | None:
    if certificate.scenario != "task-incremental":
        return None
    heads = [history.head for history in certificate.histories]
    return head_mask(heads, certificate.classes, next(model.parameters()).device)


def _rebuilt(certificate: Certificate) -> nn.Module | None:
    described = {key: value for key, value in certificate.model.items() if key != "parameters"}
    if not described.get("name"):
        return None
    model = rebuild(described)
    dtype = getattr(torch, str(certificate.environment.get("dtype")), None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        model = model.to(dtype)
    if (
        "cuda" not in str(certificate.environment.get("device"))
        and certificate.environment.get("device") == "cpu"
    ):
        return model
    return model.to("cuda") if torch.cuda.is_available() else model


@contextmanager
def _threads(count: Any) -> Iterator[None]:
    """Training rounds differently with another number of threads, so the issuer's number is used."""
    before = torch.get_num_threads()
    try:
        if type(count) is int and 1 <= count <= 1024:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["LEVELS", "Level", "Verdict", "verify"]
