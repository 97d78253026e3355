"""A user's own labelled data: arrays, label sets, and a test part where there is none."""

import re
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch

from cop2l.errors import UserError
from cop2l.streams.encoding import Declared, Rows
from cop2l.streams.pictures import Pictures, Scaled
from cop2l.streams.scenarios import (
    Labelled,
    Prepare,
    Prior,
    Split,
    identity,
    shuffled_order,
    split_into_tasks,
)
from cop2l.streams.tables import Columns, Part, from_frame, from_table, is_frame
from cop2l.streams.task import Stream, take_rows

TEST_SHARE = 0.2
"""The part of the data that is split off for testing where no test part is given."""
FOUND = "found in the data"
"""What the description of a stream says of classes that nobody listed."""


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
    prior: Prior | None = None,
    **how: Unpack[Split],
) -> Stream:
    """A stream from arrays, tensors or data frames.

    Labels are whole numbers or names; `classes` lists them in order, or says how many there are. Bytes are taken for
    pictures, (n, height, width[, channels]) or (n, channels, height, width), and scaled to [-1, 1]. Without a
    test part, `test_share` of the examples, drawn from the seed, becomes one. `domain` says which domain each
    example belongs to, for a domain-incremental stream; the domains come in the order in which they first appear, or as
    `task_order` lists them. A data frame may have gaps and categories (`missing`, `categories`). `groups` names the
    group of each example, for certificates
    that speak of groups; those of the test part are for measuring alone. `tasks`, `task_classes`, `class_seed`,
    `order` and `order_seed` say how it is split.

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
    data = labelled(
        name,
        Part(x, y, domain, groups),
        None if x_test is None and y_test is None else Part(x_test, y_test, domain_test, groups_test),
        classes=classes,
        task_order=task_order,
        description=description,
        test_share=test_share,
        seed=seed,
    )
    usual = "class-incremental" if domain is None else "domain-incremental"
    return split_into_tasks(data, scenario or usual, prior=prior, **how)


def labelled(
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
    """The user's data, checked, with labels numbered from 0."""
    domains = _domain_names(name, train, task_order)
    description |= {"label_set": FOUND if classes is None else "given"}
    if test is None:
        _same_length(name, train)
        first, second = hold_out(len(train.y), test_share, seed)
        train, test = _rows(train, first), _rows(train, second)
        description |= {"test_share": test_share, "seed": seed}
    for part in (train, test):
        _same_length(name, part)
    names = class_names(train.y, classes)
    y, y_test = (class_numbers(part.y, names) for part in (train, test))
    x, prepare = _inputs(name, train.x)
    x_test, _ = _inputs(name, test.x)
    if not isinstance(x, Pictures | Rows) and (x.shape[1:], x.dtype) != (x_test.shape[1:], x_test.dtype):
        raise UserError(
            f"The training inputs of {name} are {tuple(x.shape[1:])} {x.dtype} and the test inputs "
            f"{tuple(x_test.shape[1:])} {x_test.dtype}; give both the same form."
        )
    if (train.domain is None) != (test.domain is None):
        raise UserError(f"Give the domains of both the training and the test part of {name}.")
    domain, domain_test = (_domain_places(name, part.domain, domains) for part in (train, test))
    return Labelled(
        name,
        x,
        y,
        x_test,
        y_test,
        names,
        tasks=usual_tasks(len(names)),
        prepare=prepare,
        domain=domain,
        domain_test=domain_test,
        domain_names=domains,
        group=_group_names(train.groups),
        group_test=_group_names(test.groups),
        description=description,
    )


