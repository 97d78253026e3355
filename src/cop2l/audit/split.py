"""The samples of the tasks: passed one by one, or loaded and split by the stream's default or as the auditor says."""

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cop2l.audit.flags import NOT_SPLIT, in_flags
from cop2l.certify.inputs import features
from cop2l.errors import UserError
from cop2l.experiments.learners import names_of
from cop2l.features import load_stream
from cop2l.kernel.building import SHARE
from cop2l.kernel.form import Unreadable, canonical_json, open_regular
from cop2l.kernel.verdict import Verdict, quoted
from cop2l.streams.encoding import TEXT_SIZE
from cop2l.streams.files import stored_arrays
from cop2l.streams.own import FOUND_IN_DATA, TEST_SHARE
from cop2l.streams.task import Stream

USUAL = {"images": "shared", "seed": 0, "label": "label", "test_share": TEST_SHARE, "text_size": TEXT_SIZE}
SEEDS = ("seed", "class_seed", "order_seed", "problem")
SPLIT_NOT_STANDARD = "options of the split into tasks are not the standard ones of this data"
MOST = 10**8
"""Rows that a stated split may make up: a larger number is nobody's data."""
BAD = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, OSError)
Pairs = dict[int, tuple[Any, ...]]
"""Of each task (x, y), or (x, y, groups)."""


@dataclass
class Samples:
    """The rows of each task and of its test part; of a stream they are whole, and nothing was withheld from them yet."""

    tasks: Pairs = field(default_factory=dict)
    tests: Pairs = field(default_factory=dict)
    stream: Stream | None = None


def samples_for(
    notes: Verdict,
    certificate: Mapping[str, Any],
    data: str | Path | Mapping[int, tuple[Any, ...]] | None,
    typed: Mapping[str, Any],
    as_stated: bool = False,
) -> Samples:
    """The samples, from a mapping, an .npz file of arrays by task, or a stream that is split; none if nothing is given."""
    if data is None:
        return Samples()
    given = dict(data) if isinstance(data, Mapping) else task_arrays(Path(data))
    given = given and {task: (features(x), *others) for task, (x, *others) in given.items()}
    if given is None:
        return _split_data(notes, certificate, str(data), dict(typed), as_stated)
    for key, value in typed.items():
        claimed = certificate["scenario"] if key == "scenario" else (certificate["data"] or {}).get(key)
        if canonical_json(claimed) != canonical_json(value):
            notes.add_invalid(_otherwise(key, claimed, value))
    notes.checked.append(
        "The samples were given task by task: how they were split is not the certificate's choice."
    )
    return Samples(given)


def task_arrays(path: Path) -> Pairs | None:
    """The samples in an .npz file of x_1, y_1, x_2, y_2, ..., and groups g_1, g_2, ... if any; None if it is something else."""
    if path.suffix != ".npz" or not path.exists():
        return None
    try:
        with open_regular(path):
            pass
        content = stored_arrays(path)
    except UserError as error:
        raise Unreadable(str(error)) from None
    tasks = [name[2:] for name in content if name.startswith("x_") and name[2:].isdecimal()]
    if lacking := [t for t in tasks if f"y_{t}" not in content]:
        raise Unreadable(f"{path} has no array y_{lacking[0]}.")
    return {
        int(t): tuple(content[f"{kind}_{t}"] for kind in "xyg" if f"{kind}_{t}" in content) for t in tasks
    } or None


def _split_data(
    notes: Verdict, certificate: Mapping[str, Any], source: str, typed: dict[str, Any], as_stated: bool
) -> Samples:
    _refuse_special(Path(source))
    recipe = certificate["data"] or {}
    claimed = {key: value for key, value in recipe.items() if key not in NOT_SPLIT and value is not None}
    claimed.setdefault("scenario", certificate["scenario"])
    claimed |= {key: [claimed[key]] for key in ("columns", "text") if isinstance(claimed.get(key), str)}
    share = recipe.get("holdout")
    if "holdout" in typed and canonical_json(typed["holdout"]) != canonical_json(share):
        notes.add_invalid(_otherwise("holdout", share, typed["holdout"]))
    typed.pop("holdout", None)
    if certificate["data"] is None:  # a certificate from Python states no split: the auditor's counts
        claimed |= typed
    if claimed["scenario"] != certificate["scenario"]:
        notes.add_invalid(
            f"The certificate is {certificate['scenario']}, and its data is said to be split {claimed['scenario']}."
        )
    prior = _prior(certificate, share)
    standard, trouble = _standard(source, prior)
    usual = USUAL | ({"scenario": standard.scenario, "tasks": len(standard)} if standard else {})
    accepted = _compare(notes, claimed, typed, usual, as_stated)
    wanted = claimed | typed
    stream = standard if all(_same(wanted[key], usual.get(key)) for key in wanted) else None
    if stream is None:
        try:
            _refuse_sizes(wanted)
            stream = load_stream(source, prior=prior, **wanted)
        except BAD as error:
            if trouble is not None:
                raise Unreadable(f"The data cannot be loaded: {in_flags(str(trouble))}") from None
            notes.add_invalid(f"The data cannot be split as the certificate states: {quoted(str(error))}.")
            return Samples()
    stream = _in_stated_order(notes, source, recipe.get("inputs"), stream, wanted | {"prior": prior})
    if accepted:
        notes.assumed.append(f"The split is the issuer's, accepted as stated: {quoted(accepted)}.")
    elif not notes.unverified:
        how = "the one that was typed" if typed else "the standard one of the stream"
        notes.checked.append(f"How the data was split is {how}.")
    _check_stream(notes, certificate, stream)
    if stream.description.get("label_set") == FOUND_IN_DATA:
        notes.assumed.append(
            "The classes were found in the data, certified examples included: that there are no others was known before."
        )
    return _tasks_and_tests(stream, len(certificate["records"]))


