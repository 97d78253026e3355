"""cop2l bound: the calculator of certificates, numbers in and a sentence out."""

import argparse
import json
import math
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import partial
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
    "average": "the certificate for the mean over tasks, from withheld examples or tasks without picks",
    "forgetting": "the certificate for what was right when its task was learned and is wrong now",
    "group": "the certificate for one class or group of a task",
}
EXAMPLES = {
    "kl": "--n 10000 --compression 300 --evicted 20 --errors 100 --iterations 75,60,80 --task 2 --tasks 3",
    "kl-tight": "--n 10000 --compression 320 --errors 100 --iterations 75,60,80 --task 2 --tasks 3",
    "preference": "--n 10000 --compression 300 --errors 120 --iterations 96 --grid 1024 --tasks 5",
    "combined": "--n 5000 --compression 0 --errors 150 --iterations 0 --grid 20 --tasks 5",
    "buffer": "--n 400 --compression 10 --errors 20 --iterations 96 --grid 1024 --tasks 5",
    "holdout": "--n 5000 --errors 150 --tasks 5",
    "average": "--n 5000,5000,4000 --errors 150,90,110",
    "forgetting": "--n 5000 --lost 60 --gained 20 --tasks 5",
    "group": "--n 800 --errors 30 --groups 4 --tasks 5",
}
OURS = {"preference", "combined", "buffer"}
FAMILIES = {"average", "forgetting", "group"}
PRECISE = Context(prec=50)
GRID = "only the iterations 0, 1, 2, 3, 4, 6, 8, 12, ... and MAX may be kept, as declared in advance"
NUMBER = "the task's number, for the sentence only"


def add(verbs: Any) -> None:
    """Add the verb `bound`, with one parser for each kind of certificate."""
    verb = verbs.add_parser(
        "bound",
        help="calculate a certificate from its counts",
        description="Calculate a certificate from its counts: an upper bound on the error rate, rounded upwards.",
        epilog=f"Example: cop2l bound holdout {EXAMPLES['holdout']}",
    )
    kinds = verb.add_subparsers(title="kinds", metavar="KIND", dest="kind", required=True)
    for kind, sentence in KINDS.items():
        example = f"Example: cop2l bound {kind} {EXAMPLES[kind]}"
        one = kinds.add_parser(kind, help=sentence, description=f"Calculate {sentence}.", epilog=example)
        (_family_options if kind in FAMILIES else _options)(one, kind)
        _common_options(one)
        one.set_defaults(run=bound)


def _options(one: argparse.ArgumentParser, kind: str) -> None:
    n_help = {
        "holdout": "the task's withheld examples",
        "buffer": "the task's examples with a mark below m'/(T n), picked or not (|R|)",
    }
    need = partial(one.add_argument, required=True)
    need("--n", metavar="N", help=n_help.get(kind, "size of the task's sample"))
    if kind == "holdout":
        need("--errors", metavar="E", help="errors on the withheld examples")
    elif kind in OURS:
        need("--compression", metavar="G", help="the examples picked, |G|")
        need("--errors", metavar="E", help="errors on the examples not picked, |M|")
        need("--iterations", metavar="K", help="iterations kept at the task")
    else:
        which = "first compression set |I|" if kind == "kl" else "compression set |I u J|"
        need("--compression", metavar="I", help=f"size of the {which}")
        if kind == "kl":
            one.add_argument("--evicted", metavar="J", default="0", help="size of the second set (default 0)")
        need("--errors", metavar="E", help="errors on the other examples")
        need("--iterations", metavar="K1,..,KT", help="iterations kept at each of the T tasks")
        need("--task", metavar="t", help="the task the bound is for, counted from 1")
    if kind != "holdout":
        one.add_argument("--grid", metavar="MAX", help=GRID)
    if kind == "holdout" or kind in OURS:
        one.add_argument("--task", metavar="t", help=NUMBER)


def _family_options(one: argparse.ArgumentParser, kind: str) -> None:
    need = partial(one.add_argument, required=True)
    combined = "with --iterations: no example of a past task can be picked (the kind combined)"
    if kind == "average":
        need("--n", metavar="N1,..", help="the examples of each task, picked none")
        need("--errors", metavar="E1,..", help="the errors on them")
        combined = (
            "no example of a past task can be picked (the kind combined), else withheld examples; --tasks may then be more "
            "than these tasks, which turned out to be without picks"
        )
    else:
        need(
            "--n",
            metavar="N",
            help="the group's examples" if kind == "group" else "size of the task's sample",
        )
        one.add_argument("--compression", metavar="G", default="0", help="how many were picked (default 0)")
        kept = "iterations kept; not for withheld examples, where nothing is picked"
        one.add_argument("--iterations", metavar="K", help=kept)
        one.add_argument("--grid", metavar="MAX", help=GRID)
        one.add_argument("--task", metavar="t", help=NUMBER)
    if kind == "forgetting":
        need("--lost", metavar="B", help="examples that were right then and are wrong now")
        gained = "examples that were wrong then and are right now, for the net"
        one.add_argument("--gained", metavar="C", help=gained)
    if kind == "group":
        need("--errors", metavar="E", help="errors on the group's examples not picked")
        need("--groups", metavar="NUMBER", help="groups of the task that have an example")
    one.add_argument("--combined", action="store_true", help=combined)


