"""A task, and a stream: a list of tasks that can be looped over, indexed and sliced."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from cop2l.text import count

Scenario = Literal["class-incremental", "task-incremental", "domain-incremental"]
SCENARIOS: tuple[Scenario, ...] = ("class-incremental", "task-incremental", "domain-incremental")


class Task(NamedTuple):
    """One task: inputs, integer labels, and its number, counted from 1.

    `x` is a numpy array (a memory map, too) or a torch tensor, first dimension the examples; labels are
    global class numbers in every scenario.
    """

    x: Any
    y: Any
    t: int

    def __repr__(self) -> str:
        return f"Task({self.t}, {len(self.y)} examples of shape {tuple(self.x.shape[1:])})"


@dataclass(frozen=True, repr=False)
class Stream(Sequence[Task]):
    """The training tasks, as a list; `test` holds the test part of the same split, task by task.

    >>> import numpy as np
    >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    >>> parts = [Task(x[y == c], y[y == c], c + 1) for c in (0, 1)]
    >>> stream = Stream("tiny", "class-incremental", parts, parts, classes=2, heads=((0,), (1,)))
    >>> [(t, len(y)) for x, y, t in stream], len(stream), stream[-1].t, len(stream[:1])
    ([(1, 2), (2, 2)], 2, 2, 1)
    """

    name: str
    scenario: Scenario
    train: Sequence[Task]
    test: Sequence[Task]
    classes: int
    """Size of the label set of the whole stream (outputs of the model)."""
    heads: tuple[tuple[int, ...], ...]
    """The classes of each task, fixed in advance (never read off the data)."""
    not_valid: tuple[str, ...] = ()
    """Why a certificate on this stream is not valid, in sentences; empty: nothing known against it."""
    pretrained_on: tuple[str, ...] = ()
    """Data sets that the representation of x was trained on."""
    task_names: tuple[str, ...] = ()
    """What the user calls the tasks, as Genf or 2019; empty: they have numbers alone."""
    groups: tuple[Any, ...] = ()
    """Of each task, the name of every training example's group, as recorded with the data; empty: none were given."""
    test_groups: tuple[Any, ...] = ()
    """The same of the test part; empty: none were given."""
    description: dict[str, Any] = field(default_factory=dict)
    """How the stream was made: enough to make it again (name, options, fingerprints)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.scenario}, {count(len(self), 'task')}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.train)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.train)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "Stream": ...
    def __getitem__(self, index: int | slice) -> "Task | Stream":
        if isinstance(index, slice):
            names = ("train", "test", "heads", "task_names", "groups", "test_groups")
            return replace(self, **{name: getattr(self, name)[index] for name in names})
        return self.train[index]


def fingerprint(x: Any, y: Any) -> str:
    """The fingerprint of a whole array, as certificates state it: equal data, equal text, whatever holds it."""
    from cop2l.kernel import samples

    return samples.fingerprint(len(x), samples.blocks_of(x, y))


def take_rows(x: Any, rows: np.ndarray) -> Any:
    """The rows of x; a view where they are consecutive, so that a memory map stays one."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return x[int(rows[0]) : int(rows[-1]) + 1]
    return x[rows]
