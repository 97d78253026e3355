"""How labelled data is split into a stream: class-, task- and domain-incremental."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from cop2l.errors import UserError, unknown
from cop2l.randomness import marks
from cop2l.streams.encoding import Encoder, Rows
from cop2l.streams.pictures import Pictures
from cop2l.streams.task import SCENARIOS, Stream, Task, fingerprint, take_rows
from cop2l.streams.withhold import prior_rows

Prepare = Callable[[Any], Any]
Prior = tuple[float, int, float]
"""The share of the prior part, the seed that draws it, and the share that is withheld from learning before."""
REVERSED = "reversed"


class Split(TypedDict, total=False):
    """How data is split into tasks, and in which order these come."""

    tasks: int | None
    task_classes: Sequence[Sequence[Any]] | None
    """The classes of each task, all by their names or all by their numbers."""
    class_seed: int | None
    """Shuffles the classes before they are split into tasks: it changes which classes a task has."""
    order: str | None
    """`reversed`: the last task comes first."""
    order_seed: int | None
    """Draws the order of the tasks: which classes a task has stays."""
    examples: int | None
    """So many training examples are drawn from all of them, for a short run."""


def identity(x: Any) -> Any:
    """The preparation of data that is ready to use."""
    return x


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled data with a test part, before it is split. Labels are 0..classes-1."""

    name: str
    x: Any
    """Rows as stored: an array, or `Pictures` that are decoded when asked for."""
    y: np.ndarray
    x_test: Any
    y_test: np.ndarray
    names: tuple[str, ...]
    """The label set, fixed in advance: the name of each class."""
    tasks: int = 1
    """Into how many tasks it is split by default."""
    prepare: Prepare = identity
    """From stored rows (pictures are uint8) to what a model reads (float32)."""
    domain: np.ndarray | None = None
    """The domain of each example, as its place among `domain_names`."""
    domain_test: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    group: np.ndarray | None = None
    """The name of each example's group."""
    group_test: np.ndarray | None = None
    description: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.domain is not None and not self.domain_names:
            object.__setattr__(self, "domain_names", tuple(map(str, range(int(self.domain.max()) + 1))))

    @property
    def classes(self) -> int:
        """Size of the label set."""
        return len(self.names)

    def fingerprints(self) -> dict[str, str]:
        """What the stored data is: one fingerprint per part."""
        parts = {"train": (self.x, self.y), "test": (self.x_test, self.y_test)}
        return {
            part: x.fingerprint(y) if isinstance(x, Pictures | Rows) else fingerprint(x, y)
            for part, (x, y) in parts.items()
        }


@dataclass(frozen=True, eq=False)
class Part(Sequence[Task]):
    """Tasks that are made when asked for, from rows of one array: only the stored rows stay in memory."""

    x: Any
    y: np.ndarray
    rows: Sequence[np.ndarray]
    prepare: Sequence[Prepare]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "Part": ...
    def __getitem__(self, index: int | slice) -> "Task | Part":
        if isinstance(index, slice):
            return Part(self.x, self.y, self.rows[index], self.prepare[index], self.numbers[index])
        rows = self.rows[index]
        return Task(self.prepare[index](take_rows(self.x, rows)), self.y[rows], self.numbers[index])


def shuffled_order(seed: int, purpose: str, *numbers: int, n: int) -> np.ndarray:
    """0..n-1 in an order that is a function of (seed, purpose, numbers, n)."""
    return np.argsort(marks(seed, purpose, *numbers, n=n), kind="stable")


def task_sequence(tasks: int, how: Split) -> list[int]:
    """The tasks, numbered from 0 as they are split, in the order in which they come.

    >>> task_sequence(3, {}), task_sequence(3, {"order": "reversed"})
    ([0, 1, 2], [2, 1, 0])
    """
    order, seed = how.get("order"), how.get("order_seed")
    if order not in (None, REVERSED):
        raise unknown("order of tasks", str(order), (REVERSED,))
    if seed is None:
        return list(range(tasks))[:: -1 if order else 1]
    if order:
        raise UserError("The order of the tasks is reversed or drawn; leave out order or order_seed.")
    return [int(task) for task in shuffled_order(seed, "task order", n=tasks)]


def class_groups(classes: int, tasks: int, class_seed: int | None = None) -> tuple[tuple[int, ...], ...]:
    """The classes of each task: equal consecutive groups, after a shuffle by seed on request.

    >>> class_groups(6, 3)
    ((0, 1), (2, 3), (4, 5))
    """
    if tasks < 1 or classes % tasks:
        fitting = ", ".join(str(t) for t in range(1, classes + 1) if classes % t == 0)
        raise UserError(
            f"{classes} classes cannot be split into {tasks} equal tasks; choose one of: {fitting}, or list the classes of each"
            " with task_classes."
        )
    order = np.arange(classes) if class_seed is None else shuffled_order(class_seed, "class order", n=classes)
    return tuple(tuple(int(c) for c in group) for group in order.reshape(tasks, -1))


def draw_examples(data: Labelled, examples: int | None) -> Labelled:
    """The data with so many training examples, drawn from all; the test part stays."""
    if examples is None:
        return data
    if not isinstance(examples, int) or not 1 <= examples <= len(data.y):
        raise UserError(f"examples is {examples!r}; give a whole number from 1 to {len(data.y)}.")
    rows = np.sort(shuffled_order(0, "examples", n=len(data.y))[:examples])
    domain, group = (None if values is None else values[rows] for values in (data.domain, data.group))
    return replace(data, x=take_rows(data.x, rows), y=data.y[rows], domain=domain, group=group)


