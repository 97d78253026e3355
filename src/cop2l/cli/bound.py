"""cop2l bound: the calculator of certificates, numbers in and a sentence out."""

import argparse
import json
import math
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from cop2l.errors import UserError

if TYPE_CHECKING:
    from cop2l.bounds import Bound

KINDS = {
    "kl": "the paper's certificate for task t of T",
    "kl-tight": "the paper's certificate with the improvements its proof allows",
    "preference": "our certificate for one task of T, with the threshold buffer",
    "combined": "our certificate for one task of T, if no example of a past task can be picked",
    "buffer": "our certificate from the buffer alone, when the task's data is gone",
    "holdout": "the certificate from withheld examples",
}

OURS = {"preference", "combined", "buffer"}
PRECISE = Context(prec=50)
EPILOG = "Errors are counted outside the compression set only."


def add(verbs: Any) -> None:
    """Add the verb `bound`, with one parser for each kind of certificate."""
    verb = verbs.add_parser(
        "bound",
        help="calculate a certificate from its counts",
        description="Calculate a certificate from its counts: an upper bound on the error rate, rounded upwards.",
        epilog=EPILOG,
    )
    kinds = verb.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    for kind, sentence in KINDS.items():
        one = kinds.add_parser(kind, help=sentence, description=f"Calculate {sentence}.", epilog=EPILOG)
        _options(one, kind)
        one.set_defaults(run=bound)


def _options(one: argparse.ArgumentParser, kind: str) -> None:
    paper, ours = kind in {"kl", "kl-tight"}, kind in OURS
    n_help = {
        "holdout": "the task's withheld examples",
        "buffer": "the task's examples with a mark below the last threshold, picked or not (|R|)",
    }
    one.add_argument("--n", metavar="N", required=True, help=n_help.get(kind, "size of the task's sample"))
    if paper:
        one.add_argument(
            "--compression", metavar="I", required=True, help="size of the first compression set |I|"
        )
        text = "size of the second compression set |J| (default 0)"
        if kind == "kl-tight":
            text += "; an example evicted after the last task counts in --compression instead"
        one.add_argument("--evicted", metavar="J", default="0", help=text)
        one.add_argument(
            "--errors", metavar="E", required=True, help="errors on the n - |I| - |J| other examples"
        )
        one.add_argument(
            "--iterations", metavar="K1,..,KT", required=True, help="iterations kept at each of the T tasks"
        )
        one.add_argument(
            "--task", metavar="t", required=True, help="the task the bound is for, counted from 1"
        )
    if ours:
        one.add_argument("--compression", metavar="G", required=True, help="the examples picked, |G|")
        one.add_argument(
            "--errors", metavar="E", required=True, help="errors on the examples not picked, |M|"
        )
        one.add_argument("--iterations", metavar="K", required=True, help="iterations kept at the task")
    if kind == "holdout":
        one.add_argument("--errors", metavar="E", required=True, help="errors on the withheld examples")
    if not paper:
        one.add_argument("--task", metavar="t", help="the task's number, for the sentence only")
    if kind == "kl-tight":
        one.add_argument(
            "--marked",
            action="store_true",
            help="marks drawn in advance decide who stays in the buffer (threshold, witness): no J",
        )
    if kind != "holdout":
        one.add_argument(
            "--grid",
            metavar="MAX",
            help="only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and MAX may be kept, as declared in advance",
        )
    one.add_argument("--tasks", metavar="T", default="1", help="number of tasks (default 1)")
    one.add_argument("--delta", metavar="D", default="0.05", help="1 - confidence, in (0, 1] (default 0.05)")
    one.add_argument(
        "--anytime",
        action="store_true",
        help="T is the number of tasks so far of a stream with no fixed end: share delta over all times",
    )
    one.add_argument("--json", action="store_true", help="print one JSON object")


def bound(arguments: argparse.Namespace) -> None:
    """Print one bound: as JSON, or as a sentence and what the bound is made of."""
    from cop2l.bounds import anytime_log_delta

    tasks = arguments.tasks = _whole("--tasks", arguments.tasks)
    if arguments.task is not None:
        arguments.task = _whole("--task", arguments.task)
        if not 1 <= arguments.task <= tasks:
            raise UserError(f"--task must be from 1 to --tasks = {tasks}, not {arguments.task}.")
    delta, log_delta = _confidence(arguments.delta)
    share = anytime_log_delta(log_delta, tasks) if arguments.anytime else log_delta
    result = _certificate(arguments, share)
    if arguments.json:
        print(json.dumps(_record(arguments, log_delta, share, result)))
    else:
        print("\n".join(_lines(arguments, delta, share, result)))


