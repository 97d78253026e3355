"""cop2l bound: the calculator of certificates, numbers in and a sentence out."""

import argparse
import json
from typing import Any

from cop2l.cli.verify import numbers

KINDS = {
    "kl": ("the paper's certificate for task t of T", "n compression evicted errors iterations task"),
    "kl-tight": (
        "the paper's certificate with the improvements its proof allows",
        "n compression errors iterations task",
    ),
    "preference": (
        "our certificate for one task of T, with the threshold buffer",
        "n picked errors_not_picked iterations",
    ),
    "combined": (
        "our certificate for one task of T, if no example of a past task can be picked",
        "n picked errors_not_picked iterations",
    ),
    "buffer": (
        "our certificate from the buffer alone, when the task's data is gone",
        "n_selected compressed iterations",
    ),
    "holdout": ("the certificate from withheld examples", "n errors"),
}
"""Each kind with its sentence and with the arguments of its function in `cop2l.bounds`."""

COUNTS = {
    "n": ("N", "size of the task's sample; for a hold-out, of its withheld examples"),
    "compression": ("I", "size of the first compression set |I|; for kl-tight, of both, |I u J|"),
    "evicted": ("J", "size of the second compression set |J|"),
    "errors": (
        "E",
        "errors on the examples that are in no compression set; for a hold-out, on the withheld ones",
    ),
    "picked": ("G", "the examples picked, |G|"),
    "errors_not_picked": ("M", "errors on the examples not picked, |M|"),
    "n_selected": ("R", "the task's examples with a mark below m'/(T n), picked or not, |R|"),
    "compressed": ("C", "how many of them are picked or misclassified"),
    "iterations": ("K", "iterations kept at the task; for kl and kl-tight at each task: K1,..,KT"),
    "task": ("t", "the task the bound is for, counted from 1"),
}
GRID = "only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and MAX may be kept, as declared in advance"
ANYTIME = "T is the number of tasks so far of a stream with no fixed end: share delta over all times"


def add(commands: Any) -> None:
    """Add the command `bound`, with one parser for each kind of certificate."""
    parser = commands.add_parser(
        "bound",
        description="Calculate a certificate from its counts: an upper bound on the error rate, rounded upwards.",
        epilog="Example: cop2l bound holdout --n 5000 --errors 150 --tasks 5",
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    for kind, (sentence, names) in KINDS.items():
        one = kinds.add_parser(kind, help=sentence, description=f"Calculate {sentence}.")
        for name in names.split():
            letter, meaning = COUNTS[name]
            number = numbers if name == "iterations" and kind.startswith("kl") else int
            one.add_argument(
                f"--{name.replace('_', '-')}", metavar=letter, type=number, required=True, help=meaning
            )
        if kind != "holdout":
            one.add_argument("--grid", metavar="MAX", type=int, help=GRID)
        one.add_argument("--tasks", metavar="T", type=int, default=1, help="number of tasks (default 1)")
        one.add_argument(
            "--delta", metavar="D", type=float, default=0.05, help="1 - confidence (default 0.05)"
        )
        one.add_argument("--anytime", action="store_true", help=ANYTIME)
        one.add_argument("--json", action="store_true", help="print one JSON object")
        one.set_defaults(run=bound)


def bound(arguments: argparse.Namespace) -> None:
    """Print one bound: as JSON, or as a sentence and what the bound is made of."""
    from cop2l import bounds
    from cop2l.text import bound_text

    given = vars(arguments)
    counts = {name: given[name] for name in KINDS[arguments.kind][1].split()}
    log_delta = bounds.log_of_delta(arguments.delta)
    share = bounds.anytime_log_delta(log_delta, arguments.tasks) if arguments.anytime else log_delta
    more = {"tasks": arguments.tasks, "log_delta": share}
    if given.get("grid") is not None:
        more["grid"] = bounds.grid_size(arguments.grid, counts["iterations"])
    result = getattr(bounds, f"{arguments.kind.replace('-', '_')}_certificate")(**counts, **more)
    if arguments.json:
        asked = {name: given.get(name) for name in ("kind", "task", "tasks", "delta", "grid", "anytime")}
        print(json.dumps({**asked, "bound": result.value, "reason": result.reason, "terms": result.terms}))
    else:
        print(
            bound_text(result, arguments.tasks, arguments.delta, given.get("task"), anytime=arguments.anytime)
        )