def _common_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--tasks", metavar="T", help="number of tasks (default 1; for an average, those given)")
    one.add_argument(
        "--share", metavar="S", default="1", help="what this family has of delta, as in 1/5 (default 1)"
    )
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
    from cop2l.bounds.outer import down

    given = len(arguments.n.split(",")) if arguments.kind == "average" else 1
    tasks = arguments.tasks = given if arguments.tasks is None else _whole("--tasks", arguments.tasks)
    if getattr(arguments, "task", None) is None:
        arguments.task = None
    else:
        arguments.task = _whole("--task", arguments.task)
        if not 1 <= arguments.task <= tasks:
            raise UserError(f"--task must be from 1 to --tasks = {tasks}, not {arguments.task}.")
    delta, log_delta = _confidence(arguments.delta)
    share = anytime_log_delta(log_delta, tasks) if arguments.anytime else log_delta
    part, net = _part(arguments.share), None
    of_family = down(share + part) if part else share
    if arguments.kind in FAMILIES:
        result, net = _family(arguments, of_family)
    else:
        result = _certificate(arguments, of_family)
    if arguments.json:
        print(json.dumps(_record(arguments, log_delta, share, result, net)))
    else:
        print("\n".join(_lines(arguments, delta, share, result, net)))


def _family(arguments: argparse.Namespace, log_delta: float) -> "tuple[Bound, float | None]":
    """The bound of a statement of another family than `tasks`; for forgetting the bound on the net rise too, if it has one."""
    from cop2l import bounds
    from cop2l.bounds.outer import down

    kind, tasks = arguments.kind, arguments.tasks
    if kind == "average":
        return _average(arguments, log_delta), None
    n = _whole("--n", arguments.n)
    picked = _whole("--compression", arguments.compression)
    wrong = _whole("--lost", arguments.lost) if kind == "forgetting" else _whole("--errors", arguments.errors)
    kept = None if arguments.iterations is None else _whole("--iterations", arguments.iterations)
    grid = _points(arguments.grid, [] if kept is None else [kept])
    if kept is None and (picked or arguments.combined or grid):
        raise UserError(
            "--compression, --combined and --grid need --iterations: withheld examples are never picked."
        )
    held_out = kept is None or (arguments.combined and kept == 0)
    if kind == "group":
        log_delta = down(log_delta - math.log(_at_least_one("--groups", arguments.groups)))
    elif held_out:
        log_delta = down(log_delta - math.log(2))
    of_task = "holdout" if kept is None else "combined" if arguments.combined else "preference"
    counts = {"--n": n, "--compression": picked, "--lost" if kind == "forgetting" else "--errors": wrong}
    result = _of_task(of_task, counts, kept or 0, tasks, log_delta, grid)
    if kind == "group" or arguments.gained is None:
        return result, None
    if not held_out:
        raise UserError(
            "--gained is for withheld examples or tasks without picks; what was lost bounds the net too."
        )
    gained = _whole("--gained", arguments.gained)
    if not 0 <= gained <= n - wrong:
        raise UserError(f"--gained must be from 0 to --n less --lost = {n - wrong}, not {gained}.")
    half = log_delta - math.log(tasks) + (0.0 if kept is None else math.log(0.75))
    least = bounds.gained_at_least(gained, n, down(half)) if n else 0.0
    return result, bounds.net_forgetting(result.value, least)


def _average(arguments: argparse.Namespace, log_delta: float) -> "Bound":
    from cop2l import bounds
    from cop2l.bounds.outer import down

    sizes, errors = (
        [_whole(option, text) for text in values.split(",")]
        for option, values in (("--n", arguments.n), ("--errors", arguments.errors))
    )
    if len(sizes) != len(errors):
        raise UserError(f"--n has {len(sizes)} tasks and --errors has {len(errors)}; they must be as many.")
    if len(sizes) != arguments.tasks and not (arguments.combined and len(sizes) < arguments.tasks):
        raise UserError(
            f"--tasks must be the {len(sizes)} tasks given, or more with --combined, not {arguments.tasks}."
        )
    weight = bounds.log_set_weight(arguments.tasks, len(sizes)) if arguments.combined else 0.0
    return bounds.pooled_certificate(list(zip(sizes, errors, strict=True)), down(log_delta + weight))


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
        if len(each) != 1:
            raise UserError(
                f"--iterations must be one number, that of the task, not {arguments.iterations!r}."
            )
        counts = {"--n": n, "--compression": picked, "--errors": errors}
        return _of_task(kind, counts, each[0], tasks, log_delta, grid)
    last = (errors, each, arguments.task, tasks, log_delta)
    if kind == "kl-tight":
        return bounds.kl_tight_certificate(n, picked, *last, grid=grid)
    return bounds.kl_certificate(n, picked, _whole("--evicted", arguments.evicted), *last, grid=grid)


