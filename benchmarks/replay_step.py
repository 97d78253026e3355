"""The time of a replay step beside that of the bare torch step, on one thread.

The bare step is forward, cross-entropy, backward and torch.optim.SGD on one fixed batch of the same total size (new
and buffer examples). The replay step is all of `learn`, divided by its steps: drawing batches, collecting rows, the step,
and the buffer at the end of the task. Short rounds of both alternate. The first ratio is that of the fastest rounds, the
second the median over pairs of rounds.
"""

import statistics
import time

import torch
from torch.nn import functional as F

from cop2l.methods import method
from cop2l.models import build

CASES = (("mlp", 784, 256, 1.25), ("linear", 384, 128, 1.6))
"""Model, inputs, examples of the task per step, and the largest acceptable ratio."""
ROUNDS, STEPS, EPOCHS = 40, 8, 6


def bare(model, x, y):
    """Seconds of one bare step."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for _ in range(STEPS * EPOCHS):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return (time.perf_counter() - start) / (STEPS * EPOCHS)


def replay(learner, x, y):
    """Seconds of one replay step."""
    start = time.perf_counter()
    learner.learn(x, y)
    return (time.perf_counter() - start) / (STEPS * EPOCHS)


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; {ROUNDS} alternating rounds of {STEPS * EPOCHS} steps")
    print(
        f"{'model':16} {'batch':>9} {'bare step':>11} {'replay step':>12} {'ratio':>6} {'median':>7} {'at most':>8}"
    )
    for name, inputs, batch, limit in CASES:
        model = build(name, inputs=(inputs,), classes=10)
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(STEPS * batch, inputs, generator=draws)
        y = torch.randint(10, (len(x),), generator=draws)
        learner = method("replay")(model, scenario="domain-incremental", epochs=EPOCHS, batch=batch)
        learner.learn(x, y)
        pairs = [(bare(model, x[: 2 * batch], y[: 2 * batch]), replay(learner, x, y)) for _ in range(ROUNDS)]
        bare_us, replay_us = (1e6 * min(side) for side in zip(*pairs, strict=True))
        median = statistics.median(second / first for first, second in pairs)
        layers = "-".join(str(p.shape[1]) for p in model.parameters() if p.ndim == 2) + "-10"
        print(
            f"{layers:16} {f'{batch}+{batch}':>9} {bare_us:8.0f} us {replay_us:9.0f} us "
            f"{replay_us / bare_us:6.2f} {median:7.2f} {limit:8.2f}"
        )


if __name__ == "__main__":
    main()
