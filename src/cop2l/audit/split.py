"""The samples of the tasks: given one by one, or loaded as a stream and split as is standard or as the auditor says."""

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
from cop2l.kernel.building import DEFAULT_PRIOR_SHARE
from cop2l.kernel.form import Unreadable, canonical_json, open_regular
from cop2l.kernel.verdict import Verdict, quoted
from cop2l.streams.encoding import TEXT_SIZE
from cop2l.streams.files import stored_arrays
from cop2l.streams.own import FOUND_IN_DATA, TEST_SHARE
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
    for key, value in split.items():
        stated = certificate["scenario"] if key == "scenario" else (certificate["data"] or {}).get(key)
        if not _same(stated, value):
            notes.invalid.append(_contradiction(key, stated, value))
    notes.checked.append(
        "The samples were given task by task: how they were split is not the certificate's choice."
    )
    return LoadedData(tasks)


def task_arrays(path: Path) -> dict[int, tuple[Any, ...]] | None:
    """The samples in an .npz file of x_1, y_1, x_2, y_2, ..., and groups g_1, g_2, ... if any; None for another file."""
    if path.suffix != ".npz" or not path.exists():
        return None
    try:
        with open_regular(path):
            pass
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
    """The samples of a stream, split with the stated options, which must be standard or typed by the auditor."""
    _refuse_special_file(Path(source))
    recipe = certificate["data"] or {}
    stated_options = _stated_options(notes, certificate, recipe, typed_options)
    prior = _prior(certificate, recipe.get("holdout"))
    standard, loading_error = _standard_stream(source, prior)
    defaults = STANDARD_OPTIONS | (
        {"scenario": standard.scenario, "tasks": len(standard)} if standard else {}
    )
    accepted = _compare_options(notes, stated_options, typed_options, defaults, split_as_stated)
    options = stated_options | typed_options
    stream = standard if all(_same(options[key], defaults.get(key)) for key in options) else None
    if stream is None:
        try:
            _refuse_sizes(options)
            stream = load_stream(source, prior=prior, **options)
        except LOADING_ERRORS as error:
            if loading_error is not None:
                raise Unreadable(f"The data cannot be loaded: {in_flags(str(loading_error))}") from None
            notes.invalid.append(f"The data cannot be split as the certificate states: {quoted(str(error))}.")
            return LoadedData()
    stream = _with_stated_columns(notes, source, recipe.get("inputs"), stream, options | {"prior": prior})
    if accepted:
        notes.assumed.append(f"The split is the issuer's, accepted as stated: {quoted(accepted)}.")
    elif not notes.unverified:
        split = "one that you typed" if typed_options else "standard one of the stream"
        notes.checked.append(f"The split is the {split}.")
    _check_stream(notes, certificate, stream)
    if stream.description.get("label_set") == FOUND_IN_DATA:
        notes.assumed.append(
            "The classes were found in the data, certified examples included: that there are no others was known before."
        )
    return _tasks_and_tests(stream, len(certificate["records"]))


def _stated_options(
    notes: Verdict, certificate: Mapping[str, Any], recipe: Mapping[str, Any], typed_options: dict[str, Any]
) -> dict[str, Any]:
    """The options of the split that the certificate states; a typed hold-out share, which is not one, is compared."""
    stated_options = {
        key: value for key, value in recipe.items() if key not in NOT_SPLIT and value is not None
    }
    stated_options.setdefault("scenario", certificate["scenario"])
    stated_options |= {
        key: [stated_options[key]] for key in ("columns", "text") if isinstance(stated_options.get(key), str)
    }
    share = recipe.get("holdout")
    if "holdout" in typed_options and not _same(typed_options["holdout"], share):
        notes.invalid.append(_contradiction("holdout", share, typed_options["holdout"]))
    typed_options.pop("holdout", None)
    if certificate["data"] is None:  # a certificate made in Python states no split: the auditor's holds
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
    accepted, unconfirmed = dict[str, Any](), 0
    for key in sorted({*stated_options, *typed_options}):
        value = stated_options.get(key, defaults.get(key))
        if key in typed_options:
            if not _same(value, typed_options[key]):
                notes.invalid.append(_contradiction(key, value, typed_options[key]))
        elif not _same(value, defaults.get(key)):
            if split_as_stated:
                accepted[key] = value
            else:
                unconfirmed += 1
    if unconfirmed:
        notes.unverified.append(
            f"{unconfirmed} {SPLIT_NOT_STANDARD}: type them if you know it to be so (see above), "
            "or accept all with --split-as-stated."
        )
    return accepted


