"""CPU seconds and memory of CoP2L beside those of experience replay, and the operations that it needs.

    python benchmarks/cop2l_cost.py [--rounds 5] [--json FILE]

CIFAR-10 features (5 tasks, linear head) and MNIST (the first two tasks, 784-512-10), the paper's settings; what is not on this
machine is left out, and then nothing is written. One thread; each learner runs in a process of its own, in turn; medians over
the rounds. Printed at the end: the time of CoP2L divided by that of replay (20 epochs, 128 + 128), and
the peak memory of CoP2L's process minus that of replay's (goal: at most one scoring block of activations).
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time

PAPER = {
    "linear": {"k": 4, "omega": 25.0, "epochs": 2, "lr": 0.001},
    "mlp": {"k": 8, "omega": 15.0, "epochs": 10, "lr": 0.001},
}
TITLES = {
    "replay": "Replay, CIFAR-10 features",
    "linear": "CoP2L, CIFAR-10 features",
    "mlp": "CoP2L, MNIST, first 2 tasks, MLP",
}
REPLAY = {"epochs": 20, "batch": 128}
FEATURES = "cifar10@dinov2-vits14-224"


def tasks_of(name):
    """The tasks that a learner learns; None if their data is not on this machine."""
    from cop2l.errors import UserError
    from cop2l.features import load_stream

    try:
        if name == "mlp":
            return list(load_stream("mnist", download=False))[:2]
        return list(load_stream(FEATURES))
    except UserError:
        return None


def learn(name):
    """Run once; print seconds, the peak memory of the process, and the operations and bytes that the run needs."""
    import torch

    torch.set_num_threads(1)
    from cop2l.methods import method
    from cop2l.models import build

    tasks = tasks_of(name)
    if tasks is None:
        print("null")
        return
    model = (
        build("mlp", inputs=(1, 28, 28), classes=10, dropout=0.5)
        if name == "mlp"
        else build("linear", inputs=(384,), classes=10)
    )
    if name == "replay":
        learner = method("replay")(model, memory=2000, lr=0.01, **REPLAY)
    else:
        learner = method("cop2l")(model, memory=2000, preset="paper", tasks=len(tasks), **PAPER[name])
    products, width = (
        sum(p.numel() for p in model.parameters() if p.dim() > 1),
        math.prod(tasks[0].x.shape[1:]),
    )
    scored = trained = 0
    start = time.process_time()
    for x, y, t in tasks:
        memory_used = learner.memory_used
        learner.learn(x, y)
        if name == "replay":
            trained += REPLAY["epochs"] * (len(y) + (len(y) if t > 1 else 0))
        else:
            stopped, options = learner.engine.sets[-1].stopped, learner.options
            scored += (stopped + 1) * (len(y) + memory_used)
            trained += (
                options.batch
                * options.epochs
                * sum(-(-options.k * j // options.batch) for j in range(1, stopped + 1))
            )
    seconds = time.process_time() - start
    row = {
        "seconds": seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "operations": 2
        * products
        * (scored + 2 * trained),  # the backward pass of a step has as many as its forward pass
        "bytes": 4 * width * (scored + 2 * trained),
    }
    print(json.dumps(row))


def measured(name):
    """The row of one run, in a process of its own."""
    out = subprocess.run(
        [sys.executable, __file__, "--run", name], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(out.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        learn(arguments.run)
        return
    runs_by_name, rows = {name: [] for name in TITLES}, []
    for number in range(arguments.rounds):
        for name in TITLES if number == 0 else ("replay", "linear"):  # the MLP takes minutes
            runs_by_name[name] += filter(None, [measured(name)])
    for name, runs in runs_by_name.items():
        if not runs:
            print(f"{TITLES[name]} is left out: its data is not on this machine")
            continue
        row = {"name": name, "what": TITLES[name]} | {key: runs[0][key] for key in ("operations", "bytes")}
        row |= {"seconds": [run["seconds"] for run in runs], "peak": min(run["peak"] for run in runs)}
        rows.append(row)
        print(f"{row['what']:34} {statistics.median(row['seconds']):7.2f} s of {len(runs)} runs", flush=True)
    if len(rows) < len(TITLES):
        return
    replay, linear = rows[:2]
    ratio = statistics.median(linear["seconds"]) / statistics.median(replay["seconds"])
    print(f"time    {ratio:.2f} times replay; memory {(linear['peak'] - replay['peak']) / 2**20:+.1f} MiB")
    import torch  # not before: the peak of a process is at least its parent's

    from record import record

    torch.set_num_threads(1)
    record(arguments.json, "cop2l_cost", {"rounds": arguments.rounds}, rows)


if __name__ == "__main__":
    main()
