"""Anonymous memory while a task of a million rows is scored from a memory map, and while it is learned.

python benchmarks/memory_map.py [--rows 1000000] [--width 384] [--classes 10] [--learn]

Mapped file pages are not counted: the kernel takes them back when it needs them. The file is sparse.
"""

import argparse
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from cop2l.certify.fast import Pool
from cop2l.kernel.learning import Examples, sample
from cop2l.models import build


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def score(model: torch.nn.Module, part: Examples) -> tuple[torch.Tensor, np.ndarray]:
    """Every loss, and every error, as the learner counts them."""
    return Pool(model, [part], None, [1.0]).score(errors=True)


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Print how far anonymous memory rose above where it started."""
    before, peak, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.monotonic()
    try:
        yield
    finally:
        done.set()
        thread.join()
    seconds = time.monotonic() - start
    print(f"{what}: {(max(peak, anonymous()) - before) / 1e6:.0f} MB of anonymous memory, {seconds:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--learn", action="store_true", help="also learn the task with CoP2L, one iteration")
    arguments = parser.parse_args()
    shape = (arguments.rows, arguments.width)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x_train.npy"
        np.lib.format.open_memmap(file, "w+", np.float32, shape)
        x = np.load(file, mmap_mode="c")
        y = np.arange(arguments.rows) % arguments.classes
        model = build("linear", inputs=shape[1:], classes=arguments.classes, seed=0)
        score(
            model, sample(x[:1000], torch.from_numpy(y[:1000]), 1, 0)
        )  # the libraries' own first allocations
        print(f"the data: {x.nbytes / 1e6:.0f} MB in a file")
        with watched("scoring"):
            losses, wrong = score(model, sample(x, torch.from_numpy(y), 1, 0))
        print(f"mean loss {losses[: len(x)].double().mean():.4f}, {int(wrong.sum())} errors")
        if arguments.learn:
            from cop2l.certify.learner import CoP2L

            with watched("learning"):
                CoP2L(model, max_iterations=1, epochs=1).learn(x, y)
