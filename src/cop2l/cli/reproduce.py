"""cop2l reproduce: the published numbers beside ours."""

import argparse
import sys
from pathlib import Path


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    verb = verbs.add_parser(
        "reproduce",
        help="the paper's tables and figures beside ours, as a document",
        description="Write the document that sets every published number beside ours, from run directories or from"
        " the files that --collect makes of them.",
        epilog="Examples: cop2l reproduce docs/results; cop2l reproduce runs/ --collect docs/results",
    )
    verb.add_argument("runs", nargs="+", metavar="RUNS", help="run directories, or files of collected runs")
    verb.add_argument(
        "--out",
        type=Path,
        default=Path("docs/reproduction.md"),
        metavar="FILE",
        help="the document (docs/reproduction.md)",
    )
    verb.add_argument(
        "--figures", type=Path, metavar="DIR", help="the pictures (figures, beside the document)"
    )
    verb.add_argument("--no-figures", action="store_true", help="draw no pictures")
    verb.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where explanations.toml and search.jsonl lie (results, beside the document)",
    )
    which = verb.add_mutually_exclusive_group()
    which.add_argument(
        "--collect", type=Path, metavar="DIR", help="write no document; condense the runs into files there"
    )
    which.add_argument(
        "--headline", action="store_true", help="write no document; print the table for a front page"
    )
    verb.set_defaults(run=reproduce)


def reproduce(arguments: argparse.Namespace) -> None:
    """Read the runs, and write the document, the collection or the headline."""
    from cop2l.files import write_text
    from cop2l.report.reproduction.collect import collect
    from cop2l.report.reproduction.document import document, headline, sources
    from cop2l.report.reproduction.pictures import Pictures
    from cop2l.report.runs import find

    found = find(arguments.runs)
    for left in found.left_out:
        print(f"Left out: {left.sentence}", file=sys.stderr)
    runs, beside = found.finished(), arguments.out.parent
    if arguments.collect:
        for path in collect(runs, arguments.collect):
            print(path)
        return
    given = sources(runs, arguments.results or beside / "results")
    if arguments.headline:
        print(headline(given), end="")
        return
    folder = None if arguments.no_figures else arguments.figures or beside / "figures"
    write_text(arguments.out, document(given, Pictures(folder, beside)))
    print(arguments.out)
