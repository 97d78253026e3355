"""Memory and CPU seconds of tasks that are memory maps; and the time of one iteration by rows.

python benchmarks/memory_map.py [--tasks 2] [--rows 5000000] [--iterations 3] [--scale 10000 ... 10000000]
                                [--json FILE]

Anonymous memory is the peak above that at the start. Pages of mapped files are not counted, because the system can take them
back. The files are sparse: all rows but one in some thousands are zeros, which need as much arithmetic. One thread, a linear
head.
"""

import argparse
import re
import resource
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.errors import Advice
from cop2l.kernel.exact import exact_arithmetic, sample
from cop2l.learner.cop2l import CoP2L
from cop2l.learner.engine import Engine
from cop2l.learner.presets import options
from cop2l.models import build
from record import record

WIDTH, CLASSES, DRAWN = 384, 10, 2000
ITERATIONS = 3
"""A few: the result is the time of one."""


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


@contextmanager
def watched(row: dict[str, Any]) -> Iterator[None]:
    """Write the rise of anonymous memory and the CPU seconds into a row."""
    before, peak, stop = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.01):
            peak = max(peak, anonymous())

    thread, begin = threading.Thread(target=watch), time.process_time()
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        row["anonymous_bytes"] = max(peak, anonymous()) - before
        row["cpu_seconds"] = time.process_time() - begin


def task(folder: Path, number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A task in a sparse file, as a memory map."""
    file, draw = folder / f"x_{number}.npy", np.random.default_rng(number)
    x = np.lib.format.open_memmap(file, "w+", np.float32, (rows, WIDTH))
    y, centres = np.arange(rows) % CLASSES, draw.normal(size=(CLASSES, WIDTH))
    for row in range(0, rows, max(1, rows // DRAWN)):
        x[row] = centres[y[row]] + draw.normal(size=WIDTH)
    x.flush()
    return np.load(file, mmap_mode="r"), y


def model() -> torch.nn.Module:
    return build("linear", inputs=(WIDTH,), classes=CLASSES, seed=0)


def large(folder: Path, tasks: int, rows: int, iterations: int) -> Iterator[dict[str, Any]]:
    """Learn tasks, certify from all their data, and save."""
    learner = CoP2L(model(), preset="picking", memory=2000, max_iterations=iterations, epochs=1)
    data = {number: task(folder, number, rows) for number in range(1, tasks + 1)}
    for number, (x, y) in data.items():
        row: dict[str, Any] = {"what": f"learn task {number}", "rows": rows, "data_bytes": x.nbytes}
        with watched(row):
            learner.learn(x, y, progress=False)
        yield row
    row = {"what": "certify", "rows": tasks * rows, "data_bytes": sum(x.nbytes for x, _ in data.values())}
    with watched(row):
        learner.certify(data)
    yield row


def iteration(folder: Path, rows: int) -> dict[str, Any]:
    """CPU seconds of one iteration (scoring, picking, training); those of the system, which reads pages, apart."""
    x, y = task(folder, 0, rows)
    times = list[tuple[float, float]]()
    chosen = options(max_iterations=ITERATIONS if rows <= 10**6 else 1, epochs=1)
    engine = Engine(
        model(), chosen, progress=lambda _: times.append(resource.getrusage(resource.RUSAGE_SELF)[:2])
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        S = sample(torch.from_numpy(x), torch.from_numpy(y), 1, 0)
    with exact_arithmetic(1):
        engine.mp2l(S, None)
    user, system = (float(part) for part in np.diff(times, axis=0).mean(0))
    return {"what": "iteration", "rows": rows, "user_seconds": user, "system_seconds": system}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of each of these tasks")
    parser.add_argument("--scale", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    rows = []
    for count in arguments.scale:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(iteration(Path(folder), count))
        user, system = rows[-1]["user_seconds"], rows[-1]["system_seconds"]
        print(f"one iteration, {count:9} rows: {user:8.4f} s, and {system:8.4f} s of the system", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in (
            large(Path(folder), arguments.tasks, arguments.rows, arguments.iterations)
            if arguments.tasks
            else ()
        ):
            rows.append(row)
            size = f"{row['data_bytes'] / 1e9:.1f} GB of data, {row['anonymous_bytes'] / 1e9:.2f} GB of anonymous memory"
            print(f"{row['what']}, {row['rows']} rows: {size}, {row['cpu_seconds']:.0f} s", flush=True)
    record(arguments.json, "memory_map", vars(arguments), rows)


if __name__ == "__main__":
    main()
