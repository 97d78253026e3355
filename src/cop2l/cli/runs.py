"""The arguments about run directories, which several commands share, and the search for the runs."""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cop2l.report.runs import RunSet


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments RUNS and --over."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="run directories, or folders with run directories"
    )
    parser.add_argument(
        "--over",
        nargs="+",
        default=["seed"],
        metavar="KEY",
        help="average over these keys of the configuration (default: seed)",
    )


def find_runs(arguments: argparse.Namespace) -> "RunSet":
    """Find the runs, and print which folders are left out."""
    from cop2l.report import runs

    result = runs.find_runs(arguments.runs)
    for folder in result.left_out:
        print(f"Left out: {folder.sentence}", file=sys.stderr)
    return result
