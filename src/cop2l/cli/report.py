"""cop2l report: write one HTML page about runs."""

import argparse
from pathlib import Path

from cop2l.cli.runs import add_runs, find_runs


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        description="Write one HTML page about runs: tables, figures and the meaning of the certificates. It needs no network.",
        epilog="Example: cop2l report runs/ --out report.html",
    )
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html)",
    )
    parser.add_argument("--title", help="the title of the page")
    parser.set_defaults(run=report)


def report(arguments: argparse.Namespace) -> None:
    from cop2l.files import write_text
    from cop2l.report.page import page
    from cop2l.text import count

    runs = find_runs(arguments)
    content = count(len(runs.runs if runs.learners else runs.finished()), "run")
    content += f" and {count(len(runs.learners), 'saved learner')}" if runs.learners else ""
    write_text(arguments.out, page(runs, arguments.over, arguments.title))
    print(f"{arguments.out}: {content} on one page")
