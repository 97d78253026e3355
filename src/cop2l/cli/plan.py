"""cop2l plan: estimate the bound for a number of examples, or the examples for a bound."""

import argparse
import json
from dataclasses import asdict
from typing import Any

TEXT = """\
Estimate the bound for a number of examples or, with --target, the number of examples for a bound. The plan also has the memory
that keeps the bound of an old task without its data. No data is read: the bounds are those of 'cop2l bound' at the expected
counts: a hold-out of half of each task, and CoP2L with the preset picking."""
EXAMPLES = """\
examples:
  cop2l plan --error 0.03 --examples 6000 --tasks 10 --memory 2000     the bounds to expect
  cop2l plan --error 0.03 --target 0.05 --tasks 10                     the examples for a bound of 5 %
  cop2l plan --error 0.02 --picks 0.03 --target 0.08 --tasks 5 --anytime"""
OPTIONS = ("error", "target", "examples", "memory", "tasks", "delta", "anytime", "picks")


def add(commands: Any) -> None:
    parser = commands.add_parser("plan", description=TEXT, epilog=EXAMPLES)
    parser.add_argument(
        "--error", type=float, required=True, metavar="RATE", help="the error rate that you expect"
    )
    parser.add_argument("--target", type=float, metavar="BOUND", help="the bound that you want")
    parser.add_argument("--examples", type=int, metavar="N", help="examples of each task")
    parser.add_argument("--memory", type=int, metavar="M", help="how many examples of past tasks may be kept")
    parser.add_argument("--tasks", type=int, default=1, metavar="T", help="number of tasks (default: 1)")
    parser.add_argument(
        "--delta",
        type=float,
        default=0.05,
        metavar="D",
        help="probability that a bound fails (default: 0.05)",
    )
    parser.add_argument(
        "--anytime", action="store_true", help="certify after every task; all certificates hold at once"
    )
    parser.add_argument(
        "--picks",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="for the kind preference: the share of examples that is picked (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> None:
    from cop2l.planning import plan

    options = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    result = plan(**options)
    print(json.dumps(asdict(result), indent=1) if arguments.json else result)
