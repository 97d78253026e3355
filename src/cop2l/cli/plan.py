"""cop2l plan: before the data is bought."""

import argparse
import json
from dataclasses import asdict
from typing import Any

TEXT = """\
Before the data is bought: which bound to expect from a number of examples or, with --target, how many examples a bound needs;
how much memory so that an old task whose data is gone keeps it. Nothing is read; the bounds are those of 'cop2l bound' at the
counts to expect, with the shares of the presets."""
EXAMPLES = """\
examples:
  cop2l plan --error 0.03 --examples 6000 --tasks 10 --memory 2000     which bounds to expect
  cop2l plan --error 0.03 --target 0.05 --tasks 10                     what a bound of 5 % needs
  cop2l plan --error 0.02 --picks 0.03 --target 0.08 --tasks 5 --anytime"""
OPTIONS = ("error", "target", "examples", "memory", "tasks", "delta", "anytime", "picks")


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan",
        description=TEXT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--error", type=float, required=True, metavar="RATE", help="the error rate that you expect"
    )
    parser.add_argument("--target", type=float, metavar="BOUND", help="the bound that you want")
    parser.add_argument("--examples", type=int, metavar="N", help="examples of each task")
    parser.add_argument("--memory", type=int, metavar="M", help="how many examples of the past may be kept")
    parser.add_argument("--tasks", type=int, default=1, metavar="T", help="number of tasks (1)")
    parser.add_argument("--delta", type=float, default=0.05, metavar="D", help="1 - confidence (0.05)")
    parser.add_argument(
        "--anytime", action="store_true", help="a certificate after every task, all holding together"
    )
    parser.add_argument(
        "--picks",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of a task's examples that is picked, for the kind preference (0)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    """Print the plan."""
    from cop2l.planning import plan

    options = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    found = plan(**options)
    print(json.dumps(asdict(found), indent=1) if arguments.json else found)
