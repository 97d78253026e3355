"""What `verify` costs beside learning: CPU seconds of a whole run and of verifying all its certificates, in one process.

python benchmarks/verification.py [demo cifar10 cifar100-10] [--set KEY=VALUE ...] [--json FILE]

The verifier is the plain kernel: it learns every task again from all the data, counts all errors, and rebuilds the model from
the compression sets. Goal: at most twice the seconds of learning.
"""

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from cop2l.audit.verify import verify
from cop2l.certify.learner import CoP2L
from cop2l.errors import Advice
from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.kernel import learning
from cop2l.kernel import verify as kernel
from record import record

PARTS = {
    "learning again": (learning.Plain, "learn"),
    "rebuilding": (learning.Plain, "reconstruct"),
    "checks of scores": (learning, "check_alone"),
    "data": (kernel, "_checked_samples"),
    "arithmetic": (kernel, "_stated"),
}

COPIES = kernel.Allowed(shared=100)
"""CIFAR-100 has some pictures twice."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configurations", nargs="*", default=["demo", "cifar10", "cifar100-10"])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to each of them")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Advice)
    rows = []
    print("CPU s           learning  whole run  verify  ratio  of which")
    for name in arguments.configurations:
        config = grid.single(grid.read(name), grid.overrides(arguments.set))
        learn, CoP2L.learn = CoP2L.learn, timed(CoP2L.learn, spent := Counter[str](), "learning")
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            run(config, folder)
            CoP2L.learn = learn
            whole, kept = (
                time.process_time() - begin,
                [(owner, key, getattr(owner, key)) for owner, key in PARTS.values()],
            )
            for part, (owner, key, function) in zip(PARTS, kept, strict=True):
                setattr(owner, key, timed(function, spent, part))
            begin = time.process_time()
            verdict = verify(folder, config.stream, cut_as_stated=True, allowed=COPIES)
            seconds = time.process_time() - begin
            for owner, key, function in kept:
                setattr(owner, key, function)
        if verdict.status != "valid":
            raise SystemExit(str(verdict))
        row = {"configuration": name, "learning": spent["learning"], "run": whole, "verify": seconds}
        row |= {part: spent[part] for part in PARTS} | {"ratio": seconds / spent["learning"]}
        rows.append(row)
        parts = ", ".join(f"{part} {spent[part]:.1f}" for part in PARTS)
        print(
            f"{name:15} {row['learning']:8.1f} {whole:10.1f} {seconds:7.1f} {row['ratio']:6.2f}  {parts}",
            flush=True,
        )
    record(arguments.json, "verification", vars(arguments), rows)


def timed(function: Callable[..., Any], spent: Counter[str], part: str) -> Callable[..., Any]:
    """The function, and its CPU seconds are added up."""

    def inner(*given: Any, **named: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*given, **named)
        finally:
            spent[part] += time.process_time() - begin

    return inner


if __name__ == "__main__":
    main()
