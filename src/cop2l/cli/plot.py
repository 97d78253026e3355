"""cop2l plot: one figure as a picture."""

import argparse
import sys
from pathlib import Path


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb."""
    verb = verbs.add_parser(
        "plot",
        help="one figure as PNG, SVG or PDF",
        description="Draw one figure from run directories; several streams are drawn below each other.",
        epilog="Example: cop2l plot runs/ --figure bounds --out bounds.pdf",
    )
    verb.add_argument("runs", nargs="+", metavar="RUNS", help="run directories, or folders that hold some")
    verb.add_argument(
        "--figure", default="bounds", metavar="NAME", help="which figure (bounds); a wrong name lists all"
    )
    verb.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a name ending in .png, .svg or .pdf"
    )
    verb.add_argument("--key", help="for the figure 'against': the setting that was varied, such as memory")
    verb.add_argument(
        "--metric", default="accuracy", help="for the figure 'against': what is drawn (accuracy)"
    )
    verb.add_argument(
        "--over", nargs="+", default=["seed"], metavar="KEY", help="configuration keys to average over (seed)"
    )
    verb.set_defaults(run=plot)


def plot(arguments: argparse.Namespace) -> None:
    """Read the runs and save the picture."""
    from cop2l.report.figures import draw
    from cop2l.report.figures.figure import save
    from cop2l.report.runs import find

    found = find(arguments.runs)
    for left in found.left_out:
        print(f"Left out: {left.sentence}", file=sys.stderr)
    runs = found.finished()
    figures = draw(arguments.figure, runs, arguments.over, key=arguments.key, metric=arguments.metric)
    save(figures, arguments.out)
    print(arguments.out)
