"""Methods that keep statistics of frozen features: accuracy and hold-out bounds on class-incremental streams.

python benchmarks/frozen_features.py FOLDER [--seeds 0 1 2] [--methods ncm slda ranpac] [--streams CIFAR-10-5 ...]

FOLDER holds NAME.npz with x_train, x_test (bytes; feature = x * scale), y_train, y_test and scale. A share of each task is
learned; the bound is that on the rest, per task, all tasks together at confidence 95 %, mean over tasks. The accuracy is that on
the test part, mean over tasks, after the last task. Any method that takes a linear head can be named, such as replay.
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from cop2l.bounds import holdout_certificate
from cop2l.methods import method
from cop2l.models import build
from cop2l.streams import from_arrays
from cop2l.streams.withhold import withhold

STREAMS = {
    "CIFAR-10-5": ("cifar10-dinov2-vits14-224", 5),
    "CIFAR-100-10": ("cifar100-dinov2-vits14-224", 10),
    "CIFAR-100-20": ("cifar100-dinov2-vits14-224", 20),
    "CIFAR-100-10 (70 px)": ("cifar100-dinov2-vits14-70", 10),
    "TinyImageNet-40": ("tinyimagenet-dinov2-vits14-224", 40),
}
OPTIONS = {"ranpac": {"random_features": 3000}}


def arrays(path):
    """Features and labels, training part first."""
    with np.load(path) as file:
        return [
            value
            for part in ("train", "test")
            for value in (file[f"x_{part}"] * file["scale"], file[f"y_{part}"].astype(np.int64))
        ]


def run(name, stream, held, seed):
    """Accuracy, mean bound, seconds of learning, and the learner."""
    model = build("linear", inputs=stream[0].x.shape[1:], classes=stream.classes, seed=seed)
    learner = method(name)(model, seed=seed, **OPTIONS.get(name, {}))
    parts, seconds = [withhold(task, held, seed) for task in stream], 0.0
    for learned, _ in parts:
        began = time.perf_counter()
        learner.learn(learned.x, learned.y)
        seconds += time.perf_counter() - began
    accuracy = statistics.mean(
        float(np.mean(learner.predict(task.x).numpy() == task.y)) for task in stream.test
    )
    bounds = [
        holdout_certificate(
            len(rest.y),
            int((learner.predict(rest.x).numpy() != rest.y).sum()),
            len(parts),
            math.log(0.05),
        )
        for _, rest in parts
    ]
    return accuracy, statistics.mean(map(float, bounds)), seconds, learner


def spread(values, digits):
    """Mean, and the standard deviation where there are several."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the features lie")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["ncm", "slda", "ranpac"])
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=STREAMS)
    parser.add_argument("--share", type=float, default=0.2, help="the part of each task that is learned")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| stream | method | accuracy (%) | hold-out bound | seconds | examples kept |")
    print("|---" * 6 + "|", flush=True)
    for title in given.streams:
        source, tasks = STREAMS[title]
        stream = from_arrays(*arrays(given.folder / f"{source}.npz"), tasks=tasks)
        for name in given.methods:
            runs = [run(name, stream, 1 - given.share, seed) for seed in given.seeds]
            accuracies, bounds, seconds, learners = zip(*runs, strict=True)
            cells = [spread([100 * a for a in accuracies], 2), spread(bounds, 4)]
            cells += [f"{statistics.mean(seconds):.1f}"]
            cells += [f"{learners[-1].memory_used}"]
            print("| " + " | ".join([title, name, *cells]) + " |", flush=True)
    print("TinyImageNet's pictures are among those that the backbone learned from: its bounds are not valid.")
