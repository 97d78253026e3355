"""cop2l run: one experiment."""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

WHAT = "a built-in configuration, a TOML file, your own data by its path, or a stream of features such as cifar10@resnet18-64"
EPILOG = """\
Change what you like by key=value, anywhere on the line. 'cop2l list keys METHOD' explains every key of a run of
that method, its own options included, with their defaults.

Your own data uses preset=default; built-in configurations such as digits and mnist use preset=picking unless you name one.

A short run: examples=5000 draws so many training examples from any stream. With preset=default, CPU seconds on one core:
digits 9, mnist examples=5000 33; all of mnist takes several minutes.

Several processes share one run of CoP2L, with the same bits: torchrun --standalone --nproc-per-node=2 -m cop2l run ...

examples:
  cop2l run digits preset=default
  cop2l run mnist preset=default examples=5000
  cop2l run cifar10 scenario=task-incremental method=replay seed=3
  cop2l run mnist holdout=0.1 --out runs/with-holdout
  cop2l run my-data.csv label=species columns=length,width tasks=3"""


def add(commands: Any) -> None:
    """The parser of the command."""
    parser = commands.add_parser(
        "run",
        description="Learn the tasks of a stream one after the other; after each, evaluate on all so far. Certify all after the\n"
        "last of them or, with anytime=true, after each.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        metavar="NAME|FILE|DATA",
        help=WHAT,
    )
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="what to change in it")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the run directory (default: runs/ and the run's hash)",
    )
    parser.add_argument("--commitment", metavar="FILE", help="refuse to differ from it (see: cop2l commit)")
    parser.add_argument(
        "--log",
        metavar="NAME,...",
        help="also log there: tensorboard, mlflow, wandb, or package.module:Class",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; progress on stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run it, alone or as one of the ranks that torchrun has started."""
    from cop2l.experiments import ranks

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with ranks.join_ranks() as shared:
            return run_shared(arguments, shared)
    except KeyboardInterrupt:
        print("Stopped; run the same command again to go on after the last finished task.", file=sys.stderr)
        return 130


def run_shared(arguments: argparse.Namespace, shared: Any) -> int:
    """Run it, show it, and say where the results are."""
    from cop2l.certify import commitment
    from cop2l.console import RunView, Watcher
    from cop2l.experiments import grid, ranks
    from cop2l.experiments.run import run as experiment
    from cop2l.methods import REMARKS
    from cop2l.text import run_table

    given = grid.overrides(arguments.overrides)
    config = grid.single_run(grid.read_configuration(arguments.config), given)
    promised = commitment.read_commitment(arguments.commitment) if arguments.commitment else None
    folder = Path(arguments.out or Path("runs") / config.hash)
    if shared is not None:
        ranks.check(config)
        if not shared.is_first:
            ranks.follow(config, folder, shared, promised)
            return 0
    watchers: list[Watcher] = [RunView(sys.stderr if arguments.json else None)]
    watchers += loggers(arguments, folder)
    finished = (folder / "summary.json").is_file()
    summary = experiment(config, folder, watchers, promised, ranks=shared)
    if finished:
        print("This run was finished before; nothing was learned again.", file=sys.stderr)
    if arguments.json:
        print(json.dumps(summary, indent=1))
    else:
        print(
            run_table(summary, REMARKS.get((summary["method"], summary["model"]))),
            f"Results: {folder}",
            sep="\n",
        )
    return 0


def loggers(arguments: argparse.Namespace, folder: Path) -> list[Any]:
    """What --log names, for one run."""
    from cop2l.experiments.loggers import logged

    return [logged(name.strip(), folder) for name in (arguments.log or "").split(",") if name.strip()]
