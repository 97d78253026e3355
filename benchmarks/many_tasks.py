"""What a task costs when there were many before: learning, certifying from all data, and saving, task by task.

200 tasks of 60 examples (a domain-incremental stream of clouds of points), one thread. CPU seconds of a task, so that
neighbours on the machine do not count; means over ten tasks.
"""

import sys
import tempfile
import time

import numpy as np
import torch

TASKS, ROWS, WIDTH, CLASSES = 200, 60, 32, 4


def main():
    torch.set_num_threads(1)
    from cop2l.certify.learner import CoP2L
    from cop2l.models import build

    draw = np.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, WIDTH))
    preset = sys.argv[1] if len(sys.argv) > 1 else "certified"
    learner = CoP2L(
        build("linear", inputs=(WIDTH,), classes=CLASSES, seed=0),
        scenario="domain-incremental",
        preset=preset,
        memory=600,
    )
    data, seconds = {}, np.zeros((TASKS, 3))
    with tempfile.TemporaryDirectory() as folder:
        for t in range(1, TASKS + 1):
            y = draw.integers(CLASSES, size=ROWS)
            data[t] = (centres[y] + 2 * draw.normal(size=(ROWS, WIDTH))).astype(np.float32), y
            times = [time.process_time()]
            for step in (
                lambda t=t: learner.learn(*data[t], progress=False),
                lambda: learner.certify(data),
                lambda: learner.save(folder),
            ):
                step()
                times.append(time.process_time())
            seconds[t - 1] = np.diff(times)
    print(f"{preset}: ms per task   learn  certify   save")
    for t in (1, 10, 50, 100, 200):
        print(
            f"task {t:4d}            ",
            *(f"{1000 * part:7.1f}" for part in seconds[max(0, t - 10) : t].mean(0)),
        )


if __name__ == "__main__":
    main()
