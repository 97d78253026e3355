"""A generated stream of payments: a rare class, fraud, and regions as groups."""

from typing import Any

import numpy as np

from cop2l.errors import UserError
from cop2l.randomness import marks
from cop2l.streams.fingerprints import fingerprint_of_tasks
from cop2l.streams.task import Stream, Task

REGIONS = ("north", "south", "west")
SHARES = (0.5, 0.3, 0.2)
DISTANCE = (5.0, 4.0, 3.0)
"""How far fraud lies from other payments in each region."""
FEATURES = 6


def payments(
    tasks: int = 3,
    n: int = 20000,
    *,
    scenario: str = "domain-incremental",
    fraud: float = 0.011,
    n_test: int = 20000,
    seed: int = 0,
) -> Stream:
    """Payments of one quarter after the other; class 1 is fraud, and its habits change with every quarter.

    A row is six numbers and the region as three more. Examples are drawn independently; what fraud looks like is fixed.

    >>> stream = payments(tasks=2, n=1000)
    >>> stream[0].x.shape, sorted(set(stream.groups[0].tolist())), stream.scenario
    ((1000, 9), ['north', 'south', 'west'], 'domain-incremental')
    """
    if scenario != "domain-incremental":
        raise UserError(f"The stream payments is domain-incremental, not {scenario}; leave out scenario.")
    if min(tasks, n, n_test) < 1 or not 0 < fraud < 1:
        raise UserError("A stream of payments needs positive numbers, and a share of fraud between 0 and 1.")
    parts = {
        part: [_quarter(t, size, fraud, seed, part) for t in range(1, tasks + 1)]
        for part, size in (("train", n), ("test", n_test))
    }
    (train, groups), (test, test_groups) = (zip(*parts[part], strict=True) for part in ("train", "test"))
    described: dict[str, Any] = {"tasks": tasks, "n": n, "fraud": fraud, "n_test": n_test, "seed": seed}
    prints = {part: fingerprint_of_tasks([task for task, _ in made]) for part, made in parts.items()}
    return Stream(
        name="payments",
        scenario="domain-incremental",
        train=train,
        test=test,
        classes=2,
        heads=((0, 1),) * tasks,
        groups=groups,
        test_groups=test_groups,
        description={
            "name": "payments",
            "scenario": "domain-incremental",
            **described,
            "fingerprint": prints,
        },
    )


def _quarter(t: int, n: int, fraud: float, seed: int, part: str) -> tuple[Task, np.ndarray]:
    uniform = [(marks(seed, f"payments {part}", t, j, n=n) + 0.5) / 2.0**64 for j in range(FEATURES + 2)]
    y = (uniform[0] < fraud).astype(np.int64)
    region = np.searchsorted(np.cumsum(SHARES), uniform[1]).clip(max=len(REGIONS) - 1)
    habit = np.zeros(FEATURES)
    habit[[0, 1 + (t - 1) % (FEATURES - 1)]] = 1  # one sign stays, another moves on
    noise = np.stack([np.log(u / (1 - u)) for u in uniform[2:]], axis=1)
    x = noise + (y * np.array(DISTANCE)[region])[:, None] * habit
    rows = np.concatenate([x, np.eye(len(REGIONS))[region]], axis=1).astype(np.float32)
    return Task(rows, y, t), np.array(REGIONS)[region]
