"""Reads a certificate: regular files, matching hashes, and a declared type and range for every number and text."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cop2l.kernel.arithmetic import kind_of
from cop2l.kernel.options import Options, Rule, UserError, choice_of, integer, list_of, make_rule, optional, require, short_text

FORMAT, VERSION, TEXT_FILE = "cop2l-certificate", 5, "certificate.json"
MAX_BYTES, MAX_TENSOR_BYTES, MAX_NUMBER, MAX_CLASSES = 2**25, 2**33, 2**53, 2**15
HEXADECIMAL = set("0123456789abcdef")
SCENARIOS = ("class-incremental", "task-incremental", "domain-incremental")
FILES, HOLDOUT_FILES = ("sets.safetensors", "theta.safetensors", "theta_0.safetensors"), ("learner.safetensors",)
ASSUMPTIONS = (
    "Within each task the examples are independent draws from one distribution, the task's own.",
    "The samples of different tasks, and the marks, are independent: neither rows nor seed were chosen with the other in view.",
    "The order, sizes and distributions of the tasks, and whose data is gone by when, were not chosen by looking at data.",
    "Initial parameters, representation of inputs, options, seed, claim and classes do not depend on the certified examples.",
    "Published constants that prepare inputs (mean and deviation of MNIST's pixels, say) are statistics of the public sample.",
    "The bound is on the probability of error on new examples of the task's own distribution, not of any other.",
)
Content = dict[str, Any]


class Unreadable(UserError):  # noqa: N818
    """The check itself is impossible, so that nothing can be said of the certificate."""


# ---- types and ranges

# unprintable characters could steer a terminal
text_line = make_rule(lambda value: type(value) is str and len(value) <= 1000 and value.isprintable(), "a line of printable text")
sha256 = make_rule(lambda value: type(value) is str and len(value) == 64 and set(value) <= HEXADECIMAL, "a SHA-256")
probability = make_rule(lambda value: type(value) is float and 0 <= value <= 1, "a number from 0.0 to 1.0")
json_object = make_rule(lambda value: type(value) is dict, "an object")


def object_of(**fields: Rule) -> Rule:
    """An object with exactly these fields."""

    def check(value: Any, place: str) -> Content:
        difference = set(json_object(value, place)) ^ set(fields)
        require(not difference, f"{place} must have its documented fields: see {sorted(difference)[:5]!r:.99}.")
        return {key: rule(value[key], f"{place}.{key}") for key, rule in fields.items()}

    return check


def plain_value(value: Any, place: str, depth: int = 6) -> Any:
    """A text, a finite number, true, false, null, or a list or an object of such values."""
    if isinstance(value, dict) and depth:
        return {text_line(key, place): plain_value(entry, place, depth - 1) for key, entry in value.items()}
    if isinstance(value, list) and depth:
        return [plain_value(entry, place, depth - 1) for entry in value]
    finite = type(value) in (int, float) and abs(value) <= MAX_NUMBER  # neither NaN nor infinite
    return value if value is None or type(value) is bool or finite else text_line(value, place)


def plain_object(value: Any, place: str) -> Content:
    return dict(plain_value(json_object(value, place), place))


def options_of(value: Any, place: str) -> Options:
    """Options; an absent one has its default, and 1, 1.0 and true differ."""
    require(
        set(json_object(value, place)) <= set(Options().as_dict()),
        f"{place} must have no other options than the documented ones.",
    )
    options = Options(**value)
    stated = {key: entry for key, entry in options.as_dict().items() if key in value}
    require(canonical_json(stated) == canonical_json(value), f"{place} must be written with the types of its options.")
    return options


def class_or_name(value: Any, place: str) -> Any:
    return (integer() if type(value) is int else short_text)(value, place)


COUNT_FIELDS = dict.fromkeys(("n", "compression", "evicted", "picked", "iterations", "stopped"), integer())
COUNT_FIELDS |= dict.fromkeys(("errors", "errors_not_picked", "selected", "compressed"), optional(integer()))
PART = object_of(family=choice_of("classes", "groups", "forgetting"), subject=class_or_name, **COUNT_FIELDS)
RECORD_FIELDS = {
    "task": integer(1), "rows": integer(1), "head": list_of(integer(0, MAX_CLASSES), 1), "fingerprint": sha256,
    "parts": list_of(PART), **COUNT_FIELDS,
}  # fmt: skip
STATEMENT_NAME = {
    "family": choice_of("tasks", "average", "forgetting", "classes", "groups"), "task": optional(integer(1)),
    "subject": optional(class_or_name), "kind": choice_of("kl", "preference", "buffer", "holdout"),
}  # fmt: skip
STATEMENT = object_of(**STATEMENT_NAME, value=probability)
CERTIFICATE_FIELDS = {
    "format": choice_of(FORMAT), "version": choice_of(VERSION), "made_by": text_line, "method": text_line, "options": options_of,
    "settings": optional(plain_object), "scenario": choice_of(*SCENARIOS), "classes": integer(1, MAX_CLASSES),
    "model": plain_object, "data": optional(plain_object), "machine": text_line, "earlier": list_of(text_line, maximum=100),
    "threads": integer(1, 512), "not_valid": list_of(text_line, maximum=100), "assumptions": choice_of(list(ASSUMPTIONS)),
    "commitment": optional(sha256), "records": list_of(object_of(**RECORD_FIELDS), 1), "statements": list_of(STATEMENT, 1),
    "files": plain_object, "digest": sha256,
}  # fmt: skip


# ---- files


def canonical_json(value: Any) -> str:
    """The only text of a JSON value: hashes are taken of it, and it tells 1, 1.0 and true apart."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of a certificate or another object, without its digest."""
    return hashlib.sha256(canonical_json({k: v for k, v in content.items() if k != "digest"}).encode()).hexdigest()


