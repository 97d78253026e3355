"""Scoring cached features reads them from the file: anonymous memory does not grow with the task."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from cop2l.kernel.exact import sample, score
from cop2l.models import build

STATUS = Path("/proc/self/status")


def anonymous():
    return 1024 * int(re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text())[1])


@pytest.mark.skipif(not STATUS.is_file(), reason="needs /proc")
def test_a_long_task_is_not_copied(tmp_path):
    rows, width = 100_000, 384
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, width))
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    y = torch.arange(rows) % 10
    model = build("linear", inputs=(width,), classes=10, seed=0)
    score(model, sample(x[:512], y[:512], 1, 0))
    before, peak, finished = anonymous(), [0], threading.Event()

    def watch():
        while not finished.wait(0.001):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    errors = score(model, sample(x, y, 1, 0))[1]
    finished.set()
    thread.join()
    assert len(errors) == rows
    assert peak[0] > 0
    assert peak[0] - before < x.nbytes / 4
