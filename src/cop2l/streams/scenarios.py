"""Splitting labelled data into a class-, task- or domain-incremental stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from cop2l.errors import UserError, unknown
from cop2l.randomness import marks
from cop2l.streams.encoding import Encoder, Rows
from cop2l.streams.pictures import Pictures
from cop2l.streams.preparing import Preparing
from cop2l.streams.task import SCENARIOS, Scenario, Stream, Task, fingerprint, take_rows
from cop2l.text import count

Prepare = Callable[[Any], Any]
REVERSED = "reversed"


class Split(TypedDict, total=False):
    """Options of the split into tasks, and of their order."""

    tasks: int | None
    task_classes: Sequence[Sequence[Any]] | None
    """The classes of each task, all by name or all by number."""
    class_seed: int | None
    """Shuffles the classes before they are split into tasks."""
    order: str | None
    """`reversed` puts the last task first."""
    order_seed: int | None
    """Draws the order of the tasks, and does not change their classes."""
    examples: int | None
    """Number of training examples to draw from all, for a short run."""


def identity(x: Any) -> Any:
    """The preparation of data that needs none."""
    return x


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled data with a test part, before the split into tasks. Labels are 0..classes-1."""

    name: str
    x: Any
    """Stored rows: an array, `Pictures`, or `Rows` of a table."""
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    names: tuple[str, ...]
    """The label set, fixed in advance: the name of each class."""
    tasks: int = 1
    """The usual number of tasks."""
    prepare: Prepare = identity
    """From stored rows (pictures are uint8) to inputs of a model (float32)."""
    domain: np.ndarray | None = None
    """The domain of each example."""
    domain_test: np.ndarray | None = None
    domain_names: Sequence[Any] = ()
    """The domains in the order of the tasks; without it, their own order."""
    group: np.ndarray | None = None
    """The name of each example's group."""
    group_test: np.ndarray | None = None
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Size of the label set."""
        return len(self.names)

    def fingerprints(self) -> dict[str, str]:
        """One fingerprint for the training part and one for the test part."""
        parts = {"train": (self.x, self.y), "test": (self.x_test, self.y_test)}
        return {
            part: x.fingerprint(y) if isinstance(x, Pictures | Rows) else fingerprint(x, y)
            for part, (x, y) in parts.items()
        }


@dataclass(frozen=True, eq=False)
class LazyTasks(Sequence[Task]):
    """Tasks that are prepared when they are used, so that memory holds the stored rows alone."""

    x: Any
    y: np.ndarray
    rows: Sequence[np.ndarray]
    prepare: Sequence[Prepare]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LazyTasks(self.x, self.y, self.rows[index], self.prepare[index], self.numbers[index])
        rows = self.rows[index]
        return Task(self.prepare[index](take_rows(self.x, rows)), self.y[rows], self.numbers[index])


def shuffled_order(seed: int, purpose: str, *numbers: int, n: int) -> np.ndarray:
    """0..n-1 in a random order that depends on (seed, purpose, numbers, n) alone."""
    return np.argsort(marks(seed, purpose, *numbers, n=n), kind="stable")


def task_sequence(tasks: int, split: Split) -> list[int]:
    """The order of the tasks, which are numbered from 0 as they are split.

    >>> task_sequence(3, {}), task_sequence(3, {"order": "reversed"})
    ([0, 1, 2], [2, 1, 0])
    """
    order, seed = split.get("order"), split.get("order_seed")
    if order not in (None, REVERSED):
        raise unknown("order of tasks", str(order), (REVERSED,))
    if seed is None:
        return list(range(tasks))[:: -1 if order else 1]
    if order:
        raise UserError("The order of the tasks is either reversed or drawn; leave out order or order_seed.")
    return [int(task) for task in shuffled_order(seed, "task order", n=tasks)]


def class_groups(classes: int, tasks: int, class_seed: int | None = None) -> tuple[tuple[int, ...], ...]:
    """The classes of each task: equal groups of consecutive classes, or of classes shuffled by `class_seed`.

    >>> class_groups(6, 3)
    ((0, 1), (2, 3), (4, 5))
    """
    if tasks < 1 or classes % tasks:
        fitting = ", ".join(str(t) for t in range(1, classes + 1) if classes % t == 0)
        raise UserError(
            f"{classes} classes cannot be split into {tasks} equal tasks; choose one of: {fitting}, or list the classes of each"
            " task with task_classes=."
        )
    order = np.arange(classes) if class_seed is None else shuffled_order(class_seed, "class order", n=classes)
    return tuple(tuple(int(c) for c in group) for group in order.reshape(tasks, -1))


def draw_examples(data: Labelled, examples: int | None) -> Labelled:
    """The data with this many training examples, drawn from all, and the whole test part."""
    if examples is None:
        return data
    if not isinstance(examples, int) or not 1 <= examples <= len(data.y):
        raise UserError(f"examples is {examples!r}; give a whole number from 1 to {len(data.y)}.")
    rows = np.sort(shuffled_order(0, "examples", n=len(data.y))[:examples])
    domain, group = (None if values is None else values[rows] for values in (data.domain, data.group))
    return replace(data, x=take_rows(data.x, rows), y=data.y[rows], domain=domain, group=group)


def split_into_tasks(
    data: Labelled, scenario: str, *, preparing: Preparing | None = None, **split: Unpack[Split]
) -> Stream:
    """The stream of one scenario.

    Class- and task-incremental: each task has new classes. Domain-incremental: every task has the same classes and
    other inputs. The tasks are the domains of the data, such as a site or a year. In data without domains they are
    groups of classes, and a label is the number of the class in its group. `preparing` rows of the first task
    decide about gaps and categories of a table that are not declared.
    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if undeclared := sorted(set(split) - set(Split.__annotations__)):
        raise unknown("option of a stream", undeclared[0], Split.__annotations__)
    data = draw_examples(data, split.get("examples"))
    names: tuple[str, ...] = ()
    if scenario == "domain-incremental" and data.domain is not None and data.domain_test is not None:
        domains = _ordered_domains(data, split)
        names = tuple(map(str, domains))
        heads = (tuple(range(data.classes)),) * len(names)
        train, test = (
            [np.flatnonzero(part == d) for d in domains] for part in (data.domain, data.domain_test)
        )
    else:
        heads = _task_classes(data, split)
        train, test = ([np.flatnonzero(np.isin(y, head)) for head in heads] for y in (data.y, data.y_test))
        if scenario == "domain-incremental":
            data, heads = _number_within_tasks(data, heads)
    if empty := [number for number, rows in enumerate(train, 1) if not len(rows)]:
        raise UserError(
            f"Task {empty[0]} of {data.name} would have no training example; choose fewer tasks, or list the classes of each"
            " task with task_classes=."
        )
    description: dict[str, Any] = {"task_names": list(names)} if names else {}
    prepare: Prepare = data.prepare
    if isinstance(data.x, Rows):
        part = (
            take_rows(data.x, train[0][np.flatnonzero(preparing.rows(len(train[0])))]) if preparing else None
        )
        prepare = Encoder.fit(data.name, [data.x, data.x_test], part)
        description["inputs"] = {**data.description["inputs"], "columns": prepare.columns}
    stream = lazy_stream(
        data, scenario, split, heads=heads, train=train, test=test, prepare=(prepare,) * len(heads)
    )
    return replace(stream, task_names=names, description=stream.description | description)


