"""A user's own labelled data: its inputs, label set, domains and test part."""

import re
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch

from cop2l.errors import UserError
from cop2l.streams.encoding import Declared, Rows
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
from cop2l.streams.tables import Columns, Part, from_frame, from_table, is_frame
from cop2l.streams.task import Stream, take_rows

TEST_SHARE = 0.2
"""The share of the examples that becomes the test part if there is none."""
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
    if is_frame(x):
        columns = Columns(None, declared=Declared.of(missing, categories))
        description["inputs"] = columns.as_dict()
        x = from_table(from_frame(x), name, columns).x
        if x_test is not None:
            x_test = from_table(from_frame(x_test), name, columns._replace(kinds=x.kinds)).x
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
    if not isinstance(x, Pictures | Rows) and (x.shape[1:], x.dtype) != (x_test.shape[1:], x_test.dtype):
        raise UserError(
            f"The training inputs of {name} are {tuple(x.shape[1:])} {x.dtype} and the test inputs "
            f"{tuple(x_test.shape[1:])} {x_test.dtype}; give both the same form."
        )
    if (train.domain is None) != (test.domain is None):
        raise UserError(f"Only one part of {name} has domains; give the domains of both parts.")
    return Labelled(
        name,
        x,
        class_numbers(train.y, names),
        x_test,
        class_numbers(test.y, names),
        names,
        prepare=preparation(x),
        domain=_domain_places(name, train.domain, domains),
        domain_test=_domain_places(name, test.domain, domains),
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
    y, domain, groups, order = columns
    domain, groups = (
        None if column is None else np.array([str(value) for value in column]) for column in (domain, groups)
    )
    part = Part(_inputs(name, part.x), y, domain, groups, order)
    titles = {"inputs": part.x, "labels": part.y, "domains": part.domain, "groups": part.groups}
    lengths = {title: len(values) for title, values in titles.items() if values is not None}
    if len(set(lengths.values())) != 1:
        numbers = ", ".join(f"{length} {title}" for title, length in lengths.items())
        raise UserError(f"{name} has {numbers}; give one of each per example.")
    if not len(part.x):
        raise UserError(f"{name} has a part without examples; give at least one example.")
    return part


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


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
    numbered = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbered else 0, label)))


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
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        if x.dtype == torch.float32:
            return _finite(name, x)
        x = x.to(torch.float32).numpy() if x.dtype == torch.bfloat16 else x.numpy()
    x = x if isinstance(x, np.ndarray) else np.asarray(x)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise UserError(f"The inputs of {name} must be numbers; give an array with one row per example.")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else x
        channels_last = x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
        return x.transpose(0, 3, 1, 2) if channels_last else x
    return _finite(name, x.astype(np.float32, copy=False))


def preparation(x: Any) -> Prepare:
    """The preparation of stored inputs, for a model: pictures are scaled to [-1, 1]."""
    return (
        Scaled()
        if isinstance(x, Pictures) or (isinstance(x, np.ndarray) and x.dtype == np.uint8)
        else identity
    )


def _finite(name: str, x: Any) -> Any:
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096]
        if not (block.isfinite() if isinstance(block, torch.Tensor) else np.isfinite(block)).all():
            raise UserError(f"The inputs of {name} hold a value that is not finite; replace or remove it.")
    return x


def _domain_names(name: str, train: Part, task_order: Sequence[Any] | None) -> tuple[str, ...]:
    """The domains in order: as listed, as the column of order says, or as they first appear."""
    if train.domain is None:
        if task_order is not None or train.order is not None:
            raise UserError(
                f"task_order orders domains, but {name} has none; name the domain of each row with domain=."
            )
        return ()
    names = list(dict.fromkeys(train.domain.tolist()))
    if train.order is not None:
        names.sort(key=lambda domain: train.order[train.domain == domain].min())
    if task_order is None:
        return tuple(names)
    order = [str(domain) for domain in task_order]
    if sorted(order) != sorted(names):
        raise UserError(f"task_order must list each domain of {name} once: {', '.join(names)}.")
    return tuple(order)


def _domain_places(name: str, domain: np.ndarray | None, names: tuple[str, ...]) -> np.ndarray | None:
    """The index of each example's domain in the names of the domains."""
    if domain is None:
        return None
    places = {text: place for place, text in enumerate(names)}
    if unknown_domains := sorted(set(domain.tolist()) - set(names)):
        raise UserError(
            f"The test part of {name} has the domain {unknown_domains[0]!r}, which the training part does not have; remove its"
            " examples."
        )
    return np.array([places[text] for text in domain.tolist()])
