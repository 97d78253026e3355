"""cop2l plot: draw one figure as PNG, SVG or PDF."""

import argparse
from pathlib import Path

from cop2l.cli.runs import add_runs, find_runs


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plot",
        description="Draw one figure from run directories. Several streams are drawn below each other.",
        epilog="Example: cop2l plot runs/ --figure bounds --out bounds.pdf",
    )
    add_runs(parser)
    parser.add_argument(
        "--figure",
        default="bounds",
        metavar="NAME",
        help="bounds, all-bounds, progress, matrix, classes, plasticity or against (default: bounds)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a name ending in .png, .svg or .pdf"
    )
    parser.add_argument("--key", help="for the figure 'against': the key that varies, such as memory")
    parser.add_argument(
        "--metric",
        default="accuracy",
        help="for the figure 'against': the metric to draw (default: accuracy)",
    )
    parser.set_defaults(run=plot)


def plot(arguments: argparse.Namespace) -> None:
    from cop2l.report.figures import draw
    from cop2l.report.figures.figure import save

    runs = find_runs(arguments).finished()
    figures = draw(arguments.figure, runs, arguments.over, key=arguments.key, metric=arguments.metric)
    save(figures, arguments.out)
    print(arguments.out)
