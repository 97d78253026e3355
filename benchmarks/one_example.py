"""CPU microseconds of predicting one example, beside the bare module: one thread, the lowest of 7 rounds.

python benchmarks/one_example.py [--json FILE]
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch

from cop2l.errors import Advice
from cop2l.learner.cop2l import CoP2L
from cop2l.models import build
from record import fewest_seconds, record

ROUNDS, CALLS = 7, 1000


def microseconds(function: Callable[[], object]) -> float:
    """CPU microseconds of one call."""
    return 1e6 * fewest_seconds(lambda: [function() for _ in range(CALLS)], ROUNDS) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    draw, rows = np.random.default_rng(0), []
    print("                     bare   of an array  of a tensor")
    for name, width in (("linear", 384), ("mlp", 784)):
        x, y = draw.normal(size=(100, width)).astype(np.float32), draw.integers(10, size=100)
        model = build(name, inputs=(width,), classes=10, seed=0)
        learner = CoP2L(model, memory=50, max_iterations=2)
        learner.learn(x, y, progress=False)
        array, tensor = x[:1], torch.from_numpy(x[:1])

        @torch.no_grad()
        def bare(model: torch.nn.Module = model, tensor: torch.Tensor = tensor) -> torch.Tensor:
            return model(tensor).argmax(1)

        row = {"model": f"{name} {width}-10", "bare": microseconds(bare)}
        for kind, example in (("array", array), ("tensor", tensor)):
            row[kind] = microseconds(lambda example=example, learner=learner: learner.predict(example))
        rows.append(row)
        ratios = (f"{row[kind]:5.0f} ({row[kind] / row['bare']:3.1f} x)" for kind in ("array", "tensor"))
        print(f"{row['model']:20} {row['bare']:5.0f}", *ratios)
    record(arguments.json, "one_example", vars(arguments), rows)


if __name__ == "__main__":
    main()