def _of_task(
    kind: str, counts: dict[str, int], kept: int, tasks: int, log_delta: float, grid: int | None
) -> "Bound":
    """A bound of the kinds that are ours, or of withheld examples; what does not fit is refused by the names of options."""
    from cop2l import bounds

    (n, picked, wrong), option = counts.values(), [*counts][2]
    if not 0 <= picked <= n:
        raise UserError(f"--compression must be from 0 to --n = {n}, not {picked}.")
    if not 0 <= wrong <= n - picked:
        raise UserError(f"{option} must be from 0 to --n less --compression = {n - picked}, not {wrong}.")
    if kind == "combined" and picked and not kept:
        raise UserError(f"--compression must be 0 where --iterations is 0, not {picked}.")
    if kind == "holdout":
        return bounds.holdout_certificate(n, wrong, tasks, log_delta)
    if kind == "buffer":
        return bounds.buffer_certificate(n, picked + wrong, kept, tasks, log_delta, grid=grid)
    of_kind = bounds.combined_certificate if kind == "combined" else bounds.preference_certificate
    return of_kind(n, picked, wrong, kept, tasks, log_delta, grid=grid)


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


def _at_least_one(option: str, text: str) -> int:
    number = _whole(option, text)
    if number < 1:
        raise UserError(f"{option} must be at least 1, not {number}.")
    return number


def _part(text: str) -> float:
    """The logarithm of a family's share of delta, rounded down."""
    try:
        part = Fraction(text)
    except (ValueError, ZeroDivisionError):
        part = Fraction(0)
    if not 0 < part <= 1:
        raise UserError(f"--share must be a number above 0 and at most 1, as in 1/5 or 0.2, not {text!r}.")
    if part == 1:
        return 0.0
    exact = PRECISE.divide(Decimal(part.numerator), Decimal(part.denominator))
    return math.nextafter(float(exact.ln(PRECISE)), -math.inf)


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


def _record(
    arguments: argparse.Namespace, log_delta: float, share: float, result: "Bound", net: float | None
) -> dict[str, Any]:
    return {
        "kind": arguments.kind,
        "bound": result.value,
        "net": net,
        "reason": result.reason,
        "task": arguments.task,
        "tasks": arguments.tasks,
        "delta": float(arguments.delta),
        "share": arguments.share,
        "log_delta": log_delta,
        "grid": None if getattr(arguments, "grid", None) is None else int(arguments.grid),
        "anytime": arguments.anytime,
        "anytime_log_delta": share if arguments.anytime else None,
        "terms": result.terms,
    }


def _lines(
    arguments: argparse.Namespace, delta: Decimal, share: float, result: "Bound", net: float | None
) -> list[str]:
    from cop2l.text import confidence, percent

    tasks = arguments.tasks
    where = f" on this task, one of {tasks}," if tasks > 1 else ""
    if arguments.task is not None:
        where = f" on task {arguments.task} of {tasks}"
    likely, rate = confidence(delta), percent(result.value)
    said = f"the error rate{where} is at most {rate}"
    if arguments.kind == "average":
        number = len(arguments.n.split(","))
        weighted = ", weighted by examples," * (len(set(arguments.n.split(","))) > 1)
        of = "tasks" if number == tasks else f"tasks without picks, of {tasks},"
        said = f"the error rate averaged over the {number} {of}{weighted} is at most {rate}".replace(
            ",,", ","
        )
    elif arguments.kind == "forgetting":
        whose = where.replace(" on ", " of ", 1) or " of the task"
        said = f"at most {rate}{whose} was right when it was learned and is wrong now"
    elif arguments.kind == "group":
        said = f"of this group{where} at most {rate} is misclassified"
    lines = [f"With probability at least {likely} over the draw of the data, {said}."]
    if net is not None:
        lines.append(f"At once, the error rate rose by at most {percent(net)} since then.")
    if result.reason:
        lines.append(f"That says nothing: {result.reason[0].lower()}{result.reason[1:]}")
    if arguments.share != "1":
        lines.append(
            f"This family of statements has {arguments.share} of delta; what else is claimed has the rest."
        )
    if arguments.anytime:
        lines.append("The same probability covers all tasks at once, at every time a certificate is issued;")
        lines.append(f"for that, the certificates after task {tasks} use delta = {math.exp(share):.4g}.")
    elif tasks > 1 and arguments.kind != "average":
        lines.append(f"The same probability covers all {tasks} tasks at once, after task {tasks}.")
    terms = {name: f"{x}" if isinstance(x, int) else f"{x:.6g}" for name, x in result.terms.items()}
    terms["bound"] = f"{Decimal(result.value).quantize(Decimal('1e-9'), ROUND_CEILING):f}"
    width = max(map(len, terms))
    return [*lines, "", f"What the {result.kind} bound is made of:"] + [
        f"  {name:<{width}}  {text}" for name, text in terms.items()
    ]
