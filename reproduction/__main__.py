"""python -m reproduction: the published numbers beside ours."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cop2l.errors import UserError
from cop2l.files import write_text
from reproduction.collect import collect, read_runs
from reproduction.document import document, headline, sources
from reproduction.families import families
from reproduction.ladder import ladder
from reproduction.pictures import Pictures

RESULTS = Path(__file__).parent / "results"
PRINTED = {
    "headline": "the table of README.md",
    "ladder": "the ladders of docs/results.md",
    "families": "the table of claims of docs/results.md",
}
"""The options that print a table."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Write the paper's numbers beside ours, from run directories or from files of collected runs.",
        epilog="Examples: python -m reproduction; python -m reproduction runs/ --collect reproduction/results",
    )
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        type=Path,
        default=[RESULTS],
        metavar="RUNS",
        help="run directories, or files of collected runs (reproduction/results)",
    )
    document_file = Path("reproduction/tables.md")
    add("--out", type=Path, default=document_file, metavar="FILE", help=f"the document ({document_file})")
    add("--no-figures", action="store_true", help="draw no figures")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--collect", type=Path, metavar="DIR", help="only add the runs to the files of this folder"
    )
    for option, table in PRINTED.items():
        modes.add_argument(f"--{option}", action="store_true", help=f"only print {table}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; an error of the user is one sentence."""
    try:
        reproduce(parser().parse_args(argv))
    except (UserError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


def reproduce(arguments: argparse.Namespace) -> None:
    """Read the runs, and write or print what the options name."""
    run_set = read_runs(arguments.runs)
    for left in run_set.left_out:
        print(f"Left out: {left.sentence}", file=sys.stderr)
    runs, folder = run_set.finished(), arguments.out.parent
    if arguments.collect:
        for path in collect(runs, arguments.collect):
            print(path)
    elif arguments.ladder:
        print(ladder(runs), end="")
    elif arguments.families:
        print(families(runs), end="")
    elif arguments.headline:
        print(headline(sources(runs, RESULTS)), end="")
    else:
        pictures = Pictures(None if arguments.no_figures else folder / "figures", folder)
        write_text(arguments.out, document(sources(runs, RESULTS), pictures))
        print(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
