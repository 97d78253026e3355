"""`cop2l verify` and `cop2l show`: what an auditor runs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cop2l.errors import UserError

VERIFY = """\
Check a certificate, all certificates and files of a run directory, or an export, without trusting them: the data is
fingerprinted, the model is learned again and rebuilt bit for bit, every error is counted again, every bound is checked.
Exit code 0: valid. 1: invalid. 2: cannot tell (data missing, another machine, a cut that you did not type).
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


CUT: dict[str, tuple[str, Any, str]] = {
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
    cut = verify.add_argument_group(
        "how you know the data to be cut, where that is not the stream's standard"
    )
    for name, (metavar, kind, words) in CUT.items():
        cut.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, type=kind, help=words)
    cut.add_argument(
        "--task-classes", metavar="0,1", nargs="+", type=numbers, help="the classes of each task"
    )
    cut.add_argument(
        "--option", metavar="KEY=VALUE", action="append", default=[], help="any other option of the stream"
    )
    cut.add_argument(
        "--cut-as-stated", action="store_true", help="accept the issuer's cut; the claim then lists it"
    )
    limits = verify.add_argument_group("what you accept")
    limits.add_argument(
        "--limit", metavar="OPERATIONS", type=float, help="refuse more arithmetic than this (1e14)"
    )
    limits.add_argument(
        "--repeated", metavar="SHARE", type=float, help="rows of a task that may repeat another (0.002)"
    )
    limits.add_argument(
        "--shared", metavar="N", type=int, help="rows of a task that an earlier task may have (0)"
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
    """Check it; the exit code is the verdict."""
    from cop2l.audit.verify import verify
    from cop2l.kernel.verify import Allowed

    given = {"operations": arguments.limit, "repeated": arguments.repeated, "shared": arguments.shared}
    shown = sys.stderr.isatty()
    verdict = verify(
        arguments.path,
        arguments.data,
        model=arguments.model,
        cut=_typed(arguments),
        cut_as_stated=arguments.cut_as_stated,
        commitment=arguments.commitment,
        allowed=Allowed(**{key: value for key, value in given.items() if value is not None}),
        say=lambda sentence: print(sentence, file=sys.stderr, flush=True) if shown else None,
    )
    print(json.dumps(verdict.as_dict(), indent=1) if arguments.json else verdict, flush=True)
    return verdict.exit_code


def run_show(arguments: argparse.Namespace) -> None:
    """Print a certificate."""
    from cop2l.audit.finding import find
    from cop2l.certify.certificate import read
    from cop2l.experiments.records import SUMMARY, read_summary
    from cop2l.kernel import form
    from cop2l.kernel.options import Refusal
    from cop2l.kernel.verdict import Verdict, claim_in_words
    from cop2l.text import Names

    try:
        folders, run = find(arguments.path, Verdict())
        if not folders:
            raise UserError(f"There is no certificate in {arguments.path}; its run has issued none so far.")
        content = form.read(folders[-1])
        reasons = content["not_valid"]
        if run is not None and (run / SUMMARY).exists():
            reasons = read_summary(run).not_valid
    except Refusal as refusal:
        raise UserError(str(refusal)) from None
    if arguments.json:
        print((folders[-1] / form.TEXT_FILE).read_text(encoding="utf-8"), end="")
    elif arguments.brief:
        print(read(folders[-1]))
    else:
        assumed = ["Assumptions:", *(f"  - {sentence}" for sentence in form.ASSUMPTIONS)]
        first = [f"NOT VALID: {reason}" for reason in reasons]
        lines = [
            *first,
            *map(Names.of(content["data"]).put, claim_in_words(content)),
            "",
            str(read(folders[-1])),
            "",
            *assumed,
        ]
        print("\n".join(lines))


def _typed(arguments: argparse.Namespace) -> dict[str, Any]:
    """The cut that was typed, by the names of `cop2l.streams.load`."""
    from cop2l.experiments.config import loose

    given = {LOADED_AS.get(name, name): getattr(arguments, name) for name in CUT} | {
        "task_classes": arguments.task_classes
    }
    typed = {name: value for name, value in given.items() if value is not None}
    for pair in arguments.option:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"Write --option as KEY=VALUE, for example n=100, not {pair!r}.")
        typed[key] = loose(value)
    return typed
