"""CPU milliseconds of a task after many tasks: a whole run on one thread.

200 tasks of 60 examples (a domain-incremental stream of clouds of points), a certificate after each task; medians over ten
tasks.

python benchmarks/many_tasks.py [--tasks 200] [--preset picking] [--iterations 1024] [--json FILE]
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from typing import Any

import torch

from cop2l.console import Watcher
from cop2l.errors import Advice
from cop2l.experiments import grid, measure
from cop2l.experiments.directory import RunDirectory
from cop2l.experiments.run import run
from cop2l.learner.cop2l import CoP2L
from record import record

PARTS = ("learn", "evaluate", "certify", "store")
TASKS, SHOWN = 200, (1, 10, 50, 100, 150, 200)
SIZE, MEMORY = 60, 600


class Clock(Watcher):
    """CPU seconds of every part of every task, and its iterations."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, float]] = [defaultdict(float)]
        for owner, name in (
            (CoP2L, "learn"),
            (measure, "evaluate"),
            (measure, "certify"),
            (RunDirectory, "store"),
        ):
            setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, function: Any) -> Any:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.tasks[-1][name] += time.process_time() - begin

        return timed

    def progress(self, event: dict[str, Any]) -> None:
        self.tasks[-1]["iterations"] = event["iteration"]

    def task(self, record: dict[str, Any]) -> None:  # noqa: ARG002
        self.tasks.append(defaultdict(float))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--preset", default="picking")
    parser.add_argument("--iterations", type=int, default=1024, help="of a task at most")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    changes = [f"tasks={arguments.tasks}", f"methods.cop2l.preset={arguments.preset}"]
    changes += ["scenario=domain-incremental", "anytime=true", f"memory={MEMORY}", "model=linear"]
    changes += [
        f"data.n={SIZE}",
        f"data.n_test={SIZE}",
        f"methods.cop2l.max_iterations={arguments.iterations}",
    ]
    config, clock = grid.single_run(grid.read_configuration("synthetic"), grid.overrides(changes)), Clock()
    with tempfile.TemporaryDirectory() as folder:
        run(config, folder, [clock])
    rows = []
    print("CPU ms per task  iterations", *(f"{part:>9}" for part in PARTS))
    for t in [t for t in SHOWN if t <= arguments.tasks]:
        last = clock.tasks[max(0, t - 10) : t] if t > 1 else clock.tasks[:1]
        row = {part: 1000 * statistics.median(task[part] for task in last) for part in PARTS}
        row |= {"task": t, "iterations": statistics.median(task["iterations"] for task in last)}
        rows.append(row)
        print(f"task {t:4d}        {row['iterations']:10.0f}", *(f"{row[part]:9.1f}" for part in PARTS))
    record(arguments.json, "many_tasks", vars(arguments), rows)


if __name__ == "__main__":
    main()
