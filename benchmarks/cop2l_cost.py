"""What CoP2L costs: beside experience replay, and beside the arithmetic that it cannot do without.

CIFAR-10 features (5 tasks, linear head; cached ones if there are, else random features of the same shape) and MNIST
(two tasks, 784-512-10; if it is on this machine), one thread, the paper's settings. Each learner runs in a process of
its own, in turn, so that its time and its peak memory are its own.

  share    of CoP2L's time that is neither the model's forward pass nor the loss (in training and in scoring), nor
           the backward pass, nor the optimiser (goal: at most 20 %); it is given as well with the loss of scoring, which
           is not a matrix product, counted to it
  time     of CoP2L over that of replay (20 epochs, 128 + 128; goal: at most 1)
  memory   peak of CoP2L's process less that of replay's (goal: at most one scoring block of activations)
"""

import json
import resource
import subprocess
import sys
import time
from collections import Counter

ROUNDS = 7
SCORING_LOSS = "loss in scoring"


def features():
    """The tasks of the CIFAR-10 features, or of something like them, and which it is."""
    from cop2l.errors import UserError
    from cop2l.features import load_stream
    from cop2l.streams import from_arrays

    try:
        return load_stream("cifar10@dinov2-vits14-224"), "cached features"
    except UserError:
        import numpy as np

        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(10), 5000)
        centres = 1.2 * rng.standard_normal((10, 384), dtype=np.float32)
        x = centres[y] + 4 * rng.standard_normal((len(y), 384), dtype=np.float32)
        return from_arrays(x, y, x[:100], y[:100], name="random", tasks=5, classes=10), "random features"


def mnist():
    """The first two tasks of MNIST; None if it is not on this machine."""
    from cop2l.errors import UserError
    from cop2l.features import load_stream

    try:
        return list(load_stream("mnist", download=False))[:2]
    except UserError:
        return None


def learn(name):
    """One run; prints its seconds, where they went, and the process's peak memory."""
    import torch

    torch.set_num_threads(1)
    from cop2l.methods import method
    from cop2l.models import build

    if name == "mlp":
        tasks, options = mnist(), {"preset": "paper"}
        model = build("mlp", inputs=(1, 28, 28), classes=10, dropout=0.5)
    else:
        tasks, options = features()[0], {}
        model = build("linear", inputs=(384,), classes=10)
    if name == "linear":
        options = {"preset": "cop2l", "k": 4, "omega": 25.0, "epochs": 2, "lr": 0.001}
    kind = "replay" if name == "replay" else "cop2l"
    learner = method(kind)(model, memory=2000, **options, **({"tasks": 5} if kind == "cop2l" else {}))
    spent, calls = watched(model) if "--share" in sys.argv else (Counter(), Counter())
    start = time.perf_counter()
    for x, y, _ in tasks:
        learner.learn(x, y)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "spent": spent, "calls": calls, "peak": peak}))


def watched(model):
    """Clocks on the model's forward pass, on the losses and the backward pass, and on the optimiser's step."""
    import torch
    import torch.nn.functional as F

    spent, calls = Counter(), Counter()

    def timed(label, function):
        def inner(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[label] += time.perf_counter() - begin
                calls[label] += 1

        return inner

    kind = type(model)
    kind.__call__ = timed("forward", kind.__call__)
    F.cross_entropy = timed("loss", F.cross_entropy)
    torch.log_softmax = timed(SCORING_LOSS, torch.log_softmax)
    torch.autograd.grad = timed("backward", torch.autograd.grad)
    torch._foreach_add_ = timed("optimiser", torch._foreach_add_)
    return spent, calls


def measured(name, *flags):
    out = subprocess.run(
        [sys.executable, __file__, name, *flags], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(out.splitlines()[-1])


def show_share(name, words, rounds):
    """Where the time of a run goes."""
    split = min((measured(name, "--share") for _ in range(rounds)), key=lambda run: run["seconds"])
    rest = 1 - sum(split["spent"].values()) / split["seconds"]
    wider = rest + split["spent"][SCORING_LOSS] / split["seconds"]
    print(
        f"share   {100 * rest:.0f} % of CoP2L's time is none of these, {100 * wider:.0f} % with the loss in scoring ({words}):"
    )
    for label, seconds in split["spent"].items():
        print(f"        {100 * seconds / split['seconds']:4.0f} %  {label}, {split['calls'][label]} calls")


def main():
    print(f"{ROUNDS} rounds, the quietest of each; data: {features()[1]}")
    replay, cop2l = [], []
    for _ in range(ROUNDS):
        replay.append(measured("replay"))
        cop2l.append(measured("linear"))
    fastest = [min(runs, key=lambda run: run["seconds"]) for runs in (replay, cop2l)]
    show_share("linear", "linear head", ROUNDS)
    if mnist():
        show_share("mlp", "MLP on MNIST", 1)
    print(f"time    {fastest[1]['seconds'] / fastest[0]['seconds']:.2f} times replay")
    extra = min(run["peak"] for run in cop2l) - min(run["peak"] for run in replay)
    print(
        f"memory  {extra / 2**20:+.1f} MiB beside replay's peak of {min(r['peak'] for r in replay) / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    learn(sys.argv[1]) if len(sys.argv) > 1 else main()
