"""A user's own labelled data: its inputs, label set, domains and test part."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Unpack

import numpy as np
import torch

from cop2l.errors import UserError, advise
from cop2l.streams.encoding import Columns, Rows
from cop2l.streams.pictures import Pictures, Scaled
from cop2l.streams.preparing import Preparing
from cop2l.streams.scenarios import (
    Labelled,
    Prepare,
    Split,
    identity,
    shuffled_order,
    split_into_tasks,
)
from cop2l.streams.tables import YEAR_FIRST, Part, from_frame, from_table
from cop2l.streams.task import Stream, take_rows

TEST_SHARE = 0.2
"""The share of the examples that becomes the test part if there is none."""
FEW_ROWS = 5
"""A class with fewer rows is named in a warning."""
MANY_CLASSES = 20
"""More whole numbers than this are a quantity, if most have fewer rows than this."""
FOUND_IN_DATA = "found in the data"
"""The label set of a stream whose classes are not listed, in its description."""


def from_arrays(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    name: str = "arrays",
    scenario: str | None = None,
    classes: int | Sequence[Any] | None = None,
    domain: Any = None,
    domain_test: Any = None,
    groups: Any = None,
    groups_test: Any = None,
    task_order: Sequence[Any] | None = None,
    missing: str | Sequence[str] | None = None,
    categories: Any = None,
    test_share: float = TEST_SHARE,
    seed: int = 0,
    preparing: Preparing | None = None,
    **split: Unpack[Split],
) -> Stream:
    """A stream from arrays, tensors or data frames.

    Labels are whole numbers or names; `classes` lists them in order, or is their number. Arrays of bytes are
    pictures, (n, height, width[, channels]) or (n, channels, height, width), and are scaled to [-1, 1]. Without a test
    part, `seed` draws `test_share` of the examples as one. `domain` names the domain of each example, for a
    domain-incremental stream; `task_order` lists the domains in order, by default that of their first examples.
    `missing` and `categories` declare gaps and categories of a data frame. `groups` names the group of each example,
    for claims about groups. `tasks`, `task_classes`, `class_seed`, `order`, `order_seed` and `examples` are options of
    the split.

    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    >>> stream = from_arrays(x, y, tasks=2)
    >>> stream.heads, [len(task.y) for task in stream], stream[0].x.dtype
    (((0, 1), (2, 3)), [17, 15], dtype('float32'))
    """
    description: dict[str, Any] = {}
    if (table := from_frame(x)) is not None:
        columns = Columns.of({"missing": missing, "categories": categories})._replace(label=None)
        description["inputs"] = columns.as_dict()
        x = from_table(table, name, columns).x
        if x_test is not None:
            x_test = from_table(from_frame(x_test), name, x.columns).x
    elif missing or categories:
        raise UserError(f"The inputs of {name} are no data frame; leave out missing and categories.")
    data = from_parts(
        name,
        Part(x, y, domain, groups),
        None if x_test is None and y_test is None else Part(x_test, y_test, domain_test, groups_test),
        classes=classes,
        task_order=task_order,
        description=description,
        test_share=test_share,
        seed=seed,
    )
    default = "class-incremental" if domain is None else "domain-incremental"
    return split_into_tasks(data, scenario or default, preparing=preparing, **split)


def from_parts(
    name: str,
    train: Part,
    test: Part | None,
    *,
    classes: int | Sequence[Any] | None,
    task_order: Sequence[Any] | None,
    test_share: float,
    seed: int,
    description: dict[str, Any],
) -> Labelled:
    """The user's data after all checks, with labels from 0."""
    train = checked_part(name, train)
    domains = _domain_names(name, train, task_order)
    description |= {"label_set": FOUND_IN_DATA if classes is None else "given"}
    if test is None:
        train, test = (_take_rows(train, rows) for rows in hold_out(len(train.y), test_share, seed))
        description |= {"test_share": test_share, "seed": seed}
    else:
        test = checked_part(name, test)
    names = class_names(train.y, classes)
    x, x_test = train.x, test.x
    y = class_numbers(train.y, names)
    _advise_about_labels(name, names, y, listed=classes is not None)
    if not isinstance(x, Pictures | Rows) and (x.shape[1:], x.dtype) != (x_test.shape[1:], x_test.dtype):
        raise UserError(
            f"The training inputs of {name} are {tuple(x.shape[1:])} {x.dtype} and the test inputs "
            f"{tuple(x_test.shape[1:])} {x_test.dtype}; give both the same form."
        )
    if (train.domain is None) != (test.domain is None):
        raise UserError(f"Only one part of {name} has domains; give the domains of both parts.")
    if unlearned := sorted({*(() if test.domain is None else test.domain.tolist())} - set(domains)):
        raise UserError(
            f"The test part of {name} has the domain {unlearned[0]!r}, which the training part does not have; remove its"
            " examples."
        )
    return Labelled(
        name,
        x,
        y,
        x_test,
        class_numbers(test.y, names),
        names,
        prepare=preparation(x),
        domain=train.domain,
        domain_test=test.domain,
        domain_names=domains,
        group=train.groups,
        group_test=test.groups,
        description=description,
    )


