"""`cop2l verify` and `cop2l show`."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cop2l.audit.flags import FLAGS
from cop2l.errors import UserError

VERIFY = """\
Check a certificate, all certificates of a run directory, or an export, without trusting them. The data is fingerprinted,
the model is learned again and rebuilt bit for bit, every error is counted again, every bound is checked.
Exit code 0: valid. 1: invalid. 2: cannot tell (data missing, another machine, a split that you did not type).
3: verify itself failed, which says nothing about the certificate."""
EXAMPLES = """\
examples:
  cop2l verify runs/mnist --data mnist
  cop2l verify mine --data my-data.csv --label species --columns length,width --tasks 3
  cop2l verify runs/mnist/certificates/after-05                     without data: hashes and arithmetic alone"""


def names(text: str) -> list[str]:
    """Split A,B,... into a list."""
    return [part.strip() for part in text.split(",")]


def numbers(text: str) -> list[int]:
    """Split 1,2,... into a list of integers."""
    return [int(part) for part in text.split(",")]


def classes(text: str) -> int | list[str]:
    """The number of classes, or their labels."""
    return int(text) if text.isdecimal() else names(text)


SPLIT: dict[str, tuple[str, Any, str]] = {
    "label": ("COLUMN", str, "the column of labels"),
    "columns": ("A,B,...", names, "the columns that are the inputs"),
    "text": ("A,B,...", names, "the columns of text among the inputs"),
    "drop": ("A,B,...", names, "the columns that are left out"),
    "text_size": ("N", int, "the number of values that a text is hashed to"),
    "domain": ("COLUMN", str, "the column of domains"),
    "group": ("COLUMN", str, "the column of groups"),
    "classes": ("N|A,B,...", classes, "the number of classes, or their labels in order"),
    "tasks": ("N", int, "the number of tasks that the data is split into"),
    "scenario": ("NAME", str, "class-incremental, task-incremental or domain-incremental"),
    "class_seed": ("N", int, "the seed that shuffles the classes before they are split"),
    "order": ("NAME", str, "reversed: the last task comes first"),
    "order_seed": ("N", int, "the seed that draws the order of the tasks"),
    "images": ("KIND", str, "shared or disjoint"),
    "seed": ("N", int, "the seed of the stream's draws"),
    "test_share": ("SHARE", float, "the share that is split off for testing"),
    "holdout": ("SHARE", float, "the share that is withheld"),
}
"""The options of `cop2l.streams.load` that have a flag of their own; see `FLAGS`."""


def add(commands: Any) -> None:
    """Add the commands `verify` and `show`."""
    verify = commands.add_parser("verify", description=VERIFY, epilog=EXAMPLES)
    verify.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a certificate, a run directory (all of it), or an exported folder",
    )
    verify.add_argument(
        "--data",
        metavar="STREAM|FOLDER|FILE",
        help="the data the tasks were learned from: a name, a folder, .npz or .csv",
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
        "how the data was split (type what you know, not what the issuer says)",
        "The standard split, that of 'cop2l run DATA' without options, need not be typed.",
    )
    for name, (metavar, kind, sentence) in SPLIT.items():
        split.add_argument(FLAGS[name], dest=name, metavar=metavar, type=kind, help=sentence)
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
        "--limit",
        metavar="OPERATIONS",
        type=float,
        help="stop if the check needs more than this many operations, or too many seconds for them (default: 1e14)",
    )
    limits.add_argument(
        "--count-repeats",
        action="store_true",
        help="count repeated rows as errors and accept the larger bounds",
    )
    limits.add_argument(
        "--repeats-are-draws",
        action="store_true",
        help="the data is discrete: equal rows are independent draws",
    )
    verify.add_argument(
        "--keep-arrays",
        metavar="DIR",
        help="keep the checker's input in a new folder, to run the checker alone (python -m cop2l.kernel)",
    )
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
    """Load the data and run the checker; its exit code is the verdict."""
    from cop2l.audit.verify import run_checker

    flags = ("json", "count_repeats", "repeats_are_draws")
    checker_options = [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name)]
    terminal = sys.stderr.isatty()
    checker_options += ["--say"] if terminal else []
    checker_options += [] if arguments.limit is None else ["--limit", str(arguments.limit)]
    process = run_checker(
        arguments.path,
        arguments.data,
        model=arguments.model,
        split=_typed_split(arguments),
        split_as_stated=arguments.split_as_stated,
        commitment=arguments.commitment,
        keep_arrays=arguments.keep_arrays,
        checker_options=checker_options,
        stdout=subprocess.PIPE,
        stderr=None if terminal else subprocess.PIPE,  # on a terminal the checker shows its progress
    )
    print(process.stdout, end="", flush=True)
    print(process.stderr or "", end="", file=sys.stderr, flush=True)
    return process.returncode if process.returncode in (0, 1, 2, 130) else 3


def run_show(arguments: argparse.Namespace) -> None:
    """Print a certificate."""
    from cop2l.audit.finding import find_certificates
    from cop2l.certificates.certificate import read_certificate
    from cop2l.experiments.records import SUMMARY, read_summary
    from cop2l.kernel import form
    from cop2l.kernel.verdict import Verdict

    folders = find_certificates(arguments.path, Verdict())
    certificate = read_certificate(folders[-1])
    reasons = read_summary(arguments.path).not_valid if (arguments.path / SUMMARY).exists() else ()
    if arguments.json:
        print((folders[-1] / form.TEXT_FILE).read_text(encoding="utf-8"), end="")
    elif arguments.brief:
        print(certificate)
    else:
        assumptions = ["Assumptions:", *(f"  - {sentence}" for sentence in form.ASSUMPTIONS)]
        names = ("method", "scenario", "classes", "model", "data", "options")
        fields = [f"{name}: {json.dumps(certificate.content[name])}" for name in names]
        warnings = [f"NOT VALID: {reason}" for reason in reasons if reason not in certificate.not_valid]
        print("\n".join([*warnings, str(certificate), "", *fields, "", *assumptions]))


def _typed_split(arguments: argparse.Namespace) -> dict[str, Any]:
    """The typed options of the split, by their names in `cop2l.streams.load`."""
    from cop2l.experiments.config import parse_untyped
    from cop2l.experiments.grid import column, value_list
    from cop2l.streams.encoding import COLUMNS

    options = {name: value for name in FLAGS if (value := getattr(arguments, name)) is not None}
    for pair in arguments.option:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"Write --option as KEY=VALUE, for example n=100, not {pair!r}.")
        options[key] = column(value_list(value)) if key in COLUMNS else parse_untyped(value)
    return options
