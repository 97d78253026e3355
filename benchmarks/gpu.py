"""Seconds of learning on a CUDA device with two source trees in turn, and whether they learn the same bits.

    python benchmarks/gpu.py OLD_SRC NEW_SRC [--only cifar10 mnist ...] [--data FOLDER] [--budget SECONDS]

A source tree is a folder that holds `cop2l`. FOLDER holds features as DATASET-dinov2-vits14-224.npz, and MNIST in `mnist/`. Each
stream is learned in a process of its own for each tree: once as a warm-up, then as often as the budget allows, at most three
times. Printed are the seconds of the first run, the median of the others, and the reason if a model was not recorded.
Streams with `-adam` train on half of each task: weighted replay, or the preset `default` of trees that have it.
`python -m cProfile -s tottime benchmarks/gpu.py --learn mnist` shows where the host spends its time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HEAD = {"k": 4, "epochs": 2, "omega": 25.0, "lr": 0.001}
SETTINGS = {
    "cifar10": HEAD,
    "cifar100": HEAD,
    "tinyimagenet": HEAD,
    "mnist": {"k": 8, "epochs": 10, "omega": 15.0, "lr": 0.001},
    "permuted-mnist": {"k": 16, "epochs": 1, "omega": 15.0, "lr": 0.001},
    "mnist-adam": None,
    "cifar100-adam": None,
}
TASKS = {"cifar10": 5, "cifar100": 10, "tinyimagenet": 40}


def tasks_of(name, folder):
    """The training parts of the stream's tasks."""
    import numpy as np

    from cop2l.streams import from_arrays, load

    if name not in TASKS:
        os.environ["COP2L_DATA"] = folder
        return [(x, y) for x, y, _ in load(name, download=False)]
    with np.load(Path(folder) / f"{name}-dinov2-vits14-224.npz") as file:
        x, y = file["x_train"] * file["scale"].astype(np.float32), file["y_train"].astype(np.int64)
    stream = from_arrays(x, y, x[:100], y[:100], name=name, tasks=TASKS[name], classes=int(y.max()) + 1)
    return [(x, y) for x, y, _ in stream]


def learner_of(setting, tasks):
    """A learner before its first task, and the share of rows that it is given."""
    import numpy as np

    from cop2l import CoP2L
    from cop2l.errors import UserError
    from cop2l.methods import method
    from cop2l.models import build

    classes = 1 + max(int(np.asarray(y).max()) for _, y in tasks)
    kind = "linear" if setting.removesuffix("-adam") in TASKS else "mlp"
    model = build(kind, inputs=tasks[0][0].shape[1:], classes=classes, seed=0).cuda()
    if (options := SETTINGS[setting]) is not None:
        return CoP2L(model, preset="paper", memory=2000, **options), 1
    try:
        return method("weighted-replay")(model, memory=2000), 2
    except UserError:
        return CoP2L(model, preset="default", memory=2000), 1


def learn(setting, folder, budget):
    """Learn a stream several times; print the seconds, the digest of theta, and whether graphs were recorded."""
    import torch

    from cop2l.kernel.exact import digest

    tasks, seconds = tasks_of(setting.removesuffix("-adam"), folder), []
    while len(seconds) < 4 and (not seconds or sum(seconds) + seconds[-1] < budget):
        learner, step = learner_of(setting, tasks)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for x, y in tasks:
            learner.learn(x[::step], y[::step], progress=False)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    graphs = getattr(getattr(learner, "engine", learner), "graphs", None)
    row = {"seconds": seconds, "theta": digest(learner.model.state_dict())[:8]}
    print(json.dumps({**row, "plain": getattr(graphs, "failure", None)}))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", metavar="SRC")
    parser.add_argument("--only", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--data", default="device/data")
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--learn", choices=SETTINGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.learn:
        learn(arguments.learn, arguments.data, arguments.budget)
        return
    for setting in arguments.only:
        thetas = []
        for tree in arguments.trees:
            words = [sys.executable, "-P", __file__, "--learn", setting, "--data", arguments.data]
            environment = {**os.environ, "PYTHONPATH": str(Path(tree).resolve())}
            words += ["--budget", str(arguments.budget)]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{setting:15} {tree}: {done.stderr.strip()[-300:]}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            first, *others = row["seconds"]
            median = f"{statistics.median(others):7.2f}" if others else "      -"
            shown = f"{setting:15} first {first:7.2f}  then {median}  theta {row['theta']}  {tree}"
            print(f"{shown}  {row['plain'] or ''}", flush=True)
            thetas.append(row["theta"])
        if len(set(thetas)) > 1 and SETTINGS[setting] is not None:
            print(f"{setting:15} OTHER BITS", flush=True)


if __name__ == "__main__":
    main()