def lazy_stream(
    data: Labelled,
    scenario: Scenario,
    split: Split,
    *,
    heads: tuple[tuple[int, ...], ...],
    train: Sequence[np.ndarray],
    test: Sequence[np.ndarray],
    prepare: Sequence[Prepare],
) -> Stream:
    """The stream whose tasks have these rows of the training and of the test part, and its description."""
    numbers = range(1, len(heads) + 1)
    return Stream(
        name=data.name,
        scenario=scenario,
        train=LazyTasks(data.x, data.y, train, prepare, numbers),
        test=LazyTasks(data.x_test, data.y_test, test, prepare, numbers),
        classes=data.classes,
        heads=heads,
        groups=() if data.group is None else tuple(data.group[rows] for rows in train),
        test_groups=() if data.group_test is None else tuple(data.group_test[rows] for rows in test),
        description=data.description
        | {
            "name": data.name,
            "scenario": scenario,
            "tasks": len(heads),
            "class_seed": split.get("class_seed"),
            "order": split.get("order"),
            "order_seed": split.get("order_seed"),
            "class_names": list(data.names),
            "fingerprint": data.description.get("fingerprint") or data.fingerprints(),
        },
    )


def _ordered_domains(data: Labelled, split: Split) -> list[Any]:
    domains = data.domain_names or np.unique(np.asarray(data.domain)).tolist()
    if split.get("tasks") not in (None, len(domains)):
        raise UserError(
            f"The tasks of {data.name} are its {count(len(domains), 'domain')}; leave out tasks={split['tasks']}."
        )
    if split.get("class_seed") is not None or split.get("task_classes") is not None:
        raise UserError(
            f"The tasks of {data.name} are its domains, not groups of classes; leave out class_seed and task_classes."
        )
    return [domains[number] for number in task_sequence(len(domains), split)]


