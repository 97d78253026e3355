"""The samples of the tasks: given one by one, or loaded as a stream and split as is standard or as the auditor says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cop2l.audit.flags import NOT_SPLIT, in_flags
from cop2l.errors import UserError
from cop2l.experiments.learners import names_of
from cop2l.features import load_stream
from cop2l.kernel.checking import check_samples
from cop2l.kernel.form import Unreadable, canonical_json
from cop2l.kernel.holdout import split as kernel_split
from cop2l.kernel.options import Refusal
from cop2l.kernel.verdict import Verdict, quoted
from cop2l.learner.inputs import features
from cop2l.streams.encoding import TEXT_SIZE
from cop2l.streams.files import stored_arrays
from cop2l.streams.own import FOUND_IN_DATA, TEST_SHARE
from cop2l.streams.preparing import Preparing
from cop2l.streams.task import Stream

STANDARD_OPTIONS = {
    "images": "shared",
    "seed": 0,
    "label": "label",
    "test_share": TEST_SHARE,
    "text_size": TEXT_SIZE,
}
SEEDS = ("seed", "class_seed", "order_seed", "problem")
SPLIT_NOT_STANDARD = "options of the split into tasks are not the standard ones of this data"
ANOTHER_SPLIT = (
    "The data, split as you typed, is not what the certificate speaks of, and the certificate states no split: "
    "type all options that its tasks were made with (--tasks, --scenario, --columns, ...)."
)
MAX_ROWS = 10**8
"""A stated split with larger numbers is refused."""
LOADING_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, OSError)


@dataclass
class LoadedData:
    """The rows of each task, (x, y) or (x, y, groups), and of its test part; nothing was withheld yet from those of a stream."""

    tasks: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    tests: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    stream: Stream | None = None


def samples_for(
    notes: Verdict,
    certificate: Mapping[str, Any],
    data: str | Path | Mapping[int, tuple[Any, ...]] | None,
    split: Mapping[str, Any],
    split_as_stated: bool = False,
) -> LoadedData:
    """The samples in a mapping, in an .npz file of arrays by task, or of a stream that is split; none without data."""
    if data is None:
        return LoadedData()
    tasks = dict(data) if isinstance(data, Mapping) else task_arrays(Path(data))
    if tasks is None:
        return _split_data(notes, certificate, str(data), dict(split), split_as_stated)
    tasks = {task: (features(x), *columns) for task, (x, *columns) in tasks.items()}
    stated_options = (
        {**split, "holdout": None, **(certificate["data"] or {})}
        if states_no_split(certificate)
        else certificate["data"]
    )
    notes.invalid += _contradictions({**stated_options, "scenario": certificate["scenario"]}, split)
    notes.checked.append(
        "The samples were given task by task: how they were split is not the certificate's choice."
    )
    return LoadedData(tasks)


def states_no_split(certificate: Mapping[str, Any]) -> bool:
    """Whether the certificate does not say how its data was split into tasks: it was made in Python."""
    return "stream" not in (certificate["data"] or {})


def task_arrays(path: Path) -> dict[int, tuple[Any, ...]] | None:
    """The samples in an .npz file of x_1, y_1, x_2, y_2, ..., and groups g_1, g_2, ... if any; None for another file."""
    if path.suffix != ".npz" or not path.is_file():
        return None
    try:
        content = stored_arrays(path)
    except UserError as error:
        raise Unreadable(str(error)) from None
    tasks = [name[2:] for name in content if name.startswith("x_") and name[2:].isdecimal()]
    if unlabelled := [t for t in tasks if f"y_{t}" not in content]:
        raise Unreadable(f"{path} has no array y_{unlabelled[0]}.")
    return {
        int(t): tuple(content[f"{kind}_{t}"] for kind in "xyg" if f"{kind}_{t}" in content) for t in tasks
    } or None


def _split_data(
    notes: Verdict,
    certificate: Mapping[str, Any],
    source: str,
    typed_options: dict[str, Any],
    split_as_stated: bool,
) -> LoadedData:
    """The samples of a stream that is split; none if the certificate does not speak of them."""
    stream = _split_stream(notes, certificate, source, typed_options, split_as_stated)
    if stream is None:
        return LoadedData()
    samples = _tasks_and_tests(stream, len(certificate["records"]))
    if states_no_split(certificate):
        try:
            learned, withheld = kernel_split(dict(certificate), samples.tasks)
            certifying = withheld if certificate["options"].kind == "holdout" else learned
            check_samples(Verdict(), certificate, certifying, torch.empty(0))
        except Refusal:
            notes.unverified.append(ANOTHER_SPLIT)
            return LoadedData()
    _check_stream(notes, certificate, stream)
    if stream.description.get("label_set") == FOUND_IN_DATA:
        notes.assumed.append(
            "The classes were found in the data, certified examples included: that there are no others was known before."
        )
    return samples


def _split_stream(
    notes: Verdict,
    certificate: Mapping[str, Any],
    source: str,
    typed_options: dict[str, Any],
    split_as_stated: bool,
) -> Stream | None:
    """The stream, split with the stated options, which must be standard or typed by the auditor; None if that is impossible."""
    path, recipe = Path(source), certificate["data"] or {}
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise Unreadable(f"{source} is neither a file nor a folder.")
    stated_options = _stated_options(notes, certificate, recipe, typed_options)
    preparing, defaults, standard, loading_error = _preparing(certificate), STANDARD_OPTIONS, None, None
    try:
        standard = load_stream(source, preparing=preparing)
        defaults = defaults | {"scenario": standard.scenario, "tasks": len(standard)}
    except LOADING_ERRORS as error:
        loading_error = error
    accepted = _compare_options(notes, stated_options, typed_options, defaults, split_as_stated)
    options, stream = stated_options | typed_options, standard
    if not all(_same(options[key], defaults.get(key)) for key in options):
        try:
            _refuse_sizes(options)
            stream = load_stream(source, preparing=preparing, **options)
        except LOADING_ERRORS as error:
            loading_error, stream = loading_error or error, None
    if stream is None:
        if states_no_split(certificate) or standard is None:
            raise Unreadable(f"The data cannot be loaded: {in_flags(str(loading_error))}")
        notes.invalid.append(
            f"The data cannot be split as the certificate states: {quoted(str(loading_error))}."
        )
        return None
    if accepted:
        notes.assumed.append(f"The split is the issuer's, accepted as stated: {quoted(accepted)}.")
    elif not notes.unverified:
        split = "one that you typed" if typed_options else "standard one of the stream"
        notes.checked.append(f"The split is the {split}.")
    return _with_stated_columns(
        notes, source, recipe.get("inputs"), stream, options | {"preparing": preparing}
    )


def _stated_options(
    notes: Verdict, certificate: Mapping[str, Any], recipe: Mapping[str, Any], typed_options: dict[str, Any]
) -> dict[str, Any]:
    """The options of the split that the certificate states; a typed hold-out share, which is not one, is compared."""
    stated_options = {
        key: value for key, value in recipe.items() if key not in NOT_SPLIT and value is not None
    }
    stated_options.setdefault("scenario", certificate["scenario"])
    stated_options |= {
        key: [stated_options[key]]
        for key in ("columns", "text", "drop")
        if isinstance(stated_options.get(key), str)
    }
    typed_share = {"holdout": typed_options.pop("holdout", recipe.get("holdout"))}
    notes.invalid += _contradictions(recipe, typed_share)
    if states_no_split(certificate):  # a certificate made in Python states no split: the auditor's holds
        stated_options |= typed_options
    if stated_options["scenario"] != certificate["scenario"]:
        notes.invalid.append(
            f"The certificate is {certificate['scenario']}, and its data is said to be split {stated_options['scenario']}."
        )
    return stated_options


def _compare_options(
    notes: Verdict,
    stated_options: dict[str, Any],
    typed_options: dict[str, Any],
    defaults: dict[str, Any],
    split_as_stated: bool,
) -> dict[str, Any]:
    """Check that every stated option is standard or typed; the options that the auditor accepts as stated."""
    values = {key: stated_options.get(key, defaults.get(key)) for key in {*stated_options, *typed_options}}
    notes.invalid += _contradictions(values, typed_options)
    unconfirmed = {
        key: value
        for key, value in sorted(values.items())
        if key not in typed_options and not _same(value, defaults.get(key))
    }
    if split_as_stated or not unconfirmed:
        return unconfirmed
    notes.unverified.append(
        f"{len(unconfirmed)} {SPLIT_NOT_STANDARD}: type them if you know it to be so, "
        "or accept all with --split-as-stated."
    )
    return {}


def _with_stated_columns(
    notes: Verdict, source: str, stated_columns: Any, stream: Stream, options: Mapping[str, Any]
) -> Stream:
    """The stream with the columns of its table in the order of the certificate, which names them."""
    columns = names_of(stream).get("inputs")
    if columns is None and stated_columns:
        notes.unverified.append(
            "The data has no names of columns, so those of the certificate were not checked."
        )
    if "columns" in options or columns in (None, stated_columns) or not isinstance(stated_columns, list):
        return stream
    missing = [name for name in stated_columns if name not in columns]
    extra = [name for name in columns if name not in stated_columns]
    if missing or extra:
        notes.invalid.append(
            f"{source} lacks the columns {missing!r:.300}, and has {extra!r:.300} beside those of the certificate."
        )
        return stream
    notes.assumed.append(
        "The order of the columns, not that of the file, was not chosen by looking at results."
    )
    return load_stream(source, **options, columns=stated_columns)


def _check_stream(notes: Verdict, certificate: Mapping[str, Any], stream: Stream) -> None:
    """Check that the tasks of the certificate are tasks of the stream, with the same classes."""
    differences, recipe, names = list[str](), certificate["data"] or {}, names_of(stream)
    if stream.scenario != certificate["scenario"]:
        differences.append(f"The stream is {stream.scenario}, and the certificate {certificate['scenario']}.")
    if stream.classes != certificate["classes"]:
        differences.append(
            f"The stream has {stream.classes} classes, and the certificate {certificate['classes']}."
        )
    # `learn(x, y)` without `classes` states all classes; only task-incremental tasks depend on them
    all_classes = [] if stream.scenario == "task-incremental" else [list(range(stream.classes))]
    for record in certificate["records"]:
        t = record["task"]
        if t > len(stream):
            differences.append(f"The stream has {len(stream)} tasks, and the certificate speaks of task {t}.")
        elif record["head"] not in (sorted(stream.heads[t - 1]), *all_classes):
            differences.append(f"The classes of task {t} are not those that the stream gives it.")
    for key, noun in (("task_names", "tasks"), ("class_names", "classes")):
        if key in recipe and recipe[key] != names.get(key):
            differences.append(f"The names of the {noun} are not those of the data.")
    # where the certificate states no split, an option that was not typed may be the reason
    (notes.unverified if states_no_split(certificate) else notes.invalid).extend(differences)
    notes.invalid += [
        f"On this stream no certificate is valid: {reason} The certificate does not declare it."
        for reason in stream.not_valid
        if reason not in certificate["not_valid"]
    ]


def _tasks_and_tests(stream: Stream, tasks: int) -> LoadedData:
    """The rows of the first tasks and their test parts; the checker withholds rows itself."""
    rows = {task.t: (task.x, task.y, *stream.groups[task.t - 1 : task.t]) for task in stream[:tasks]}
    return LoadedData(rows, {task.t: (task.x, task.y) for task in stream.test[:tasks]}, stream)


def _preparing(certificate: Mapping[str, Any]) -> Preparing | None:
    """The rows of the first task that do not certify, and prepare the columns of a table; None if all certify."""
    is_holdout = certificate["options"].kind == "holdout"
    share = (certificate["data"] or {}).get("holdout" if is_holdout else "prepare")
    if type(share) is not float:
        return None
    return Preparing(certificate["options"].seed, share, drawn=not is_holdout)


def _refuse_sizes(options: Mapping[str, Any]) -> None:
    """Refuse numbers that no data has, before a stream is built from them."""
    sizes = [abs(value) for key, value in options.items() if type(value) is int and key not in SEEDS]
    tasks = options.get("tasks")
    if sizes and max(sizes) * (tasks if type(tasks) is int else 1) > MAX_ROWS:
        raise ValueError("its numbers are larger than any data.")


def _same(left: Any, right: Any) -> bool:
    return canonical_json(left) == canonical_json(right)


def _contradictions(stated_options: Mapping[str, Any], typed_options: Mapping[str, Any]) -> list[str]:
    """A sentence for each typed option that is stated otherwise."""
    return [
        f"The certificate states {key}={stated_options.get(key)!r:.200}, and {value!r:.200} was typed."
        for key, value in typed_options.items()
        if not _same(stated_options.get(key), value)
    ]
