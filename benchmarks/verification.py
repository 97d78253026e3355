"""What `verify` costs beside learning: CPU seconds of a whole run and of verifying all its certificates, in one process.

python benchmarks/verification.py [demo cifar10 cifar10,methods.cop2l.max_iterations=64] [--rounds 3] [--json FILE]

A configuration may have changes behind it. Medians over the rounds; the ratio is the median of theirs.

The verifier is the plain kernel: it learns every task again from all the data, counts all errors, and rebuilds the model from
the compression sets. Goal: at most twice the seconds of learning.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from cop2l.audit import verify as loader
from cop2l.audit.verify import verify
from cop2l.certify.learner import CoP2L
from cop2l.errors import Advice, UserError
from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.kernel import __main__ as checker
from cop2l.kernel import exact, learning
from cop2l.kernel import verify as kernel
from record import record

PARTS = {
    "learning again": (learning.ReferenceLearner, "learn"),
    "rebuilding": (learning.ReferenceLearner, "reconstruct"),
    "checks of scores": (exact, "check_alone"),
    "data": (kernel, "check_samples"),
    "arithmetic": (kernel, "check_text"),
}

DEFAULT = [
    "cifar10",
    "cifar10,methods.cop2l.max_iterations=64",
    "cifar100-10,methods.cop2l.max_iterations=24",
    "demo,methods.cop2l.max_iterations=12",
]
"""The second and the others with fewer iterations than by default, to save time."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configurations", nargs="*", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loader.start_checker = here  # to see what each part takes
    warnings.simplefilter("ignore", Advice)
    rows = []
    print("CPU s           learning  whole run  verify  ratio  of which")
    for name in arguments.configurations:
        try:
            found = [measured(*name.split(",")) for _ in range(arguments.rounds)]
        except UserError as error:
            print(f"{name} is left out: {error}")
            continue
        row = {key: statistics.median(one[key] for one in found) for key in found[0]}
        parts = ", ".join(f"{part} {row[part]:.1f}" for part in PARTS)
        print(
            f"{name:15} {row['learning']:8.1f} {row['run']:10.1f} {row['verify']:7.1f} {row['ratio']:6.2f}  {parts}",
            flush=True,
        )
        configuration, *changes = name.split(",")
        rows.append({"configuration": configuration, "set": ", ".join(changes), **row})
    record(arguments.json, "verification", vars(arguments), rows)


def here(words: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
    """The checker in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = checker.main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), "")


def measured(name: str, *changes: str) -> dict[str, float]:
    """One run, verified: seconds, and what had to be computed and read."""
    config = grid.single_run(grid.read_configuration(name), grid.overrides(list(changes)))
    learn, CoP2L.learn = CoP2L.learn, timed(CoP2L.learn, spent := Counter[str](), "learning")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        run(config, folder)
        CoP2L.learn = learn
        whole = time.process_time() - begin
        kept = [(owner, key, getattr(owner, key)) for owner, key in PARTS.values()]
        for part, (owner, key, function) in zip(PARTS, kept, strict=True):
            setattr(owner, key, timed(function, spent, part))
        begin = time.process_time()
        verdict = verify(folder, config.stream, split_as_stated=True)
        seconds = time.process_time() - begin
        for owner, key, function in kept:
            setattr(owner, key, function)
        if verdict.status != "valid":
            raise SystemExit(str(verdict))
        learned, rebuilt = needed(CoP2L.load(folder))
    row = {
        "learning": spent["learning"],
        "run": whole,
        "verify": seconds,
        "ratio": seconds / spent["learning"],
    }
    row |= {part: spent[part] for part in PARTS} | learned
    return row | {f"verify_{name}": number + rebuilt[name] for name, number in learned.items()}


def needed(learner: CoP2L) -> tuple[dict[str, float], dict[str, float]]:
    """Operations and bytes that learning cannot do without (the memory is not counted), and those of training once more."""
    options, weights = learner.options, [p for p in learner.model.parameters() if p.dim() > 1]
    products, width = sum(p.numel() for p in weights), weights[0].shape[1]

    def trained(iterations: int) -> int:
        return (
            options.batch
            * options.epochs
            * sum(-(-options.k * j // options.batch) for j in range(1, iterations + 1))
        )

    def cost(rows: int) -> dict[str, float]:
        return {"operations": 2.0 * products * rows, "bytes": 4.0 * width * rows}

    sets, sizes = learner.engine.sets, [rows for rows, _ in learner.engine.sizes]
    scored = sum((one.stopped + 1) * rows for one, rows in zip(sets, sizes, strict=True))
    return cost(scored + 2 * sum(trained(one.stopped) for one in sets)), cost(
        2 * sum(trained(one.iterations) for one in sets)
    )


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
