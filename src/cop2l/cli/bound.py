"""cop2l bound: calculate a bound from counts of examples and errors."""

import argparse
import json
from typing import Any

from cop2l.cli.verify import numbers

KINDS = {
    "kl": ("the bound of the paper for task t of T", "n compression evicted errors iterations task"),
    "preference": (
        "our bound for one task of T, with the threshold buffer",
        "n picked errors_not_picked iterations",
    ),
    "buffer": (
        "our bound from the buffer alone, without the data of the task",
        "n_selected compressed iterations",
    ),
    "holdout": ("the bound from withheld examples", "n errors"),
}
"""Each kind with its description, and with the arguments of its function in `cop2l.bounds`."""

COUNTS = {
    "n": ("N", "number of examples of the task; for holdout, of withheld ones"),
    "compression": ("I", "size of the first compression set, |I|"),
    "evicted": ("J", "size of the second compression set, |J|"),
    "errors": (
        "E",
        "errors on the examples outside the compression sets; for holdout, on the withheld ones",
    ),
    "picked": ("G", "number of picked examples, |G|"),
    "errors_not_picked": ("M", "errors on the examples that were not picked, |M|"),
    "n_selected": ("R", "number of examples with a mark below m'/(T n), picked or not, |R|"),
    "compressed": ("C", "number of these that are picked or misclassified"),
    "iterations": ("K", "iterations kept at the task; for kl, at each task: K1,..,KT"),
    "task": ("t", "the task of the bound, counted from 1"),
}
GRID = "declared in advance: only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and MAX may be kept"
ANYTIME = "share delta over all times: T is the number of tasks so far, and more may come"


def add(commands: Any) -> None:
    """Add the command, with a parser for each kind."""
    parser = commands.add_parser(
        "bound",
        description="Calculate a bound on the error rate from counts of examples and errors, rounded up.",
        epilog="Example: cop2l bound holdout --n 5000 --errors 150 --tasks 5",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    for kind, (sentence, names) in KINDS.items():
        kind_parser = kinds.add_parser(kind, help=sentence, description=f"Calculate {sentence}.")
        for name in names.split():
            letter, meaning = COUNTS[name]
            number = numbers if name == "iterations" and kind == "kl" else int
            kind_parser.add_argument(
                f"--{name.replace('_', '-')}", metavar=letter, type=number, required=True, help=meaning
            )
        if kind != "holdout":
            kind_parser.add_argument("--grid", metavar="MAX", type=int, help=GRID)
        kind_parser.add_argument(
            "--tasks", metavar="T", type=int, default=1, help="number of tasks (default: 1)"
        )
        kind_parser.add_argument(
            "--delta",
            metavar="D",
            type=float,
            default=0.05,
            help="probability that the bound fails (default: 0.05)",
        )
        kind_parser.add_argument("--anytime", action="store_true", help=ANYTIME)
        kind_parser.add_argument("--json", action="store_true", help="print one JSON object")
        kind_parser.set_defaults(run=bound)


def bound(arguments: argparse.Namespace) -> None:
    """Print the bound."""
    from cop2l import bounds
    from cop2l.text import bound_text

    values = vars(arguments)
    counts = {name: values[name] for name in KINDS[arguments.kind][1].split()}
    log_delta = bounds.log_of_delta(arguments.delta)
    share = bounds.anytime_log_delta(log_delta, arguments.tasks) if arguments.anytime else log_delta
    options = {"tasks": arguments.tasks, "log_delta": share}
    if values.get("grid") is not None:
        options["grid"] = bounds.grid_size(arguments.grid, counts["iterations"])
    result = getattr(bounds, f"{arguments.kind.replace('-', '_')}_certificate")(**counts, **options)
    if arguments.json:
        request = {name: values.get(name) for name in ("kind", "task", "tasks", "delta", "grid", "anytime")}
        print(json.dumps({**request, "bound": result.value, "reason": result.reason, "terms": result.terms}))
    else:
        print(
            bound_text(
                result, arguments.tasks, arguments.delta, values.get("task"), anytime=arguments.anytime
            )
        )
