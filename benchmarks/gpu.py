"""Seconds of learning on a CUDA device with the paper's settings: recorded (CUDA graphs) and step by step.

    python benchmarks/gpu.py cifar10 cifar100 mnist --features FOLDER --repeat 3 --eager

FOLDER holds the features as DATASET-dinov2-vits14-224.npz; `cop2l data get mnist` gets MNIST. Each stream is learned once as
a warm-up, then `repeat` times. The row has the median of the seconds from the first `learn` to the end of the last, the
iterations, the steps of the optimiser, and a floor: the operations of all products, divided by a measured rate.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from cop2l.certify import cuda
from cop2l.certify.learner import CoP2L
from cop2l.kernel.exact import digest
from cop2l.models import build
from cop2l.streams import from_arrays, load
from record import record

HEAD = {"k": 4, "epochs": 2, "omega": 25.0, "lr": 0.001}
SETTINGS = {
    "cifar10": HEAD,
    "cifar100": HEAD,
    "tinyimagenet": HEAD,
    "mnist": {"k": 8, "epochs": 10, "omega": 15.0, "lr": 0.001},
    "permuted-mnist": {"k": 16, "epochs": 1, "omega": 15.0, "lr": 0.001},
}
TASKS = {"cifar10": 5, "cifar100": 10, "tinyimagenet": 40}


def tasks_of(name, folder):
    """The training parts of the stream's tasks."""
    if name not in TASKS:
        return [(x, y) for x, y, _ in load(name, download=False)]
    with np.load(Path(folder) / f"{name}-dinov2-vits14-224.npz") as file:
        x, y = file["x_train"] * file["scale"].astype(np.float32), file["y_train"].astype(np.int64)
    stream = from_arrays(x, y, x[:100], y[:100], name=name, tasks=TASKS[name], classes=int(y.max()) + 1)
    return [(x, y) for x, y, _ in stream]


def learner_of(name, tasks, seed=0):
    classes = 1 + max(int(np.asarray(y).max()) for _, y in tasks)
    kind = "linear" if name in TASKS else "mlp"
    model = build(kind, inputs=tasks[0][0].shape[1:], classes=classes, seed=seed).cuda()
    return CoP2L(model, preset="paper", memory=2000, seed=seed, **SETTINGS[name])


def learned(name, tasks, seed=0):
    """Seconds, and counts of iterations, steps and operations."""
    learner, iterations, steps, operations, task_seconds = learner_of(name, tasks, seed), 0, 0, 0, []
    options, products = learner.options, 2 * sum(p.numel() for p in learner.model.parameters() if p.dim() > 1)
    torch.cuda.current_stream().synchronize()
    begin = time.perf_counter()
    for x, y in tasks:
        start, past = time.perf_counter(), learner.memory_used
        learner.learn(x, y, progress=False)
        torch.cuda.current_stream().synchronize()
        task_seconds.append(time.perf_counter() - start)
        stopped = learner.engine.sets[-1].stopped
        task_steps = sum(options.epochs * -(-options.k * j // options.batch) for j in range(1, stopped + 1))
        iterations, steps = iterations + stopped + 1, steps + task_steps
        operations += products * ((stopped + 1) * (len(y) + past) + 2 * task_steps * options.batch)
    seconds = time.perf_counter() - begin
    return seconds, {
        "iterations": iterations, "steps": steps, "operations": operations, "picked": options.k * iterations,
        "theta": digest(learner.model.state_dict())[:16], "tasks": [round(part, 3) for part in task_seconds],
    }  # fmt: skip


def rate():
    """Operations a second of a large float32 product, without tf32."""
    a = torch.randn(8192, 8192, device="cuda")
    for repeat in range(4):
        if repeat == 1:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        a @ a
    torch.cuda.synchronize()
    return 3 * 2 * 8192**3 / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("streams", nargs="+", choices=SETTINGS)
    parser.add_argument("--features", default=".")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tasks", type=int, help="only so many tasks")
    parser.add_argument("--eager", action="store_true", help="step by step as well, once")
    parser.add_argument("--json", help="write the table to this file")
    arguments = parser.parse_args()
    ceiling, rows = rate(), []
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {ceiling / 1e12:.1f} float32 Tflop/s", flush=True)
    for stream in arguments.streams:
        tasks = tasks_of(stream, arguments.features)[: arguments.tasks]
        warm_up, *runs = [learned(stream, tasks) for _ in range(arguments.repeat + 1)]
        seconds, about = statistics.median(run[0] for run in runs), runs[0][1]
        row = {"stream": stream, "seconds": round(seconds, 3), "first": round(warm_up[0], 3), **about}
        row |= {
            "runs": [round(run[0], 3) for run in runs],
            "floor": round(about["operations"] / ceiling, 3),
            "us an iteration": round(1e6 * seconds / about["iterations"]),
        }
        if arguments.eager:
            can_record, cuda.can_record = cuda.can_record, lambda *_: False
            eager_seconds, eager = learned(stream, tasks)
            cuda.can_record = can_record
            row |= {"step by step": round(eager_seconds, 3), "same": eager["theta"] == about["theta"]}
        print(json.dumps(row), flush=True)
        rows.append(row)
        record(arguments.json, "gpu", vars(arguments), rows, {"float32 Tflop/s": round(ceiling / 1e12, 1)})


if __name__ == "__main__":
    main()
