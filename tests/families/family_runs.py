"""A small stream of one's own with groups, and runs of it that claim every family."""

import numpy as np

from cop2l.experiments import grid
from cop2l.experiments.run import run

FAMILIES = ["tasks", "average", "forgetting", "classes", "groups"]
GROUPS = ["north", "south"]
SMALL = {"model": "linear", "memory": 40, "tasks": 2, "claim": FAMILIES, "groups": GROUPS}
QUICK = {"epochs": 2, "lr": 0.1}


def arrays(n=240, classes=4, seed=0):
    """Clouds of numbers, no two rows alike, and a group for each."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = (rng.normal(size=(n, 6)) + 2 * np.eye(6)[y]).astype(np.float32)
    return x, y, np.array(GROUPS)[rng.integers(2, size=n)]


def write_data(path, **changes):
    x, y, group = arrays()
    parts = {"x": x, "y": y, "group": group, "x_test": x[:40], "y_test": y[:40], "group_test": group[:40]}
    np.savez(path, **{name: value for name, value in (parts | changes).items() if value is not None})
    return path


def configured(source, **changes):
    return grid.single_run({"stream": str(source), **SMALL, **changes})


def finished_run(folder, source, **changes):
    """A run directory."""
    run(configured(source, **changes), folder)
    return folder
