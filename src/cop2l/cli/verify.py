"""`cop2l verify` and `cop2l show`: what an auditor runs."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cop2l.errors import UserError

VERIFY = """\
Check a certificate, all certificates and files of a run directory, or an export, without trusting them: the data is
fingerprinted, the model is learned again and rebuilt bit for bit, every error is counted again, every bound is checked.
Exit code 0: valid. 1: invalid. 2: cannot tell (data missing, another machine, a split that you did not type).
3: verify itself could not do its work; then nothing is said about the certificate."""
EXAMPLES = """\
examples:
  cop2l verify runs/mnist --data mnist
  cop2l verify mine --data my-data.csv --label species --columns length,width --tasks 3
  cop2l verify runs/mnist/certificates/after-05                     without data: hashes and arithmetic alone"""


def names(text: str) -> list[str]:
    """A,B,... as a list."""
    return [part.strip() for part in text.split(",")]


def numbers(text: str) -> list[int]:
    """1,2,... as a list."""
    return [int(part) for part in text.split(",")]


def classes(text: str) -> int | list[str]:
    """How many classes, or their labels."""
    return int(text) if text.isdecimal() else names(text)


SPLIT: dict[str, tuple[str, Any, str]] = {
    "label": ("COLUMN", str, "the column of labels"),
    "columns": ("A,B,...", names, "the columns that are the inputs"),
    "text": ("A,B,...", names, "the columns of text among them"),
    "text_size": ("N", int, "into how many numbers a text is hashed"),
    "domain": ("COLUMN", str, "the column of domains"),
    "group": ("COLUMN", str, "the column of groups"),
    "classes": ("N|A,B,...", classes, "how many classes there are, or their labels in order"),
    "tasks": ("N", int, "into how many tasks the data is split"),
    "scenario": ("NAME", str, "class-incremental, task-incremental or domain-incremental"),
    "class_seed": ("N", int, "the seed that shuffles the classes before they are split"),
    "order": ("NAME", str, "reversed, where the last task comes first"),
    "order_seed": ("N", int, "the seed that draws the order of the tasks"),
    "images": ("KIND", str, "shared or disjoint"),
    "stream_seed": ("N", int, "the seed of what the stream draws"),
    "test_share": ("SHARE", float, "the share that is split off for testing"),
    "holdout": ("SHARE", float, "the share that is withheld"),
}
LOADED_AS = {"stream_seed": "seed"}


def add(commands: Any) -> None:
    """Add the commands `verify` and `show`."""
    verify = commands.add_parser(
        "verify",
        description=VERIFY,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a certificate, a run directory (all of it), or an exported folder",
    )
    verify.add_argument(
        "--data", metavar="STREAM|FOLDER|FILE.npz", help="the data the tasks were learned from"
    )
    verify.add_argument(
        "--model",
        metavar="PACKAGE.MODULE:BUILD",
        help="your function build(seed), for a model that is not cop2l's own",
    )
    verify.add_argument(
        "--commitment", metavar="HASH|FILE", help="the commitment that you were handed before"
    )
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    split = verify.add_argument_group(
        "how you know the data to be split, where that is not the stream's standard"
    )
    for name, (metavar, kind, words) in SPLIT.items():
        split.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=kind, help=words)
    split.add_argument(
        "--task-classes", metavar="0,1", nargs="+", type=numbers, help="the classes of each task"
    )
    split.add_argument(
        "--option", metavar="KEY=VALUE", action="append", default=[], help="any other option of the stream"
    )
    split.add_argument(
        "--split-as-stated", action="store_true", help="accept the issuer's split; the verdict lists it"
    )
    limits = verify.add_argument_group("what you accept")
    limits.add_argument(
        "--limit", metavar="OPERATIONS", type=float, help="refuse more arithmetic than this (1e14)"
    )
    limits.add_argument(
        "--count-repeats",
        action="store_true",
        help="where the stated bounds do not count repeated rows as errors, accept the larger bounds that do",
    )
    limits.add_argument(
        "--repeats-are-draws",
        action="store_true",
        help="the data is discrete: equal rows are independent draws",
    )
    verify.add_argument("--keep-arrays", metavar="DIR", help="keep what the checker is given in a new folder")
    verify.set_defaults(run=run_verify)
    show = commands.add_parser(
        "show",
        description="Print what a certificate claims. Nothing is checked: see 'cop2l verify'.",
        epilog="Example: cop2l show runs/mnist",
    )
    show.add_argument(
        "path", metavar="PATH", type=Path, help="a certificate, or a run directory (its last certificate)"
    )
    show.add_argument("--brief", action="store_true", help="print the table alone")
    show.add_argument("--json", action="store_true", help="print the certificate's own JSON")
    show.set_defaults(run=run_show)


def run_verify(arguments: argparse.Namespace) -> int:
    """Load the data and start the checker, which prints the verdict; its exit code is the verdict."""
    from cop2l.audit.verify import check

    flags = ("json", "count_repeats", "repeats_are_draws")
    more = [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    more += ["--say"] if sys.stderr.isatty() else []
    more += [] if arguments.limit is None else ["--limit", str(arguments.limit)]
    done = check(
        arguments.path,
        arguments.data,
        model=arguments.model,
        split=_typed(arguments),
        split_as_stated=arguments.split_as_stated,
        commitment=arguments.commitment,
        keep_arrays=arguments.keep_arrays,
        more=tuple(more),
        stdout=subprocess.PIPE,
        stderr=None if sys.stderr.isatty() else subprocess.PIPE,  # on a terminal it says how far it is
    )
    print(done.stdout, end="", flush=True)
    print(done.stderr or "", end="", file=sys.stderr, flush=True)
    return done.returncode if done.returncode in (0, 1, 2, 130) else 3


def run_show(arguments: argparse.Namespace) -> None:
    """Print a certificate."""
    from cop2l.audit.finding import find_certificates
    from cop2l.certify.certificate import read_certificate
    from cop2l.experiments.records import SUMMARY, read_summary
    from cop2l.kernel import form
    from cop2l.kernel.options import Refusal
    from cop2l.kernel.verdict import Verdict

    try:
        folders = find_certificates(arguments.path, Verdict())
        found = read_certificate(folders[-1])
        reasons = read_summary(arguments.path).not_valid if (arguments.path / SUMMARY).exists() else ()
    except Refusal as refusal:
        raise UserError(str(refusal)) from None
    if arguments.json:
        print((folders[-1] / form.TEXT_FILE).read_text(encoding="utf-8"), end="")
    elif arguments.brief:
        print(found)
    else:
        assumed = ["Assumptions:", *(f"  - {sentence}" for sentence in form.ASSUMPTIONS)]
        names = ("method", "scenario", "classes", "model", "data", "options")
        fields = [f"{name}: {json.dumps(found.content[name])}" for name in names]
        first = [f"NOT VALID: {reason}" for reason in reasons if reason not in found.not_valid]
        print("\n".join([*first, str(found), "", *fields, "", *assumed]))


def _typed(arguments: argparse.Namespace) -> dict[str, Any]:
    """The split that was typed, by the names of `cop2l.streams.load`."""
    from cop2l.experiments.config import parse_untyped

    given = {LOADED_AS.get(name, name): getattr(arguments, name) for name in SPLIT} | {
        "task_classes": arguments.task_classes
    }
    typed = {name: value for name, value in given.items() if value is not None}
    for pair in arguments.option:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"Write --option as KEY=VALUE, for example n=100, not {pair!r}.")
        typed[key] = parse_untyped(value)
    return typed