def _certificate(arguments: argparse.Namespace, log_delta: float) -> "Bound":
    from cop2l import bounds

    kind, tasks = arguments.kind, arguments.tasks
    n, errors = _whole("--n", arguments.n), _whole("--errors", arguments.errors)
    if kind == "holdout":
        return bounds.holdout_certificate(n, errors, tasks, log_delta)
    each = [_whole("--iterations", text) for text in arguments.iterations.split(",")]
    grid = _points(arguments.grid, each)
    picked = _whole("--compression", arguments.compression)
    if kind in OURS:
        if not 0 <= picked <= n:
            raise UserError(f"--compression must be from 0 to --n = {n}, not {picked}.")
        if not 0 <= errors <= n - picked:
            raise UserError(
                f"--errors must be from 0 to --n less --compression = {n - picked}, not {errors}."
            )
        if len(each) != 1:
            raise UserError(
                f"--iterations must be one number, that of the task, not {arguments.iterations!r}."
            )
        (kept,) = each
        if kind == "buffer":
            return bounds.buffer_certificate(n, picked + errors, kept, tasks, log_delta, grid=grid)
        if kind == "combined":
            return bounds.combined_certificate(n, picked, errors, kept, tasks, log_delta, grid=grid)
        return bounds.preference_certificate(n, picked, errors, kept, tasks, log_delta, grid=grid)
    evicted = _whole("--evicted", arguments.evicted)
    counts = (n, picked, evicted, errors, each, arguments.task, tasks, log_delta)
    if kind == "kl":
        return bounds.kl_certificate(*counts, grid=grid)
    return bounds.kl_tight_certificate(*counts, grid=grid, marked=arguments.marked)


def _points(text: str | None, iterations: list[int]) -> int | None:
    """How many numbers of iterations the grid up to MAX has, if all those given are among them."""
    if text is None:
        return None
    from cop2l.kernel.options import grid_points

    last = _whole("--grid", text)
    if not 0 <= last <= 10**9:
        raise UserError(f"--grid must be an integer from 0 to 10^9, not {last}.")
    found = grid_points(last)
    for kept in iterations:
        if kept not in found:
            raise UserError(
                f"--iterations must be numbers of the grid {', '.join(map(str, found))}, not {kept}."
            )
    return len(found)


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{option} must be an integer, not {text!r}.") from None


def _confidence(text: str) -> tuple[Decimal, float]:
    """Delta as it was typed, and its logarithm rounded down; a Decimal does not underflow."""
    try:
        delta = Decimal(text)
    except InvalidOperation:
        delta = Decimal("nan")
    if delta.is_nan() or not 0 < delta <= 1:
        raise UserError(f"--delta must be a number above 0 and at most 1, not {text!r}.")
    if delta == 1:
        return delta, 0.0
    return delta, math.nextafter(float(delta.ln(PRECISE)), -math.inf)


def _record(arguments: argparse.Namespace, log_delta: float, share: float, result: "Bound") -> dict[str, Any]:
    return {
        "kind": result.kind,
        "bound": result.value,
        "reason": result.reason,
        "task": arguments.task,
        "tasks": arguments.tasks,
        "delta": float(arguments.delta),
        "log_delta": log_delta,
        "grid": None if getattr(arguments, "grid", None) is None else int(arguments.grid),
        "anytime": arguments.anytime,
        "anytime_log_delta": share if arguments.anytime else None,
        "terms": result.terms,
    }


def _lines(arguments: argparse.Namespace, delta: Decimal, share: float, result: "Bound") -> list[str]:
    from cop2l.kernel.arithmetic import percent

    tasks = arguments.tasks
    where = f" on this task, one of {tasks}," if tasks > 1 else ""
    if arguments.task is not None:
        where = f" on task {arguments.task} of {tasks}"
    digits = max(2, -Decimal(result.value).adjusted())  # a small bound keeps three of them
    confidence, rate = _confidence_text(delta), percent(result.value, digits)
    lines = [
        f"With probability at least {confidence} over the draw of the data, the error rate{where} is at most {rate}."
    ]
    if result.reason:
        lines.append(f"That says nothing: {result.reason[0].lower()}{result.reason[1:]}")
    if arguments.anytime:
        lines.append("The same probability covers all tasks at once, at every time a certificate is issued;")
        lines.append(f"for that, the certificates after task {tasks} use delta = {math.exp(share):.4g}.")
    elif tasks > 1:
        lines.append(f"The same probability covers all {tasks} tasks at once, after task {tasks}.")
    terms = {name: f"{x}" if isinstance(x, int) else f"{x:.6g}" for name, x in result.terms.items()}
    terms["bound"] = f"{Decimal(result.value).quantize(Decimal('1e-9'), ROUND_CEILING):f}"
    width = max(map(len, terms))
    return [*lines, "", f"What the {result.kind} bound is made of:"] + [
        f"  {name:<{width}}  {text}" for name, text in terms.items()
    ]


def _confidence_text(delta: Decimal) -> str:
    if delta < Decimal("1e-6"):
        return f"1 - {delta:e}"
    return f"{PRECISE.subtract(100, PRECISE.multiply(100, delta)).normalize(PRECISE):f} %"