def _compare(
    notes: Verdict,
    claimed: dict[str, Any],
    typed: dict[str, Any],
    usual: dict[str, Any],
    as_stated: bool,
) -> dict[str, Any]:
    """Every stated option must be usual or typed; those that were accepted otherwise."""
    accepted, others = dict[str, Any](), 0
    for key in sorted({*claimed, *typed}):
        stated_value = claimed.get(key, usual.get(key))
        if key in typed:
            if not _same(stated_value, typed[key]):
                notes.add_invalid(_otherwise(key, stated_value, typed[key]))
        elif not _same(stated_value, usual.get(key)):
            if as_stated:
                accepted[key] = stated_value
            else:
                others += 1
    if others:
        notes.add_unverified(
            f"{others} {SPLIT_NOT_STANDARD}: type them if you know it to be so (see above), or accept all with --split-as-stated."
        )
    return accepted


def _in_stated_order(
    notes: Verdict, source: str, claimed: Any, stream: Stream, wanted: Mapping[str, Any]
) -> Stream:
    """The stream with the columns of its table in the order of the certificate: they are known by their names."""
    found = names_of(stream).get("inputs")
    if not isinstance(claimed, list) or found is None or claimed == found or "columns" in wanted:
        return stream
    lacking, surplus = (
        [name for name in a if name not in b] for a, b in ((claimed, found), (found, claimed))
    )
    if lacking or surplus:
        notes.add_invalid(
            f"{source} lacks the columns {lacking!r:.300}, and has {surplus!r:.300} beside those of the certificate."
        )
        return stream
    notes.assumed.append(
        "The order of the columns, not that of the file, was not chosen by looking at results."
    )
    return load_stream(source, **wanted, columns=claimed)


def _check_stream(notes: Verdict, certificate: Mapping[str, Any], stream: Stream) -> None:
    """The tasks of the certificate must be tasks of the stream, with their classes."""
    if stream.scenario != certificate["scenario"]:
        notes.add_invalid(f"The stream is {stream.scenario}, and the certificate {certificate['scenario']}.")
    if stream.classes != certificate["classes"]:
        notes.add_invalid(
            f"The stream has {stream.classes} classes, and the certificate {certificate['classes']}."
        )
    # `learn(x, y)` without `classes` states all classes: they matter to no task that is not task-incremental
    alike = [] if stream.scenario == "task-incremental" else [list(range(stream.classes))]
    for record in certificate["records"]:
        head = sorted(stream.heads[record["task"] - 1]) if record["task"] <= len(stream) else None
        if head is None:
            notes.add_invalid(
                f"The stream has {len(stream)} tasks, and the certificate speaks of task {record['task']}."
            )
        elif record["head"] not in (head, *alike):
            notes.add_invalid(f"The classes of task {record['task']} are not those that the stream gives it.")
    named, claimed = names_of(stream), certificate["data"] or {}
    for key, what in (("task_names", "tasks"), ("class_names", "classes")):
        if key in claimed and claimed[key] != named.get(key):
            notes.add_invalid(f"The names of the {what} are not those of the data.")
    for reason in stream.not_valid:
        if reason not in certificate["not_valid"]:
            notes.add_invalid(
                f"On this stream no certificate is valid: {reason} The certificate does not declare it."
            )


def _tasks_and_tests(stream: Stream, tasks: int) -> Samples:
    """The rows of the first tasks and their test parts; what is withheld of them is the checker's to know."""
    found = Samples(stream=stream)
    for task in stream[:tasks]:
        groups = [stream.groups[task.t - 1]] if stream.groups else []
        found.tasks[task.t] = (task.x, task.y, *groups)
    for task in stream.test[:tasks]:
        found.tests[task.t] = (task.x, task.y)
    return found


def _prior(certificate: Mapping[str, Any], withheld: Any) -> tuple[float, int, float]:
    """Which examples of the first task may decide about gaps and categories of a table: those that certify nothing."""
    options = certificate["options"]
    settings = (certificate["settings"] or {}) if options.kind == "holdout" else {"prior": options.prior}
    share = settings.get("prior", SHARE)
    return share if type(share) is float else 0.0, options.seed, withheld if type(withheld) is float else 0.0


def _standard(source: str, prior: tuple[float, int, float]) -> tuple[Stream | None, Exception | None]:
    """The stream as it is split without any option; or why it cannot be."""
    try:
        return load_stream(source, prior=prior), None
    except BAD as error:
        return None, error


def _refuse_special(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise Unreadable(f"{path} is neither a file nor a folder.")


def _refuse_sizes(wanted: Mapping[str, Any]) -> None:
    """Refuse numbers that no data has, before anything is made of them."""
    sizes = [abs(value) for key, value in wanted.items() if type(value) is int and key not in SEEDS]
    tasks = wanted.get("tasks")
    if sizes and max(sizes) * (tasks if type(tasks) is int else 1) > MOST:
        raise ValueError("its numbers are larger than any data.")


def _same(one: Any, other: Any) -> bool:
    return canonical_json(one) == canonical_json(other)


def _otherwise(key: str, claimed: Any, typed: Any) -> str:
    return f"The certificate states {key}={claimed!r:.200}, and {typed!r:.200} was typed."
