"""A task, and a stream of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from cop2l.text import count

Scenario = Literal["class-incremental", "task-incremental", "domain-incremental"]
SCENARIOS: tuple[Scenario, ...] = ("class-incremental", "task-incremental", "domain-incremental")


class Task(NamedTuple):
    """One task: inputs, labels, and its number, counted from 1.

    `x` is a numpy array, a memory map or a torch tensor, with one row per example. Labels are class numbers of the
    whole stream in every scenario.
    """

    x: Any
    y: Any
    t: int

    def __repr__(self) -> str:
        return f"Task({self.t}, {len(self.y)} examples of shape {tuple(self.x.shape[1:])})"


@dataclass(frozen=True, repr=False)
class Stream(Sequence[Task]):
    """A list of the training tasks; `test` holds the test part of each.

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
    """Number of classes of the whole stream, which is the number of outputs of the model."""
    heads: tuple[tuple[int, ...], ...]
    """The classes of each task, fixed in advance and not found in the data."""
    not_valid: tuple[str, ...] = ()
    """Sentences that say why a certificate on this stream is not valid; empty: no reason is known."""
    pretrained_on: tuple[str, ...] = ()
    """Data sets that the backbone was trained on, if x are features."""
    task_names: tuple[str, ...] = ()
    """The user's names of the tasks, such as Genf or 2019; empty: they only have numbers."""
    groups: tuple[Any, ...] = ()
    """For each task, the group names of its training examples; empty: the data has no groups."""
    test_groups: tuple[Any, ...] = ()
    """The same for the test part."""
    description: dict[str, Any] = field(default_factory=dict)
    """All that is needed to make the stream again: name, options, fingerprints."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.scenario}, {count(len(self), 'task')}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.train)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            names = ("train", "test", "heads", "task_names", "groups", "test_groups")
            return replace(self, **{name: getattr(self, name)[index] for name in names})
        return self.train[index]


def fingerprint(x: Any, y: Any) -> str:
    """The fingerprint of arrays as certificates state it; it depends on the values alone, not on the library."""
    from cop2l.kernel import samples

    return samples.fingerprint(len(x), samples.blocks_of(x, y))


def take_rows(x: Any, rows: np.ndarray) -> Any:
    """These rows of x; a slice if they are consecutive, so that a memory map stays a memory map."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return x[int(rows[0]) : int(rows[-1]) + 1]
    return x[rows]