def split_into_tasks(
    data: Labelled, scenario: str, *, prior: Prior | None = None, **how: Unpack[Split]
) -> Stream:
    """The stream of one scenario.

    Class- and task-incremental: each task brings new classes. Domain-incremental: the same classes in every task,
    inputs that change. Its tasks are the data's domains where it has them (a site, a year). Otherwise groups of classes
    are the domains, and a label is the number of the class within its group. The `prior` part of the first task decides
    about gaps and categories of a table, where nothing is declared.
    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if strange := sorted(set(how) - set(Split.__annotations__)):
        raise unknown("option of a stream", strange[0], Split.__annotations__)
    data = draw_examples(data, how.get("examples"))
    names: tuple[str, ...] = ()
    if scenario == "domain-incremental" and data.domain is not None and data.domain_test is not None:
        order = _domain_order(data, how)
        names = tuple(data.domain_names[d] for d in order)
        heads = (tuple(range(data.classes)),) * len(order)
        train, test = (
            [np.flatnonzero(d == place) for place in order] for d in (data.domain, data.domain_test)
        )
    else:
        heads = _task_classes(data, how)
        train, test = ([np.flatnonzero(np.isin(y, head)) for head in heads] for y in (data.y, data.y_test))
        if scenario == "domain-incremental":
            data, heads = _numbered_within_tasks(data, heads)
    for number, rows in enumerate(train, 1):
        if not len(rows):
            raise UserError(
                f"Task {number} of {data.name} would have no training example; choose fewer tasks, or list the classes of"
                " each with task_classes."
            )
    prepare: Prepare = data.prepare
    described = describe(data, scenario, len(train), how)
    if isinstance(data.x, Rows):
        known = take_rows(data.x, train[0][prior_rows(len(train[0]), *prior)]) if prior else None
        prepare = Encoder.fit(data.name, [data.x, data.x_test], known)
        described["inputs"] = {**described["inputs"], "columns": prepare.columns}
    numbers = range(1, len(train) + 1)
    return Stream(
        name=data.name,
        scenario=scenario,
        train=Part(data.x, data.y, train, (prepare,) * len(train), numbers),
        test=Part(data.x_test, data.y_test, test, (prepare,) * len(train), numbers),
        classes=data.classes,
        heads=heads,
        task_names=names,
        groups=task_groups(data.group, train),
        test_groups=task_groups(data.group_test, test),
        description=described | ({"task_names": list(names)} if names else {}),
    )


def _domain_order(data: Labelled, how: Split) -> list[int]:
    number = len(data.domain_names)
    if how.get("tasks") not in (None, number):
        raise UserError(
            f"{data.name} has {number} domains, so it makes {number} tasks; leave out tasks={how['tasks']}."
        )
    if how.get("class_seed") is not None or how.get("task_classes") is not None:
        raise UserError(
            f"The tasks of {data.name} are its domains, not groups of classes; leave out class_seed and task_classes."
        )
    return task_sequence(number, how)


def _task_classes(data: Labelled, how: Split) -> tuple[tuple[int, ...], ...]:
    tasks, class_seed, listed = how.get("tasks"), how.get("class_seed"), how.get("task_classes")
    if listed is None:
        groups = class_groups(data.classes, data.tasks if tasks is None else tasks, class_seed)
        return tuple(groups[task] for task in task_sequence(len(groups), how))
    if class_seed is not None:
        raise UserError("task_classes lists the classes of each task; leave out class_seed.")
    places = {name: number for number, name in enumerate(data.names)}
    try:
        named = all(str(c) in places for group in listed for c in group)
        given = tuple(tuple(places[str(c)] if named else int(c) for c in group) for group in listed)
    except (TypeError, ValueError):  # no lists, or neither names nor numbers in them
        given = ()
    flat = [c for group in given for c in group]
    whole = given and all(given) and len(set(flat)) == len(flat)
    if not whole or not set(flat) <= set(range(data.classes)):
        raise UserError(
            f"Give task_classes as disjoint lists of classes, by name or between 0 and {data.classes - 1}, not {listed!r}."
        )
    if tasks not in (None, len(given)):
        raise UserError(f"{len(given)} lists of classes make {len(given)} tasks; leave out tasks={tasks}.")
    return tuple(given[task] for task in task_sequence(len(given), how))


def _numbered_within_tasks(
    data: Labelled, sets: tuple[tuple[int, ...], ...]
) -> tuple[Labelled, tuple[tuple[int, ...], ...]]:
    """The data with the number of each class within its task as its label, and the heads."""
    size = len(sets[0])
    if any(len(group) != size for group in sets):
        raise UserError(
            "The tasks of a domain-incremental stream must have the same number of classes; correct task_classes."
        )
    number = np.zeros(data.classes, np.int64)
    for group in sets:
        number[list(group)] = np.arange(size)
    renumbered = replace(
        data,
        y=number[data.y],
        y_test=number[data.y_test],
        names=tuple(map(str, range(size))),
        description=data.description | {"task_classes": [list(group) for group in sets]},
    )
    return renumbered, (tuple(range(size)),) * len(sets)


def task_groups(names: np.ndarray | None, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The groups of each task's examples; nothing where there are no groups."""
    return () if names is None else tuple(names[part] for part in rows)


def describe(data: Labelled, scenario: str, tasks: int, how: Split) -> dict[str, Any]:
    """How the stream was made, with the fingerprints of the stored data."""
    return data.description | {
        "name": data.name,
        "scenario": scenario,
        "tasks": tasks,
        "class_seed": how.get("class_seed"),
        "order": how.get("order"),
        "order_seed": how.get("order_seed"),
        "class_names": list(data.names),
        "fingerprint": data.description.get("fingerprint") or data.fingerprints(),
    }
