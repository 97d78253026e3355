"""cop2l compare: print tables that compare runs."""

import argparse
import sys

from cop2l.cli.runs import add_runs, find_runs


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compare",
        description="Print tables that compare runs. The rows are methods. For one stream, the columns are metrics;\n"
        "for several, there is a table for each metric, and its columns are the streams. A cell has mean and\n"
        "standard deviation over the seeds; the best is marked.",
        epilog="Example: cop2l compare runs/ --metric accuracy preference --format markdown",
    )
    add_runs(parser)
    parser.add_argument(
        "--metric",
        nargs="+",
        default=["accuracy", "forgetting", "bound", "average"],
        metavar="NAME",
        help="accuracy, forgetting, plasticity, test-error, learned-from, certified-on, picked, seconds, peak-memory,"
        " bound (the claim), kl, preference, buffer, holdout; worst-NAME and"
        " ratio-NAME for bounds; average, lost and worst-lost: bounds on average error and forgetting, if claimed (default:"
        " accuracy forgetting bound average)",
    )
    parser.add_argument(
        "--format",
        default="text",
        metavar="FORMAT",
        help="text, markdown, latex or json (default: text)",
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )
    parser.set_defaults(run=compare)


def compare(arguments: argparse.Namespace) -> None:
    """Read the runs and print the tables."""
    from cop2l.report import formats
    from cop2l.report.comparison import tables
    from cop2l.report.groups import group, repeated
    from cop2l.report.sentences import all_exceeded

    write = formats.writer_of(arguments.format)
    groups = group(find_runs(arguments).finished(), arguments.over)
    for sentence in [*repeated(groups), *all_exceeded(groups)]:
        print(sentence, file=sys.stderr)
    print(write(tables(groups, arguments.metric)), end="")
