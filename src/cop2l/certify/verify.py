"""Checking a certificate without trusting it.

Four levels: its form and hashes; the arithmetic of every bound, from the integers; the integers, from the data; the
parameters and the sets, by making them again. A number in the file that can be recomputed is recomputed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.bounds import Bound
from cop2l.certify.certificate import SET_NAMES, Certificate, parse, read
from cop2l.certify.compress import compress_task, digest, load_parameters, parameters, rebuilt, reconstruct
from cop2l.certify.counting import counts, misclassified_rows
from cop2l.certify.environment import BITS_DEPEND_ON, environment
from cop2l.certify.examples import Examples, sample
from cop2l.certify.form import check_form, same
from cop2l.certify.history import History, Memory, certified_mask
from cop2l.certify.record import bounds_of, sharing
from cop2l.certify.repeats import Repeats
from cop2l.certify.scoring import ExactnessError, ScoringMode, head_mask, logits_in_blocks, prove_exact
from cop2l.certify.training import exact_arithmetic, pinned_threads
from cop2l.certify.verdict import LEVELS, Level, Verdict
from cop2l.errors import UserError

Samples = Mapping[int, tuple[Any, Any]]
WRONG_FORM = (
    UserError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RuntimeError,
)
TOLERANCE = 1e-9
"""Another processor's logarithm may differ in the last bit; a bound is stated to nine digits."""


