"""Level 1: a certificate's form, its hashes, and what its parts say about each other."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cop2l.certify.certificate import (
    ASSUMPTIONS,
    SET_NAMES,
    Certificate,
    content_digest,
    describe,
    file_digest,
)
from cop2l.certify.history import History, certified_mask
from cop2l.certify.verdict import Level
from cop2l.streams.task import SCENARIOS

ROWS_LIMIT = 10**10


def check_form(
    level: Level,
    folder: Path,
    content: dict[str, Any],
    tensors: Mapping[str, Mapping[str, Tensor]],
    certificate: Certificate,
) -> None:
    """Everything that the certificate alone can show; no arithmetic of bounds."""
    if content.get("digest") != content_digest(content):
        level.fail("The text of the certificate was changed after it was issued: its digest does not match.")
    _check_files(level, folder, content)
    expected = describe(certificate)
    for key in expected:
        if key == "made_by":
            if not isinstance(content.get(key), str):
                level.fail("The field 'made_by' is not a text.")
        elif not same(content.get(key), expected[key]):
            level.fail(f"The field {key!r} contradicts the rest of the certificate.")
    unknown = set(content) - set(expected) - {"files", "digest"}
    if unknown:
        level.fail(
            f"The certificate has fields that its version does not have: {', '.join(sorted(unknown))}."
        )
    if content["assumptions"] != list(ASSUMPTIONS):
        level.fail("The assumptions are not those of this version of the certificate.")
    if certificate.scenario not in SCENARIOS:
        level.fail(f"There is no scenario {certificate.scenario!r}.")
    if not _count(certificate.classes, least=1):
        level.fail("The number of classes is not a count.")
    if not all(isinstance(reason, str) for reason in certificate.not_valid):
        level.fail("The reasons why the certificate is not valid are not texts.")
    model = certificate.model
    if not (isinstance(model, dict) and "name" in model and _count(model.get("parameters"), least=1)):
        level.fail("The model is not described.")
    if not certificate.records:
        level.fail("The certificate covers no task.")
    _check_environment(level, certificate.environment)
    _check_tensors(level, tensors, certificate)
    if level.status == "holds":
        for number, history in enumerate(certificate.histories, start=1):
            _check_task(level, number, history, certificate)
    if level.status == "holds":
        level.say("The certificate is complete, has the documented form, and every hash matches.")


def same(one: Any, other: Any) -> bool:
    """Equal as JSON text: 1, 1.0 and true are not the same."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _check_files(level: Level, folder: Path, content: dict[str, Any]) -> None:
    present = {file.name for file in folder.glob("*.safetensors")}
    if not isinstance(content.get("files"), dict) or set(content["files"]) != present:
        level.fail("The list of files does not match the files that are there.")
        return
    for name, expected in content["files"].items():
        if file_digest(folder / name) != expected:
            level.fail(
                f"The file {name} was changed after the certificate was issued: its hash does not match."
            )


def _check_environment(level: Level, environment: Any) -> None:
    described = isinstance(environment, dict) and isinstance(environment.get("earlier"), list)
    machines = [environment, *environment["earlier"]] if described else []
    if not machines or not all(isinstance(m, dict) and _count(m.get("threads"), least=1) for m in machines):
        level.fail("The environment does not say where, and with how many threads, the parameters were made.")


def _check_tensors(
    level: Level, tensors: Mapping[str, Mapping[str, Tensor]], certificate: Certificate
) -> None:
    tasks = range(1, len(certificate.records) + 1)
    wanted = {"sets": SET_NAMES, **({"examples": ("x", "y", "row")} if "examples" in tensors else {})}
    for name, parts in wanted.items():
        if set(tensors[name]) != {f"{task}/{part}" for task in tasks for part in parts}:
            level.fail(f"The file {name}.safetensors does not hold what it must, or holds more.")
    shapes = [
        {name: (value.shape, value.dtype) for name, value in theta.items()}
        for theta in (certificate.theta_0, certificate.theta)
    ]
    if shapes[0] != shapes[1]:
        level.fail("The initial and the final parameters are not of the same model.")


def _check_task(level: Level, number: int, history: History, certificate: Certificate) -> None:
    """The sets of a task, against each other and against its counts."""
    name, stated = f"task {number}", certificate.records[number - 1].counts
    if not same(history.task, number):
        level.fail(f"The records are not in the order of the tasks at {name}.")
        return
    for label, value in {**asdict(stated), "rows": history.rows}.items():
        optional = label in ("errors", "missed", "selected", "compressed")
        if not (_count(value) or (optional and value is None)):
            level.fail(f"{label} of {name} is not a count.")
            return
    if history.rows > ROWS_LIMIT:
        level.fail(f"Task {number} is said to have {history.rows} examples, which no machine could check.")
        return
    if (stated.errors is None) != (stated.missed is None):
        level.fail(f"The errors of {name} are counted in one way and not in the other.")
    head = history.head
    if (
        not all(_count(c) and c < certificate.classes for c in head)
        or not head
        or sorted(set(head)) != list(head)
    ):
        level.fail(f"The head of {name} is not a sorted list of classes.")
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
    _check_messages(level, number, history, certificate)
    counted = (
        len(history.first),
        len(history.second),
        len(history.picked),
        history.iterations,
        int((~certified).sum()),
        int(certified.sum()),
        int((history.left == len(certificate.records)).sum()),
    )
    c = stated
    if (c.compression, c.evicted, c.picked, c.iterations, c.prior, c.n, c.evicted_last) != counted:
        level.fail(f"The counts of {name} do not match its sets.")


def _check_messages(level: Level, number: int, history: History, certificate: Certificate) -> None:
    left, last = history.left, len(certificate.records)
    if left.dtype != np.int64 or left.shape != history.second.shape:
        level.fail(f"Task {number} must have one message for each example of the second compression set.")
    elif len(left) and not (number < left.min() and left.max() <= last):
        level.fail(f"A message of task {number} names a task after which the example cannot have left.")
    if len(history.second) and certificate.options.buffer != "uniform":
        level.fail(f"Task {number} has a second compression set, which this buffer policy never makes.")
    past = certificate.histories[: number - 1]
    if history.iterations > len(history.own) + sum(len(h.first) + len(h.second) for h in past):
        level.fail(f"Task {number} cannot have kept {history.iterations} iterations with so few picks.")


def _count(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least