def hold_out(n: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training and of the test part: a random share, drawn from the seed, is for testing."""
    if not isinstance(share, int | float):
        raise UserError(f"The share of the test part is {share!r}; give a number, such as 0.2.")
    test = round(n * share)
    if not 0 < test < n:
        raise UserError(
            f"A test part of {share} of {n} examples leaves one part empty; choose another share."
        )
    order = shuffled_order(seed, "test part", n=n)
    return np.sort(order[test:]), np.sort(order[:test])


def usual_tasks(classes: int) -> int:
    """As many equal tasks as there can be with at least two classes each.

    >>> [usual_tasks(c) for c in (10, 9, 7, 2)]
    [5, 3, 1, 1]
    """
    return max((t for t in range(1, classes // 2 + 1) if classes % t == 0), default=1)


def _numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _rows(part: Part, rows: np.ndarray) -> Part:
    x, *others = part
    stored = isinstance(x, Pictures | Rows) or hasattr(x, "shape")
    return Part(
        take_rows(x if stored else np.asarray(x), rows),
        *(None if values is None else np.asarray(_numpy(values))[rows] for values in others),
    )


def _same_length(name: str, part: Part) -> None:
    x, y, domain, groups, _ = part
    if x is None or y is None:
        raise UserError(f"Give both inputs and labels of each part of {name}.")
    if any(getattr(values, "shape", None) == () for values in part):
        raise UserError(f"{name} has a single value in place of an array; give one row per example.")
    if groups is not None and len(groups) != len(y):
        raise UserError(f"{name} has {len(y)} labels but {len(groups)} groups; give one per example.")
    if len({len(values) for values in (x, y, domain) if values is not None}) != 1:
        raise UserError(
            f"{name} has {len(x)} inputs but {len(y)} labels or other numbers; give one per example."
        )
    if not len(y):
        raise UserError(f"{name} has a part without examples; give at least one.")


def class_names(y: Any, classes: int | Sequence[Any] | None) -> tuple[str, ...]:
    """The names of the classes: those that are listed, as many numbers as are said, or those that are found, in order.

    >>> class_names([9, 1, 10, 1], None), class_names(["b", "a"], None), class_names([0, 2], 4)
    (('1', '9', '10'), ('a', 'b'), ('0', '1', '2', '3'))
    """
    if isinstance(classes, Sequence | np.ndarray):
        names = tuple(str(value) for value in classes)
        if len(set(names)) != len(names):
            raise UserError("The list of classes names one of them twice; correct it.")
        return names
    found = set(_label_texts(y)[0])
    if classes is not None and all(name.isdecimal() for name in found):
        return tuple(str(label) for label in range(int(classes)))
    if classes not in (None, len(found)):
        raise UserError(f"There are {len(found)} classes in the data, not {classes}; list them in classes.")
    numbered = all(name.lstrip("-").isdecimal() for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if numbered else 0, name)))


def class_numbers(y: Any, names: Sequence[str]) -> np.ndarray:
    """The place of each label among the names of the classes."""
    places = {name: place for place, name in enumerate(names)}
    texts, rows = _label_texts(y)
    if strange := [text for text in texts if text not in places]:
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise UserError(
            f"The label {strange[0]!r} is not one of the {len(names)} classes ({listed}); remove such examples."
        )
    numbers: np.ndarray = np.array([places[text] for text in texts], np.int64)[rows]
    return numbers


def _label_texts(labels: Any) -> tuple[list[str], np.ndarray]:
    """The different labels as texts, and the place of each label among them; numbers have no point and no exponent."""
    values = np.asarray(_numpy(labels))
    if values.dtype == object and all(isinstance(value, str) for value in values.ravel().tolist()):
        values = values.astype(str)
    if values.ndim == 1 and values.dtype.kind in "biufU":
        values = values.astype(int) if values.dtype.kind == "b" else values
        distinct, places = np.unique(values, return_inverse=True)
        texts = [str(value) for value in distinct.tolist()]
        try:
            numbers = [float(text) for text in texts]
        except ValueError:
            return texts, places
        if all(number.is_integer() for number in numbers):
            whole = (re.fullmatch(r"-?[0-9]+", text) for text in texts)
            return [
                text if kept else str(int(number))
                for text, kept, number in zip(texts, whole, numbers, strict=True)
            ], places
    raise UserError("Give one label per example, a whole number or a name, and none missing.")


def prepare_part(name: str, part: Part) -> tuple[Any, Any, Any]:
    """Inputs of one part as models take them, labels or None as they are, and groups or None."""
    x, prepare = _inputs(name, part.x)
    if part.y is not None:
        _same_length(name, part._replace(x=x))
    return prepare(x), part.y, part.groups


def _inputs(name: str, x: Any) -> tuple[Any, Prepare]:
    """Inputs in the form that is stored, and how they are prepared."""
    if isinstance(x, Pictures):
        return x, Scaled()
    if isinstance(x, Rows):
        return x, identity
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        if x.dtype == torch.float32:
            return _finite(name, x), identity
        x = x.to(torch.float32).numpy() if x.dtype == torch.bfloat16 else x.numpy()
    x = x if isinstance(x, np.ndarray) else np.asarray(x)
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise UserError(f"The inputs of {name} must be numbers, one row per example.")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else x
        last = x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
        return x.transpose(0, 3, 1, 2) if last else x, Scaled()
    if x.dtype != np.float32:
        x = x.astype(np.float32)
    return _finite(name, x), identity


def _finite(name: str, x: Any) -> Any:
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096]
        if not (block.isfinite() if isinstance(block, torch.Tensor) else np.isfinite(block)).all():
            raise UserError(f"The inputs of {name} hold a value that is not finite; replace or remove it.")
    return x


def _group_names(groups: Any) -> np.ndarray | None:
    return None if groups is None else np.array([str(name) for name in _numpy(groups)])


def _domain_names(name: str, train: Part, listed: Sequence[Any] | None) -> tuple[str, ...]:
    """The domains in the order in which they first appear, as they are listed, or by what orders them."""
    if train.domain is None:
        if listed is not None or train.order is not None:
            raise UserError(
                f"task_order is the order of domains; say with domain= to which one each row of {name} belongs."
            )
        return ()
    texts = [str(value) for value in np.asarray(_numpy(train.domain)).tolist()]
    names = list(dict.fromkeys(texts))
    if train.order is not None:
        values = np.asarray(texts)
        names.sort(key=lambda domain: train.order[values == domain].min())
    if listed is None:
        return tuple(names)
    if sorted(wanted := [str(domain) for domain in listed]) != sorted(names):
        raise UserError(f"task_order must list each domain of {name} once: {', '.join(names)}.")
    return tuple(wanted)


def _domain_places(name: str, domain: Any, names: tuple[str, ...]) -> np.ndarray | None:
    if domain is None:
        return None
    places = {text: place for place, text in enumerate(names)}
    texts = [str(value) for value in np.asarray(_numpy(domain)).tolist()]
    if strange := [text for text in texts if text not in places]:
        raise UserError(
            f"The test part of {name} has the domain {strange[0]!r}, which the training part does not have; remove it."
        )
    return np.array([places[text] for text in texts])