def _task_classes(data: Labelled, split: Split) -> tuple[tuple[int, ...], ...]:
    tasks, class_seed = split.get("tasks"), split.get("class_seed")
    if split.get("task_classes") is None:
        groups = class_groups(data.classes, data.tasks if tasks is None else tasks, class_seed)
    else:
        if class_seed is not None:
            raise UserError("task_classes lists the classes of each task; leave out class_seed.")
        groups = _numbered_classes(data, split["task_classes"])
        if tasks not in (None, len(groups)):
            raise UserError(
                f"task_classes lists the classes of {count(len(groups), 'task')}; leave out tasks={tasks}."
            )
    return tuple(groups[task] for task in task_sequence(len(groups), split))


def _numbered_classes(data: Labelled, task_classes: Any) -> tuple[tuple[int, ...], ...]:
    """The classes of each task by number, from lists of all names or all numbers."""
    places = {name: number for number, name in enumerate(data.names)}
    try:
        by_name = all(str(c) in places for group in task_classes for c in group)
        groups = tuple(tuple(places[str(c)] if by_name else int(c) for c in group) for group in task_classes)
    except (TypeError, ValueError):  # no lists, or neither names nor numbers in them
        groups = ()
    classes = [c for group in groups for c in group]
    disjoint = len(set(classes)) == len(classes)
    if not groups or not all(groups) or not disjoint or not set(classes) <= set(range(data.classes)):
        raise UserError(
            f"task_classes is {task_classes!r}; give disjoint lists of classes, by name or between 0 and {data.classes - 1}."
        )
    return groups


def _number_within_tasks(
    data: Labelled, groups: tuple[tuple[int, ...], ...]
) -> tuple[Labelled, tuple[tuple[int, ...], ...]]:
    """The data with the number of each class in its task as the label, and the heads."""
    size = len(groups[0])
    if any(len(group) != size for group in groups):
        raise UserError(
            "The tasks of a domain-incremental stream must have the same number of classes; correct task_classes."
        )
    number = np.zeros(data.classes, np.int64)
    for group in groups:
        number[list(group)] = np.arange(size)
    renumbered = replace(
        data,
        y=number[data.y],
        y_test=number[data.y_test],
        names=tuple(map(str, range(size))),
        description=data.description | {"task_classes": [list(group) for group in groups]},
    )
    return renumbered, (tuple(range(size)),) * len(groups)
