"""CPU seconds of each rank, and the bytes that ranks exchange in an iteration; the paper's settings.

    python benchmarks/ranks.py cifar10 mnist clouds --features FOLDER --ranks 1 2

Data as in gpu.py; clouds is one generated task of 100 000 x 384, and 50 iterations. One thread per rank. Every rank prints the
hash of its certificate; all are equal.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

from cop2l.certify.learner import CoP2L
from cop2l.certify.ranks import Ranks
from cop2l.files import json_digest
from cop2l.models import build
from gpu import SETTINGS, tasks_of

SETTINGS = SETTINGS | {"clouds": {"k": 4, "epochs": 2, "lr": 0.001, "max_iterations": 50}}


def clouds(rows=100_000, width=384, classes=10):
    """One large task."""
    draw = np.random.default_rng(0)
    y = draw.integers(classes, size=rows)
    x = draw.normal(size=(rows, width)).astype(np.float32)
    return [(x + draw.normal(size=(classes, width)).astype(np.float32)[y] / 4, y)]


def measured(name, tasks):
    """The seconds of one rank of a group, and the bytes that it sends."""
    ranks = Ranks()
    classes = 1 + max(int(y.max()) for _, y in tasks)
    kind = "mlp" if name.endswith("mnist") else "linear"
    model = build(kind, inputs=tasks[0][0].shape[1:], classes=classes, seed=0)
    learner = CoP2L(model, preset="paper", memory=2000, **SETTINGS[name])
    learner.engine.ranks, iterations, sent, total, spent, gather = ranks, 0, 0, 0, 0.0, ranks.gather

    def measured_gather(row):
        nonlocal sent, total, spent
        start = time.process_time()
        rows, total = gather(row), total + row.nbytes
        if row.dtype == float:  # other rows are hashes, one per task
            sent, spent = sent + row.nbytes, spent + time.process_time() - start
        return rows

    ranks.gather = measured_gather
    began = time.process_time()
    for x, y in tasks:
        learner.learn(x, y, progress=False)
        iterations += learner.engine.sets[-1].stopped + 1
    learned, before = time.process_time(), total
    certificate = learner.certify(dict(enumerate(tasks, 1)))
    return {
        "stream": name,
        "ranks": ranks.size,
        "rank": ranks.rank,
        "iterations": iterations,
        "learn": round(learned - began, 2),
        "certify": round(time.process_time() - learned, 2),
        "exchange": round(spent, 2),
        "bytes an iteration": sent / iterations,
        "bytes to certify": total - before,
        "certificate": json_digest(certificate.content)[:12],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("streams", nargs="+", choices=SETTINGS)
    parser.add_argument("--features", default=".")
    parser.add_argument("--tasks", type=int, help="only so many tasks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    if not dist.is_torchelastic_launched():
        for number in arguments.ranks:
            launcher = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={number}",
            ]
            subprocess.run([*launcher, *sys.argv], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for stream in arguments.streams:
        tasks = clouds() if stream == "clouds" else tasks_of(stream, arguments.features)[: arguments.tasks]
        print(json.dumps(measured(stream, tasks)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
