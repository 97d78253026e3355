"""Reading a certificate: regular files, matching hashes, and a declared type and range for every number and text."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError, safe_open

from cop2l.kernel.arithmetic import holdout_share, kind_of
from cop2l.kernel.options import RULES, Check, Family, Kind, Options, Refusal, choice, many, maybe, require, rule, short, whole

FORMAT, VERSION, TEXT_FILE = "cop2l-certificate", 4, "certificate.json"
MOST_BYTES, MOST_TENSOR_BYTES, MOST, MOST_CLASSES = 2**25, 2**33, 2**53, 2**15
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


class Unreadable(Refusal):
    """The check itself cannot be made, so that nothing can be said of the certificate."""


# ---- types and ranges

# nothing that could steer a terminal
text = rule(lambda value: type(value) is str and len(value) <= 1000 and value.isprintable(), "a line of printable text")
sha256 = rule(lambda value: type(value) is str and len(value) == 64 and not set(value) - set("0123456789abcdef"), "a SHA-256")
share = rule(lambda value: type(value) is float and 0 <= value <= 1, "a number from 0.0 to 1.0")
an_object = rule(lambda value: type(value) is dict, "an object")


def table(**columns: Check) -> Check:
    """An object with exactly these keys."""

    def check(value: Any, where: str) -> Content:
        keys = set(an_object(value, where)) ^ set(columns)
        require(not keys, f"{where} must have its documented fields: see {sorted(keys)[:5]!r:.99}.")
        return {key: inner(value[key], f"{where}.{key}") for key, inner in columns.items()}

    return check


def plain_value(value: Any, where: str, depth: int = 6) -> Any:
    """Texts, finite numbers, truth values, null, and lists and objects of them."""
    if isinstance(value, dict) and depth:
        return {text(key, where): plain_value(inner, where, depth - 1) for key, inner in value.items()}
    if isinstance(value, list) and depth:
        return [plain_value(inner, where, depth - 1) for inner in value]
    number = type(value) in (int, float) and abs(value) <= MOST  # neither NaN nor infinite
    return value if value is None or type(value) is bool or number else text(value, where)


def plain_object(value: Any, where: str) -> Content:
    """An object of plain values."""
    return dict(plain_value(an_object(value, where), where))


def options_of(value: Any, where: str) -> Options:
    """Options; one that is absent has its default, and 1, 1.0 and true are not the same."""
    require(set(an_object(value, where)) <= set(RULES), f"{where} must have no other options than the documented ones.")
    found = Options(**value)
    claimed = {key: inner for key, inner in found.as_dict().items() if key in value}
    require(canonical_json(claimed) == canonical_json(value), f"{where} must be written with the types of its options.")
    return found


def subject(value: Any, where: str) -> Any:
    """The number of a class, or a name."""
    return (whole() if type(value) is int else short)(value, where)


COUNTED = dict.fromkeys(("n", "prior", "compression", "evicted", "picked", "iterations", "stopped"), whole())
COUNTED |= dict.fromkeys(("errors", "errors_not_picked", "selected", "compressed"), maybe(whole()))
PART = table(family=choice("classes", "groups", "forgetting"), subject=subject, **COUNTED)
SAMPLE = {"task": whole(1), "rows": whole(1), "head": many(whole(0, MOST_CLASSES), 1), "fingerprint": sha256, "parts": many(PART)}
NAMED = {"family": choice(*get_args(Family)), "task": maybe(whole(1)), "subject": maybe(subject), "kind": choice(*get_args(Kind))}
CONTENT = {
    "format": choice(FORMAT), "version": choice(VERSION), "made_by": text, "method": text, "options": options_of,
    "settings": maybe(plain_object), "scenario": choice(*SCENARIOS), "classes": whole(1, MOST_CLASSES), "model": plain_object,
    "data": maybe(plain_object), "machine": text, "earlier": many(text, most=100), "threads": whole(1, 512),
    "not_valid": many(text, most=100), "assumptions": choice(list(ASSUMPTIONS)), "commitment": maybe(sha256),
    "records": many(table(**SAMPLE, **COUNTED), least=1), "statements": many(table(**NAMED, value=share), least=1),
    "files": plain_object, "digest": sha256,
}  # fmt: skip
HASHES = {"theta_0": sha256, "theta": sha256, "sets": sha256}


# ---- files


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: what is hashed, and what tells 1, 1.0 and true apart."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the certificate's text without its digest."""
    return hashlib.sha256(canonical_json({k: v for k, v in content.items() if k != "digest"}).encode()).hexdigest()


