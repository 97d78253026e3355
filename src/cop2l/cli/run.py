"""cop2l run: run one experiment."""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

CONFIG_HELP = (
    "a built-in configuration, a TOML file, the path of your data, or features such as cifar10@resnet18-64"
)
EPILOG = """\
Change a setting by key=value, anywhere on the line. 'cop2l list keys METHOD' lists the keys of METHOD and their defaults.

How your own data is read:
  label=COLUMN     the column of labels (label)
  columns=A,B      the columns that are inputs (all others)
  drop=A,B         columns that are left out, such as IDs and dates
  text=A,B         columns of free text among the inputs
  domain=COLUMN    each of its values is a task; years and dates run in order of time, task_order= gives another order
  group=COLUMN     the group of each row, for claim=groups
  size=64          pictures are resized to squares of so many pixels

Your own data and digits use method=weighted-replay with holdout=0.5: half of each task certifies. The paper's streams (mnist ...)
use method=cop2l, which certifies itself. Your own data is one task; tasks=, task_classes= or domain= split it.

For a short run, examples=5000 draws 5000 training examples from any stream.

examples:
  cop2l run digits
  cop2l run mnist examples=5000
  cop2l run cifar10 scenario=task-incremental method=replay holdout=0.5 seed=3
  cop2l run my-data.csv label=species columns=length,width"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        description="Learn the tasks of a stream one after the other, and evaluate all tasks so far after each. Certify all\n"
        "tasks after the last one or, with anytime=true, after each. The same command continues a stopped run.",
        epilog=EPILOG,
    )
    parser.add_argument("config", metavar="NAME|FILE|DATA", help=CONFIG_HELP)
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="changes of the configuration")
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/HASH)")
    parser.add_argument(
        "--commitment",
        metavar="FILE",
        help="refuse a run that differs from this commitment (see: cop2l commit)",
    )
    parser.add_argument(
        "--log", metavar="NAME,...", help="also log to tensorboard, mlflow, wandb, or package.module:Class"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; progress on stderr")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment, alone or as one of the ranks that torchrun started."""
    from cop2l.experiments.ranks import join_ranks

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with join_ranks() as ranks:
            return run_and_print(arguments, ranks)
    except KeyboardInterrupt:
        print(
            "Stopped; run the same command again to continue after the last finished task.", file=sys.stderr
        )
        return 130


def run_and_print(arguments: argparse.Namespace, ranks: Any) -> int:
    """Run the experiment and print its results; on ranks other than the first, follow it."""
    from cop2l.certificates import commitment
    from cop2l.console import RunView, Watcher
    from cop2l.experiments import grid
    from cop2l.experiments.ranks import check, follow
    from cop2l.experiments.records import SUMMARY
    from cop2l.experiments.run import run as experiment
    from cop2l.methods import REMARKS
    from cop2l.text import run_table

    changes = grid.overrides(arguments.overrides)
    config = grid.single_run(grid.read_configuration(arguments.config), changes)
    committed = commitment.read_commitment(arguments.commitment) if arguments.commitment else None
    folder = Path(arguments.out or Path("runs") / config.hash)
    if ranks is not None:
        check(config)
        if not ranks.is_first:
            follow(config, folder, ranks, committed)
            return 0
    watchers: list[Watcher] = [RunView(sys.stderr if arguments.json else None)]
    watchers += loggers(arguments, folder)
    finished = (folder / SUMMARY).is_file()
    summary = experiment(config, folder, watchers, committed, ranks)
    if finished:
        print("This run is already finished; nothing was learned again.", file=sys.stderr)
    if arguments.json:
        print(json.dumps(summary, indent=1))
    else:
        print(run_table(summary, REMARKS.get((summary["method"], summary["model"]))))
        print(f"Results: {folder}")
    return 0


def loggers(arguments: argparse.Namespace, folder: Path) -> list[Any]:
    """The loggers of --log."""
    from cop2l.experiments.loggers import logged

    return [logged(name.strip(), folder) for name in (arguments.log or "").split(",") if name.strip()]