def verify(
    path: str | Path,
    data: Samples | None = None,
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
        check_form(first, Path(path), content, tensors, certificate)
    except UserError as error:
        first.fail(str(error))
        return Verdict([first], upto=level)
    except WRONG_FORM as error:
        first.fail(f"The certificate does not have the documented form: {type(error).__name__} {error}.")
        return Verdict([first], upto=level)
    verdict = Verdict([first], certificate.not_valid, certificate, level)
    if first.status != "fails" and level >= 2:
        verdict.levels.append(_check_arithmetic(certificate))
    if not any(found.status == "fails" for found in verdict.levels) and level >= 3:
        verdict.levels += _check_model(certificate, data or {}, model, level)
    return verdict


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
        if not _same_bounds(expected, record.bounds):
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


def _same_bounds(expected: dict[str, Bound], stated: dict[str, Bound]) -> bool:
    if list(expected) != list(stated):
        return False
    for kind, bound in expected.items():
        found = stated[kind]
        numbers = [{"value": b.value, **b.terms} for b in (bound, found)]
        if bound.reason != found.reason or list(numbers[0]) != list(numbers[1]):
            return False
        for one, other in zip(*(n.values() for n in numbers), strict=True):
            if type(one) is not type(other) or not abs(one - other) <= TOLERANCE * max(1.0, abs(one)):
                return False
    return True


def _check_model(certificate: Certificate, data: Samples, given: nn.Module | None, upto: int) -> list[Level]:
    third, fourth = Level(3), Level(4)
    levels = [third, fourth][: upto - 2]
    described = certificate.model
    if given is None and not described.get("name"):
        for level in levels:
            level.doubt("The model is not one of cop2l's own; give its architecture to check further.")
        return levels
    try:
        model = given or rebuilt(described, certificate.theta, str(certificate.environment.get("device")))
        initial = None if given else digest(parameters(model))
        load_parameters(model, certificate.theta)
        outside = _outside(certificate, model)
    except WRONG_FORM:
        third.fail("The parameters do not fit the model that the certificate describes.")
        return [third]
    known: dict[str, Any] = described if given else vars(model)["description"]
    stated = {**known, "parameters": sum(p.numel() for p in model.parameters())}
    if not same(described, stated):
        third.fail("The model is not the one that is described.")
        return [third]
    threads = certificate.environment["threads"]
    with pinned_threads(min(threads, 1024)), exact_arithmetic():
        here = environment(model)
        machines = [certificate.environment, *certificate.environment["earlier"]]
        other = [key for key in BITS_DEPEND_ON if any(here[key] != there.get(key) for there in machines)]
        _evaluate(third, certificate, data, model, outside, other)
        if third.status == "fails" or upto < 4:
            return [third]
        _check_start(fourth, certificate, initial, other)
        _remake(fourth, certificate, data, model, outside, other)
    return levels


def _evaluate(
    level: Level,
    certificate: Certificate,
    data: Samples,
    model: nn.Module,
    outside: Tensor | None,
    other: list[str],
) -> None:
    last, repeats = len(certificate.records), Repeats()
    for history, record in zip(certificate.histories, certificate.records, strict=True):
        task = history.task
        if task not in data:
            level.doubt(f"The data of task {task} was not given, so its errors could not be counted again.")
            continue
        x, y = data[task]
        try:
            _check_labels(y, history)
            _check_width(model, x, certificate)
            wrong, print_found = misclassified_rows(model, (x, y), history, certificate.options, outside)
        except WRONG_FORM as error:
            level.fail(f"Task {task} could not be evaluated: {str(error).splitlines()[0]}")
            continue
        if print_found != history.fingerprint:
            level.fail(
                f"The data of task {task} is not the data of the certificate: its fingerprint differs."
            )
            continue
        expected, stated = counts(history, certificate.options, last, wrong, None), record.counts
        if stated.errors is None:  # the data was gone: only the buffer was counted
            agree = (expected.compressed, expected.selected) == (stated.compressed, stated.selected)
        else:
            agree = expected == stated
        if agree:
            level.say(
                f"Task {task}: the data is that of the certificate, and the errors were counted again: they agree."
            )
        elif other:
            level.doubt(
                f"Task {task}: the counts differ, but this machine differs from the issuer's in: {', '.join(other)}."
            )
        else:
            level.fail(f"Task {task}: the errors on the data are not those stated.")
        shared, proved = repeats.add(x)
        if proved:
            level.fail(
                f"Task {task} has {shared} inputs that an earlier task has too: the tasks share examples."
            )
        elif proved is None:
            level.doubt(
                f"Task {task} has {shared} inputs that an earlier task has too: perhaps the tasks share examples."
            )


def _check_labels(y: Any, history: History) -> None:
    labels = y.cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if not np.issubdtype(labels.dtype, np.integer) or not np.isin(labels, history.head).all():
        raise UserError(f"The labels of task {history.task} are not classes of its head.")


def _check_width(model: nn.Module, x: Any, certificate: Certificate) -> None:
    with ScoringMode(model):
        for _, logits in logits_in_blocks(model, x[:1]):
            if logits.shape[1:] != (certificate.classes,):
                raise UserError("The model does not have as many outputs as the certificate has classes.")


def _check_start(level: Level, certificate: Certificate, initial: str | None, other: list[str]) -> None:
    """The initial parameters must not depend on the data; those that a seed gives do not."""
    if initial == digest(certificate.theta_0):
        level.say("The initial parameters are those that the model's seed gives.")
    elif initial is None or other:
        level.say("That the initial parameters do not depend on the data is the issuer's word.")
    else:
        level.doubt(
            "The initial parameters are not those of the model's seed; they must not depend on the data: ask where they are from."
        )


def _remake(
    level: Level,
    certificate: Certificate,
    data: Samples,
    model: nn.Module,
    outside: Tensor | None,
    other: list[str],
) -> None:
    """Rebuild theta_T from the compression sets; then, with all data, learn again to confirm the sets themselves."""
    missing = [h.task for h in certificate.histories if h.task not in data]
    if missing and not certificate.examples:
        level.doubt(f"The data of task {missing[0]} was not given, so the model could not be rebuilt.")
        return
    device = next(model.parameters()).device
    examples: list[tuple[Any, Tensor, np.ndarray]] = []
    priors: list[Examples | None] = []
    try:
        for history in certificate.histories:
            wanted = np.union1d(history.first, history.second)
            own = np.flatnonzero(~certified_mask(history, certificate.options))
            if certificate.examples:
                _check_carried(certificate, history, np.union1d(wanted, own), data.get(history.task))
            x, y, rows = (
                _portable_part(certificate, history) if missing else _given_part(data[history.task], history)
            )
            whole = sample(x.to(device), y.to(device), history.task, certificate.options.seed, rows)
            part = whole.take(np.flatnonzero(np.isin(rows, wanted)))
            examples.append((part.x, part.y, part.row))
            priors.append(
                whole.take(np.flatnonzero(np.isin(rows, own))) if certificate.options.prior else None
            )
        load_parameters(model, certificate.theta_0)
        if examples and len(examples[0][1]):
            prove_exact(
                model,
                sample(examples[0][0], examples[0][1], 1, certificate.options.seed, examples[0][2]),
                outside,
            )
        reconstruct(model, certificate.histories, examples, certificate.options, outside, priors)
    except ExactnessError as error:
        level.doubt(str(error))
        return
    except WRONG_FORM as error:
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
        if certificate.options.marked:
            level.doubt("Without all data it could not be confirmed that no other example was ever picked.")
        return
    try:
        changed = _relearn(certificate, data, model, outside)
    except WRONG_FORM as error:
        changed = f"is not possible ({error})"
    if changed is None:
        level.say(
            "Learning again from all the data picked the same examples and gave the same parameters, bit for bit."
        )
    elif other:
        level.doubt(
            f"Learning again from the data {changed}, but this machine differs from the issuer's in: {', '.join(other)}."
        )
    else:
        level.fail(f"Learning again from the data {changed}.")


def _relearn(certificate: Certificate, data: Samples, model: nn.Module, outside: Tensor | None) -> str | None:
    """G counts every pick of the whole trajectory, so only learning again, with all data, can confirm it."""
    load_parameters(model, certificate.theta_0)
    options, device = certificate.options, next(model.parameters()).device
    memory, remade = Memory(options), list[History]()
    for history in certificate.histories:
        x, y, _ = _given_part(data[history.task], history)
        remade.append(History(history.task, history.rows, history.head, history.fingerprint))
        S = sample(x.to(device), y.to(device), history.task, options.seed)
        compress_task(model, S, remade, memory, options, outside)
    for new, stated in zip(remade, certificate.histories, strict=True):
        for label in SET_NAMES:
            if not np.array_equal(getattr(new, label), getattr(stated, label)):
                return f"picks other examples of task {stated.task} than the set {label!r} states"
        if new.iterations != stated.iterations:
            return f"keeps another number of iterations at task {stated.task}"
    return None if digest(parameters(model)) == digest(certificate.theta) else "gives other parameters"


def _given_part(data: tuple[Any, Any], history: History) -> tuple[Tensor, Tensor, np.ndarray]:
    x, y = data
    x = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    y = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    return x, y.to(torch.int64), np.arange(history.rows, dtype=np.int64)


def _portable_part(certificate: Certificate, history: History) -> tuple[Tensor, Tensor, np.ndarray]:
    part = {name: certificate.examples[f"{history.task}/{name}"] for name in ("x", "y", "row")}
    return part["x"], part["y"].to(torch.int64), part["row"].numpy()


def _check_carried(
    certificate: Certificate, history: History, wanted: np.ndarray, data: tuple[Any, Any] | None
) -> None:
    """A portable certificate's examples: those of the sets and of the prior part, as they are in the data."""
    x, y, rows = _portable_part(certificate, history)
    if not np.array_equal(rows, wanted) or len(x) != len(rows) or y.shape != rows.shape:
        raise UserError(f"the examples carried for task {history.task} are not those of its sets.")
    if data is not None:
        given = sample(*_given_part(data, history)[:2], history.task, certificate.options.seed).take(rows)
        if given.x.dtype != x.dtype or not torch.equal(given.x, x) or not torch.equal(given.y, y):
            raise UserError(f"the examples carried for task {history.task} are not those of the data.")


def _outside(certificate: Certificate, model: nn.Module) -> Tensor | None:
    if certificate.scenario != "task-incremental":
        return None
    heads = [history.head for history in certificate.histories]
    return head_mask(heads, certificate.classes, next(model.parameters()).device)


__all__ = ["LEVELS", "Level", "Verdict", "verify"]