@contextmanager
def open_regular(path: Path) -> Iterator[Any]:
    """A regular file, opened without waiting for anybody at its other end; if it cannot be read, `Unreadable`."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            # what the system makes up as it is read has no size
            if not (stat.S_ISREG((found := os.fstat(handle)).st_mode) and 0 < found.st_size <= MOST_TENSOR_BYTES):
                raise Unreadable(f"{path} is not a regular file, or empty, or larger than any certificate's.")
            yield file
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        if isinstance(error, Refusal):
            raise
        raise Unreadable(f"{path} cannot be read ({getattr(error, 'strerror', None) or type(error).__name__}).") from None


def read_certificate(folder: Path) -> Content:
    """The certificate in a folder, checked for form and hashes; nothing is recomputed. Its folder is added to it."""
    path = folder / TEXT_FILE

    def unique(pairs: list[tuple[str, Any]]) -> Content:
        found = dict(pairs)
        require(len(found) == len(pairs), f"{TEXT_FILE} names a field twice: people and programs could read it differently.")
        return found

    def refused(word: str) -> Any:
        raise Refusal(f"{TEXT_FILE} has {word} where a number must be.")

    with open_regular(path) as file:
        raw = json.loads(file.read(MOST_BYTES).decode(), object_pairs_hook=unique, parse_constant=refused)
    claimed = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else (None, None)
    if claimed in [(FORMAT, former) for former in range(1, VERSION)]:
        raise Unreadable(f"{TEXT_FILE} is a certificate of format {claimed[1]}: cop2l 0.1 reads it, this one format {VERSION}.")
    if claimed != (FORMAT, VERSION):
        raise Unreadable(f"{TEXT_FILE} is not a cop2l certificate of format {VERSION}, the only one that this program reads.")
    holdout = options_of(raw.get("options"), "The table of options").kind == "holdout"
    content: Content = table(**CONTENT, **({} if holdout else HASHES))(raw, "The certificate")
    require(content["digest"] == content_digest(raw), "The text of the certificate was changed: its digest does not match.")
    names = HOLDOUT_FILES if holdout else FILES
    require(set(content["files"]) == set(names), f"The certificate must name the files {', '.join(names)}, and no others.")
    for name in names:
        with open_regular(folder / name) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        require(found == content["files"][name], f"The file {name} was changed: its hash does not match.")
    good = holdout or (content["method"] == "cop2l" and content["settings"] is None)
    require(good, "Only CoP2L has certificates of its own, without settings; other methods have hold-out certificates.")
    check_records(content)
    return {**content, "folder": folder}


def tensors_of(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The tensors of a file, if their names and shapes are the wanted ones; looked at before they are read."""
    with open_regular(path), safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        require(shapes == wanted, f"{path.name} does not have the tensors and shapes that it must have.")
        return {name: file.get_tensor(name) for name in wanted}


def check_records(content: Content) -> None:
    """What the text alone can show: tasks in order, counts that are possible, and exactly the statements that were promised."""
    options, last = content["options"], len(content["records"])
    require(options.tasks in (None, last), f"The claim is for {options.tasks} tasks, and the certificate has {last}.")
    for number, record in enumerate(content["records"], 1):
        require(all(rules_of_record(record, number, content)), f"The record of task {number} is impossible.")
    claimed = [tuple(statement[key] for key in NAMED) for statement in content["statements"]]
    promised = promised_statements(options, content["records"])
    require(claimed == promised, "The certificate must make the promised statements, once, in order.")


def rules_of_record(record: Content, number: int, content: Content) -> Iterator[bool]:
    """What must be true of the record of a task."""
    options, head, parts = content["options"], record["head"], record["parts"]
    yield record["task"] == number and record["n"] + record["prior"] == record["rows"]
    yield head == sorted(set(head)) and head[-1] < content["classes"]
    yield options.kind != "holdout" or record["errors"] is not None
    named = {"classes": sorted({part["subject"] for part in parts} & set(head)), "groups": options.groups}
    named["forgetting"] = ["lost", "gained"] if number < len(content["records"]) else []
    expected = [(family, one) for family in named if family in options.claim for one in named[family]]
    yield [(part["family"], part["subject"]) for part in parts] == expected
    for family in {"classes", "groups"} & set(options.claim):  # partitions
        yield sum(part["n"] for part in parts if part["family"] == family) == record["n"]
    for part in (record, *parts):
        yield from rules_of_counts(part, record, options)


def rules_of_counts(part: Content, record: Content, options: Options) -> Iterator[bool]:
    """What must be true of the counts of a record, or of one of its parts."""
    n, errors, picked, selected = part["n"], part["errors"], part["picked"], part["selected"]
    yield n <= record["n"] and part["iterations"] == record["iterations"]
    yield (errors is None) == (part["errors_not_picked"] is None) == (record["errors"] is None)
    yield part["compression"] + part["evicted"] + (errors or 0) <= n and picked + (part["errors_not_picked"] or 0) <= n
    yield not (options.marked and part["evicted"])  # marks: nothing moves to J
    yield options.buffer != "count-only" or picked == 0 or record["iterations"] > 0
    yield options.marked == (selected is not None) == (part["compressed"] is not None)
    yield (part["compressed"] or 0) <= (selected or 0) <= n


def promised_statements(options: Options, records: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The family, task, subject and kind of every statement. Where a task's data is gone its kind is `buffer`, if that can be."""
    found: list[tuple[Any, ...]] = []
    for family in options.claim:
        for number, record in enumerate(records, 1):
            kind = kind_of(record, options)
            subjects = [None] if family == "tasks" else [part["subject"] for part in record["parts"] if part["family"] == family]
            if family == "forgetting" and subjects:
                subjects = ["lost", "net"] if holdout_share(kind, record, options) else ["lost"]
            if record["errors"] is not None or options.marked:
                found += [(family, number, subject, kind) for subject in subjects]
        if family == "average" or (family == "forgetting" and len(records) > 1):
            found.append((family, None, None, options.kind))
    return found
