"""What skipping rows gains (`certify/skipping.py`): CPU seconds of learning with it and without, in turn, in one process.

    python benchmarks/skipping.py --features FOLDER [--rounds 3] [--rows 100000 1000000] [--iterations 50 200] [--json FILE]

FOLDER holds the features as in gpu.py. The paper's settings for linear heads, and the defaults; clouds are generated tasks of so
many rows x 384 and 10 classes, and so many iterations. `same`: both ways have the same parameters, picks and errors.
"""

import argparse
import statistics
import time
import warnings

import numpy as np
import torch

from cop2l.certify import skipping
from cop2l.certify.learner import CoP2L
from cop2l.errors import Advice
from cop2l.kernel.learning import digest
from cop2l.models import build
from gpu import HEAD, tasks_of
from record import record

PAPER = {"preset": "paper", **HEAD}


def clouds(rows, width=384, classes=10):
    """One large task."""
    draw = np.random.default_rng(0)
    y, x = draw.integers(classes, size=rows), draw.standard_normal((rows, width), np.float32)
    x += draw.standard_normal((classes, width), np.float32)[y] / 4
    return [(torch.from_numpy(x), y)]


def streams(arguments):
    """Each stream's name, its tasks, how many classes there are, and the options."""
    if arguments.features:
        ten, hundred = (tasks_of(name, arguments.features) for name in ("cifar10", "cifar100"))
        whole = [(torch.cat([torch.as_tensor(x) for x, _ in ten]), np.concatenate([y for _, y in ten]))]
        yield "CIFAR-10, 5 tasks", ten, 10, PAPER
        yield "CIFAR-10, 5 tasks, default settings", ten, 10, {}
        yield "CIFAR-10, 5 tasks, `hybrid`", ten, 10, {"preset": "hybrid"}
        yield "CIFAR-10, one task", whole, 10, PAPER
        yield "CIFAR-10, one task, default settings", whole, 10, {}
        yield "CIFAR-100, first 3 of 10 tasks", hundred[:3], 100, PAPER
        yield "CIFAR-100, first 3 of 10 tasks, default settings", hundred[:3], 100, {}
    for rows in arguments.rows:
        tasks = clouds(rows)
        for iterations in arguments.iterations:
            yield f"clouds, {rows} rows", tasks, 10, {**PAPER, "max_iterations": iterations}


def learned(tasks, classes, options):
    """Seconds, iterations, and all that is learned and said on the way."""
    model = build("linear", inputs=(384,), classes=classes, seed=0)
    learner, iterations, told = CoP2L(model, memory=2000, **options), 0, []
    begin = time.process_time()
    for x, y in tasks:
        learner.learn(x, y, progress=False)
        iterations += learner.engine.sets[-1].stopped + 1
        told.append(learner.engine.trace)
    seconds, sets = time.process_time() - begin, [part.picked.tolist() for part in learner.engine.sets]
    return seconds, iterations, (digest(model.state_dict()), sets, told)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[10**5, 10**6])
    parser.add_argument("--iterations", type=int, nargs="+", default=[50, 200], help="of the clouds")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    fewest, rows = skipping.LOGITS, []
    for name, tasks, classes, options in streams(arguments):
        seconds, ends = {False: [], True: []}, []
        for _ in range(arguments.rounds):
            for skips, spent in seconds.items():
                skipping.LOGITS = fewest if skips else 2**63
                taken, iterations, end = learned(tasks, classes, options)
                spent.append(taken)
                ends.append(end)
        row = {"stream": name, "iterations": iterations, "all": seconds[False], "skipping": seconds[True]}
        row |= {"same": all(end == ends[0] for end in ends)}
        row["ratio"] = statistics.median(row["all"]) / statistics.median(row["skipping"])
        rows.append(row)
        print(row, flush=True)
    record(arguments.json, "skipping", vars(arguments), rows)


if __name__ == "__main__":
    main()
