"""cop2l report: one page about many runs."""

import argparse
from pathlib import Path

from cop2l.cli.runs import add_runs, find_runs


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        description="Write one HTML page with tables, figures and the meaning of the certificates; no network needed.",
        epilog="Example: cop2l report runs/ --out report.html",
    )
    add_runs(parser, beside=True)
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page (report.html)"
    )
    parser.add_argument("--title", help="the page's title")
    parser.set_defaults(run=report)


def report(arguments: argparse.Namespace) -> None:
    """Read the runs and write the page."""
    from cop2l.files import write_text
    from cop2l.report import published
    from cop2l.report.page import page
    from cop2l.text import count

    beside = published.read_published(arguments.beside) if arguments.beside else ()
    found = find_runs(arguments)
    runs = count(len(found.runs if found.learners else found.finished()), "run")
    runs += f" and {count(len(found.learners), 'saved learner')}" if found.learners else ""
    write_text(arguments.out, page(found, arguments.over, arguments.title, beside))
    print(f"{arguments.out}: {runs} on one page")