@contextmanager
def open_regular(path: Path) -> Iterator[Any]:
    """Open a regular file without waiting for a writer (of a pipe); raise `Unreadable` if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            # files that the system generates on reading, such as those in /proc, have size 0
            if not (stat.S_ISREG(status.st_mode) and 0 < status.st_size <= MAX_TENSOR_BYTES):
                raise Unreadable(f"{path} is not a regular file, or empty, or larger than any certificate's.")
            yield file
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        if isinstance(error, UserError):
            raise
        raise Unreadable(f"{path} cannot be read ({getattr(error, 'strerror', None) or type(error).__name__}).") from None


def read_content(folder: Path) -> Content:
    """Read the certificate in a folder and check its form and hashes; nothing is recomputed. The result also has its folder."""
    raw = read_json(folder / TEXT_FILE)
    stated = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else (None, None)
    if stated != (FORMAT, VERSION):
        raise Unreadable(f"{TEXT_FILE} is not a cop2l certificate of format {VERSION}, the only one that this program reads.")
    holdout = options_of(raw.get("options"), "The table of options").kind == "holdout"
    hashes = dict.fromkeys(() if holdout else ("theta_0", "theta", "sets"), sha256)
    content: Content = object_of(**CERTIFICATE_FIELDS, **hashes)(raw, "The certificate")
    require(content["digest"] == content_digest(raw), "The text of the certificate was changed: its digest does not match.")
    names = HOLDOUT_FILES if holdout else FILES
    require(set(content["files"]) == set(names), f"The certificate must name the files {', '.join(names)}, and no others.")
    for name in names:
        check_hash(folder / name, content["files"][name])
    good = holdout != (content["method"] == "cop2l") and (holdout or content["settings"] is None)
    require(good, "CoP2L has certificates of its own, without settings; other methods have hold-out certificates.")
    check_records(content)
    return {**content, "folder": folder}


def check_hash(path: Path, expected: str) -> None:
    """Refuse a file with another SHA-256."""
    with open_regular(path) as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    require(actual == expected, f"The file {path.name} was changed: its hash does not match.")


def read_json(path: Path) -> Any:
    """The JSON in a file, without repeated fields, NaN or Infinity."""

    def unique(pairs: list[tuple[str, Any]]) -> Content:
        fields = dict(pairs)
        require(len(fields) == len(pairs), f"{path.name} names a field twice: people and programs could read it differently.")
        return fields

    def refuse(constant: str) -> None:
        require(False, f"{path.name} has {constant} where a number must be.")

    with open_regular(path) as file:
        return json.loads(file.read(MAX_BYTES).decode(), object_pairs_hook=unique, parse_constant=refuse)


def check_records(content: Content) -> None:
    """Check what the text alone can show: tasks in order, possible counts, and exactly the promised statements."""
    options, last = content["options"], len(content["records"])
    require(options.tasks in (None, last), f"The claim is for {options.tasks} tasks, and the certificate has {last}.")
    for number, record in enumerate(content["records"], 1):
        require(all(record_conditions(record, number, content)), f"The record of task {number} is impossible.")
    stated = [tuple(statement[key] for key in STATEMENT_NAME) for statement in content["statements"]]
    promised = promised_statements(options, content["records"])
    require(stated == promised, "The certificate must make the promised statements, once, in order.")


def record_conditions(record: Content, number: int, content: Content) -> Iterator[bool]:
    """The conditions that the record of a task must fulfil."""
    options, head, parts = content["options"], record["head"], record["parts"]
    yield record["task"] == number and record["n"] == record["rows"]
    yield head == sorted(set(head)) and head[-1] < content["classes"]
    yield options.kind != "holdout" or record["errors"] is not None
    subjects = {"classes": sorted({part["subject"] for part in parts} & set(head)), "groups": options.groups}
    subjects["forgetting"] = ["lost", "gained"] if number < len(content["records"]) else []
    expected = [(family, subject) for family in subjects if family in options.claim for subject in subjects[family]]
    yield [(part["family"], part["subject"]) for part in parts] == expected
    for family in {"classes", "groups"} & set(options.claim):  # partitions
        yield sum(part["n"] for part in parts if part["family"] == family) == record["n"]
    for part in (record, *parts):
        yield from count_conditions(part, record, options)


def count_conditions(part: Content, record: Content, options: Options) -> Iterator[bool]:
    """The conditions that the counts of a record, or of one of its parts, must fulfil."""
    n, errors, picked, selected = part["n"], part["errors"], part["picked"], part["selected"]
    yield n <= record["n"] and part["iterations"] == record["iterations"]
    yield (errors is None) == (part["errors_not_picked"] is None) == (record["errors"] is None)
    yield part["compression"] + part["evicted"] + (errors or 0) <= n and picked + (part["errors_not_picked"] or 0) <= n
    yield not (options.uses_marks and part["evicted"])  # marks: nothing moves to J
    yield options.uses_marks == (selected is not None) == (part["compressed"] is not None)
    yield (part["compressed"] or 0) <= (selected or 0) <= n


def promised_statements(options: Options, records: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The names of all statements. If the data of a task is gone, the kind is `buffer`, or there is no statement."""
    names: list[tuple[Any, ...]] = []
    for family in options.claim:
        for number, record in enumerate(records, 1):
            kind = kind_of(record, options)
            subjects = [None] if family == "tasks" else [part["subject"] for part in record["parts"] if part["family"] == family]
            if family == "forgetting" and subjects:
                subjects = ["lost", "net"] if kind == "holdout" else ["lost"]
            if record["errors"] is not None or options.uses_marks:
                names += [(family, number, subject, kind) for subject in subjects]
        if family == "average" or (family == "forgetting" and len(records) > 1):
            names.append((family, None, None, options.kind))
    return names