def _with_stated_columns(
    notes: Verdict, source: str, stated_columns: Any, stream: Stream, options: Mapping[str, Any]
) -> Stream:
    """The stream with the columns of its table in the order of the certificate, which names them."""
    columns = names_of(stream).get("inputs")
    if (
        not isinstance(stated_columns, list)
        or columns is None
        or stated_columns == columns
        or "columns" in options
    ):
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
    if stream.scenario != certificate["scenario"]:
        notes.invalid.append(
            f"The stream is {stream.scenario}, and the certificate {certificate['scenario']}."
        )
    if stream.classes != certificate["classes"]:
        notes.invalid.append(
            f"The stream has {stream.classes} classes, and the certificate {certificate['classes']}."
        )
    # `learn(x, y)` without `classes` states all classes; only task-incremental tasks depend on them
    all_classes = [] if stream.scenario == "task-incremental" else [list(range(stream.classes))]
    for record in certificate["records"]:
        head = sorted(stream.heads[record["task"] - 1]) if record["task"] <= len(stream) else None
        if head is None:
            notes.invalid.append(
                f"The stream has {len(stream)} tasks, and the certificate speaks of task {record['task']}."
            )
        elif record["head"] not in (head, *all_classes):
            notes.invalid.append(
                f"The classes of task {record['task']} are not those that the stream gives it."
            )
    names, recipe = names_of(stream), certificate["data"] or {}
    for key, noun in (("task_names", "tasks"), ("class_names", "classes")):
        if key in recipe and recipe[key] != names.get(key):
            notes.invalid.append(f"The names of the {noun} are not those of the data.")
    for reason in stream.not_valid:
        if reason not in certificate["not_valid"]:
            notes.invalid.append(
                f"On this stream no certificate is valid: {reason} The certificate does not declare it."
            )


def _tasks_and_tests(stream: Stream, tasks: int) -> LoadedData:
    """The rows of the first tasks and their test parts; the checker withholds rows itself."""
    samples = LoadedData(stream=stream)
    for task in stream[:tasks]:
        groups = [stream.groups[task.t - 1]] if stream.groups else []
        samples.tasks[task.t] = (task.x, task.y, *groups)
    for task in stream.test[:tasks]:
        samples.tests[task.t] = (task.x, task.y)
    return samples


def _prior(certificate: Mapping[str, Any], withheld: Any) -> tuple[float, int, float]:
    """The prior share, seed and withheld share, which select the examples that prepare the columns of a table."""
    options = certificate["options"]
    settings = (certificate["settings"] or {}) if options.kind == "holdout" else {"prior": options.prior}
    share = settings.get("prior", DEFAULT_PRIOR_SHARE)
    return share if type(share) is float else 0.0, options.seed, withheld if type(withheld) is float else 0.0


def _standard_stream(source: str, prior: tuple[float, int, float]) -> tuple[Stream | None, Exception | None]:
    """The stream, split without any option; or the error of loading it."""
    try:
        return load_stream(source, prior=prior), None
    except LOADING_ERRORS as error:
        return None, error


def _refuse_special_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise Unreadable(f"{path} is neither a file nor a folder.")


def _refuse_sizes(options: Mapping[str, Any]) -> None:
    """Refuse numbers that no data has, before a stream is built from them."""
    sizes = [abs(value) for key, value in options.items() if type(value) is int and key not in SEEDS]
    tasks = options.get("tasks")
    if sizes and max(sizes) * (tasks if type(tasks) is int else 1) > MAX_ROWS:
        raise ValueError("its numbers are larger than any data.")


def _same(left: Any, right: Any) -> bool:
    return canonical_json(left) == canonical_json(right)


def _contradiction(key: str, stated_value: Any, typed_value: Any) -> str:
    return f"The certificate states {key}={stated_value!r:.200}, and {typed_value!r:.200} was typed."