def hold_out(n: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the training and of the test part; the seed draws this share of n rows for testing."""
    if not isinstance(share, int | float):
        raise UserError(f"test_share is {share!r}; give a number, such as 0.2.")
    test = round(n * share)
    if not 0 < test < n:
        raise UserError(
            f"A test part of {share} of {n} examples leaves one part empty; choose another test_share."
        )
    order = shuffled_order(seed, "test part", n=n)
    return np.sort(order[test:]), np.sort(order[:test])


def checked_part(name: str, part: Part, *, labels: bool = True) -> Part:
    """The part with its inputs as a stream stores them, and with arrays of labels, domains, groups and order.

    Without `labels`, it need not have any.
    """
    if part.x is None or (labels and part.y is None):
        raise UserError(f"Give both inputs and labels of each part of {name}.")
    columns = [None if column is None else _array(column) for column in part[1:]]
    if any(column is not None and column.ndim == 0 for column in columns):
        raise UserError(f"{name} has a single value in place of an array; give one row per example.")
    y, *names = columns
    names = [None if column is None else np.array([str(value) for value in column]) for column in names]
    part = Part(_inputs(name, part.x), y, *names)
    titles = {"inputs": part.x, "labels": part.y, "domains": part.domain, "groups": part.groups}
    lengths = {title: len(values) for title, values in titles.items() if values is not None}
    if len(set(lengths.values())) != 1:
        numbers = ", ".join(f"{length} {title}" for title, length in lengths.items())
        raise UserError(f"{name} has {numbers}; give one of each per example.")
    if not len(part.x):
        raise UserError(f"{name} has a part without examples; give at least one example.")
    return part


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asanyarray(values)


def _take_rows(part: Part, rows: np.ndarray) -> Part:
    x, *columns = part
    return Part(take_rows(x, rows), *(None if column is None else column[rows] for column in columns))


def class_names(y: Any, classes: int | Sequence[Any] | None) -> tuple[str, ...]:
    """The names of the classes in order: `classes`, if it is a list; 0, 1, ..., if it is their number; else the labels.

    >>> class_names([9, 1, 10, 1], None), class_names(["b", "a"], None), class_names([0, 2], 4)
    (('1', '9', '10'), ('a', 'b'), ('0', '1', '2', '3'))
    """
    if isinstance(classes, Sequence | np.ndarray):
        names = tuple(str(value) for value in classes)
        if len(set(names)) != len(names):
            raise UserError("The list of classes names a class twice; list each class once.")
        return names
    labels = set(_label_texts(y)[0])
    if classes is not None and all(label.isdecimal() for label in labels):
        return tuple(str(label) for label in range(int(classes)))
    if classes not in (None, len(labels)):
        raise UserError(f"The data has {len(labels)} classes, not {classes}; list their names in classes=.")
    return tuple(
        sorted(labels, key=lambda label: (int(label), label)) if _are_numbers(labels) else sorted(labels)
    )


def class_numbers(y: Any, names: Sequence[str]) -> np.ndarray:
    """The index of each label in the names of the classes."""
    places = {name: place for place, name in enumerate(names)}
    texts, rows = _label_texts(y)
    if unlisted := [text for text in texts if text not in places]:
        classes = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise UserError(
            f"The label {unlisted[0]!r} is not one of the {len(names)} classes ({classes}); remove its examples, or list all"
            " classes in classes=."
        )
    numbers: np.ndarray = np.array([places[text] for text in texts], np.int64)[rows]
    return numbers


def _advise_about_labels(title: str, names: Sequence[str], y: np.ndarray, *, listed: bool) -> None:
    """Warn of whole numbers with few rows each, which are no classes, or else of classes with few rows."""
    counts = np.bincount(y, minlength=len(names)).tolist()
    rare = [repr(name) for name, rows in zip(names, counts, strict=True) if 0 < rows < FEW_ROWS]
    if not listed and len(names) > MANY_CLASSES > np.median(counts) and _are_numbers(names):
        advise(
            f"The labels of {title} are {len(names)} different whole numbers, as of a quantity; make classes of its ranges, or"
            " choose another column with label=."
        )
    elif rare:
        classes = ", ".join(rare[:5] + ["..."] * (len(rare) > 5))
        advise(
            f"{title} has classes with fewer than {FEW_ROWS} training rows: {classes}; add rows, or remove them."
        )


def _are_numbers(labels: Iterable[str]) -> bool:
    return all(label.lstrip("-").isdecimal() for label in labels)


def _label_texts(labels: Any) -> tuple[list[str], np.ndarray]:
    """The distinct labels as texts (whole numbers in digits), and the index of each label among them."""
    values = _array(labels)
    if values.dtype == object and all(isinstance(value, str) for value in values.ravel().tolist()):
        values = values.astype(str)
    wrong_labels = UserError("Give one label per example, a whole number or a name, and none missing.")
    if values.ndim != 1 or values.dtype.kind not in "biufU":
        raise wrong_labels
    distinct, places = np.unique(values.astype(int) if values.dtype == bool else values, return_inverse=True)
    texts = [str(value) for value in distinct.tolist()]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return texts, places
    if not all(number.is_integer() for number in numbers):
        raise wrong_labels
    digits = re.compile(r"-?[0-9]+")
    return [
        text if digits.fullmatch(text) else str(int(number))
        for text, number in zip(texts, numbers, strict=True)
    ], places


def _inputs(name: str, x: Any) -> Any:
    """The inputs in the form that a stream stores: bytes of pictures, or finite numbers in float32."""
    if isinstance(x, Pictures | Rows):
        return x
    x = _array(x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 else x)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise UserError(f"The inputs of {name} must be numbers; give an array with one row per example.")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else x
        channels_last = x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
        return x.transpose(0, 3, 1, 2) if channels_last else x
    x = x.astype(np.float32, copy=False)
    if not all(np.isfinite(x[start : start + 4096]).all() for start in range(0, len(x), 4096)):
        raise UserError(f"The inputs of {name} hold a value that is not finite; replace or remove it.")
    return x


def preparation(x: Any) -> Prepare:
    """The preparation of stored inputs, for a model: pictures are scaled to [-1, 1]."""
    return Scaled() if isinstance(x, Pictures) or getattr(x, "dtype", None) == np.uint8 else identity


def _domain_names(name: str, train: Part, task_order: Sequence[Any] | None) -> tuple[str, ...]:
    """The domains in order: as listed; else in order of time, if their rows or names tell it; else as they first appear."""
    if train.domain is None:
        if task_order is not None or train.order is not None:
            raise UserError(
                f"task_order orders domains, but {name} has none; name the domain of each row with domain=."
            )
        return ()
    rows = (train.domain if train.order is None else train.order).tolist()
    moments = time_keys(rows)
    if train.order is not None and not moments:
        raise UserError(
            f"The column of task_order= in {name} must hold numbers, or dates such as 2024, 2024-03, 2024Q3 and 2024-01-31;"
            " correct it, or list the domains in task_order=."
        )
    pairs = dict.fromkeys(zip(train.domain.tolist(), rows, strict=True))  # in the order of their first rows
    names = dict.fromkeys(domain for domain, _ in sorted(pairs, key=lambda pair: moments.get(pair[1], 0)))
    if task_order is None:
        return tuple(names)
    order = [str(domain) for domain in task_order]
    if sorted(order) != sorted(names):
        raise UserError(f"task_order must list each domain of {name} once: {', '.join(names)}.")
    return tuple(order)


def time_keys(names: Sequence[str]) -> dict[str, Any]:
    """Keys that sort numbers, or dates that begin with the year; empty if one of the names is neither.

    >>> [sorted(names, key=time_keys(names).get) for names in (["10", "9"], ["2024Q3", "2023Q4"], ["2024-10-02", "2024-9"])]
    [['9', '10'], ['2023Q4', '2024Q3'], ['2024-9', '2024-10-02']]
    """
    distinct = set(names)
    with suppress(ValueError):
        return {name: float(name) for name in distinct}
    if all(re.fullmatch(YEAR_FIRST, name) for name in distinct):
        return {name: [int(digits) for digits in re.findall(r"\d+", name)] for name in distinct}
    return {}
