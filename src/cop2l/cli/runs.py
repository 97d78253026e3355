"""What the commands that read run directories share: their arguments, and finding the runs."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cop2l.report.runs import RunSet


def add_runs(parser: argparse.ArgumentParser, *, beside: bool = False) -> None:
    """The runs, what is averaged over, and published numbers where the command can show some."""
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run directories, or folders that hold some")
    parser.add_argument(
        "--over", nargs="+", default=["seed"], metavar="KEY", help="configuration keys to average over (seed)"
    )
    if beside:
        parser.add_argument(
            "--beside",
            type=Path,
            metavar="FILE",
            help="published numbers to set beside the runs that they are about (CSV; docs/report.md names its columns)",
        )


def find_runs(arguments: argparse.Namespace) -> "RunSet":
    """Find the runs, and print which folders are left out."""
    from cop2l.report import runs

    found = runs.find_runs(arguments.runs)
    for left in found.left_out:
        print(f"Left out: {left.sentence}", file=sys.stderr)
    return found
