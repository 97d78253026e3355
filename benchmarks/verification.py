"""CPU seconds of `verify` beside those of learning, for all certificates of a run, in one process.

python benchmarks/verification.py [demo cifar10 cifar10,methods.cop2l.max_iterations=64] [--rounds 3] [--json FILE]

A configuration may have changes behind it. Medians over the rounds; the ratio is the median of theirs. Goal: at most 2. The
verifier learns every task again with the reference algorithm, counts all errors, and rebuilds the model from the compression
sets.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import tempfile
import time
import warnings
from typing import Any

import torch

from cop2l.audit import verify as audit
from cop2l.errors import Advice, UserError
from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.kernel import __main__ as checker
from cop2l.learner.cop2l import CoP2L
from record import record

DEFAULT = [
    "cifar10",
    "cifar10,methods.cop2l.max_iterations=64",
    "cifar100-10,methods.cop2l.max_iterations=24",
    "demo,methods.cop2l.max_iterations=12",
]
"""All but the first with fewer iterations than by default, to save time."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configurations", nargs="*", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    audit.start_checker = check_in_process  # so that its CPU seconds are those of this process
    warnings.simplefilter("ignore", Advice)
    rows = []
    print("CPU s           learning  whole run  verify  ratio")
    for name in arguments.configurations:
        try:
            rounds = [measured(*name.split(",")) for _ in range(arguments.rounds)]
        except UserError as error:
            print(f"{name} is left out: {error}")
            continue
        row = {key: statistics.median(seconds[key] for seconds in rounds) for key in rounds[0]}
        print(
            f"{name:15} {row['learning']:8.1f} {row['run']:10.1f} {row['verify']:7.1f} {row['ratio']:6.2f}",
            flush=True,
        )
        configuration, *changes = name.split(",")
        rows.append({"configuration": configuration, "set": ", ".join(changes), **row})
    if len(rows) == len(arguments.configurations):
        record(arguments.json, "verification", vars(arguments), rows)


def check_in_process(arguments: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
    """The checker, called in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = checker.main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), "")


def measured(name: str, *changes: str) -> dict[str, float]:
    """CPU seconds of one run and of its verification."""
    config = grid.single_run(grid.read_configuration(name), grid.overrides(list(changes)))
    learn, learning = CoP2L.learn, 0.0

    def timed_learn(*arguments: Any, **options: Any) -> None:
        nonlocal learning
        begin = time.process_time()
        learn(*arguments, **options)
        learning += time.process_time() - begin

    with tempfile.TemporaryDirectory() as folder:
        CoP2L.learn = timed_learn
        begin = time.process_time()
        run(config, folder)
        end = time.process_time()
        CoP2L.learn = learn
        verdict = audit.verify(folder, config.stream, split_as_stated=True)
        verifying = time.process_time() - end
    if verdict.status != "valid":
        raise SystemExit(str(verdict))
    return {"learning": learning, "run": end - begin, "verify": verifying, "ratio": verifying / learning}


if __name__ == "__main__":
    main()
