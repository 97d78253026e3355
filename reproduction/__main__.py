"""python -m reproduction: the published numbers beside ours."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cop2l.errors import UserError
from cop2l.files import write_text
from cop2l.report.runs import find_runs
from reproduction.collect import collect
from reproduction.document import document, headline, sources
from reproduction.families import families
from reproduction.ladder import ladder
from reproduction.pictures import Pictures

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Write the document that sets every published number beside ours, from run directories or from"
        " the files that --collect makes of them.",
        epilog="Examples: python -m reproduction; python -m reproduction runs/ --collect reproduction/results",
    )
    made.add_argument(
        "runs",
        nargs="*",
        default=[RESULTS],
        metavar="RUNS",
        help="run directories, or files of collected runs (reproduction/results)",
    )
    made.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction/tables.md"),
        metavar="FILE",
        help="the document (reproduction/tables.md)",
    )
    made.add_argument(
        "--figures", type=Path, metavar="DIR", help="the pictures (figures, beside the document)"
    )
    made.add_argument("--no-figures", action="store_true", help="draw no pictures")
    made.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where explanations.toml lies (reproduction/results)",
    )
    which = made.add_mutually_exclusive_group()
    which.add_argument(
        "--collect", type=Path, metavar="DIR", help="write no document; condense the runs into files there"
    )
    which.add_argument(
        "--headline", action="store_true", help="write no document; print the table of README.md"
    )
    which.add_argument(
        "--ladder", action="store_true", help="write no document; print the ladders of docs/results.md"
    )
    which.add_argument(
        "--families",
        action="store_true",
        help="write no document; print the table of claims of docs/results.md",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write the document, the collection or the headline; what the user did wrong is one sentence."""
    try:
        reproduce(parser().parse_args(argv))
    except (UserError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


def reproduce(arguments: argparse.Namespace) -> None:
    """Read the runs, and write what is asked for."""
    found = find_runs(arguments.runs)
    for left in found.left_out:
        print(f"Left out: {left.sentence}", file=sys.stderr)
    runs, beside = found.finished(), arguments.out.parent
    if arguments.collect:
        for path in collect(runs, arguments.collect):
            print(path)
        return
    if arguments.ladder:
        print(ladder(runs), end="")
        return
    if arguments.families:
        print(families(runs), end="")
        return
    given = sources(runs, arguments.results)
    if arguments.headline:
        print(headline(given), end="")
        return
    folder = None if arguments.no_figures else arguments.figures or beside / "figures"
    write_text(arguments.out, document(given, Pictures(folder, beside)))
    print(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
