"""cop2l learn and cop2l predict: a saved learner at work."""

import argparse
import json
import sys
from typing import Any

LEARN = """\
examples:
  cop2l learn runs/mine --data new.csv --out mine            the bounds of earlier tasks are from memory alone
  cop2l learn mine --data newer.csv --archive 6=new.csv      the data of task 6 certifies it once more"""
PREDICT = """\
examples:
  cop2l predict runs/mine --data new.csv
  cop2l predict runs/mine --data new.npz --out classes.npy"""


def add(verbs: Any) -> None:
    """The parsers of the two verbs."""
    parser = verbs.add_parser(
        "learn",
        help="add a task to a saved learner, with a new certificate",
        description="Add a task to a saved learner. A CoP2L learner also issues a new certificate.",
        epilog=LEARN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser)
    parser.add_argument(
        "--classes",
        metavar="0,1,...",
        help="the task's own classes, fixed in advance, as 4,5 or 0-9; those that the model lacks are added to it",
    )
    parser.add_argument(
        "--archive",
        metavar="T=FILE",
        action="append",
        default=[],
        help="the data of an earlier task, to certify; without it the bound is from memory alone (see 'cop2l plan')",
    )
    parser.add_argument("--out", metavar="DIR", help="where the learner goes (default: where it was)")
    parser.add_argument("--json", action="store_true", help="print what was issued as JSON")
    parser.set_defaults(run=learn)

    parser = verbs.add_parser(
        "predict",
        help="predict with a saved learner",
        description="Predict the class of each example, one per line.",
        epilog=PREDICT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser)
    parser.add_argument("--task", type=int, metavar="T", help="the examples' task, if task-incremental")
    parser.add_argument("--out", metavar="FILE", help="write there (.npy: as an array), not on the screen")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: classes, and accuracy if y is given"
    )
    parser.set_defaults(run=predict)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="STATE", help="a run directory or a saved learner")
    parser.add_argument(
        "--data", metavar="FILE", required=True, help=".npz with x and y, .npy, .csv, .parquet"
    )
    parser.add_argument("--label", metavar="COLUMN", default="label", help="the column of labels (label)")
    parser.add_argument(
        "--group", metavar="COLUMN", help="the column of groups, if the learner claims some (group)"
    )
    parser.add_argument(
        "--columns", metavar="A,B,...", default="", help="the columns that are inputs (all others)"
    )
    parser.add_argument("--text", metavar="A,B,...", default="", help="the columns of text among them")
    parser.add_argument("--text-size", metavar="N", type=int, help="as it was learned (1024)")
    parser.add_argument(
        "--names",
        metavar="A,B,...",
        default="",
        help="the labels in order, if they are names (those of the run)",
    )


def _read_as(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the data is read."""
    from cop2l.streams.tables import Columns
    from cop2l.streams.text import SIZE

    inputs, text, names = (
        [name for name in listed.split(",") if name]
        for listed in (arguments.columns, arguments.text, arguments.names)
    )
    size = arguments.text_size or SIZE
    return {
        "columns": Columns(arguments.label, inputs or None, text, size, group=arguments.group),
        "names": names,
    }


def learn(arguments: argparse.Namespace) -> int:
    """Learn one more task."""
    from cop2l.experiments import life

    learner, folder = life.learn(
        arguments.state,
        arguments.data,
        out=arguments.out,
        **_read_as(arguments),
        classes=life.class_numbers(arguments.classes),
        archive=arguments.archive,
    )
    if arguments.json:
        print(json.dumps(life.issued(learner), indent=1))
        return 0
    print(f"Learned task {learner.tasks_seen}; saved in {folder}.")
    if getattr(learner, "certificate", None) is not None:
        print(learner.certificate)
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Predict the class of each example."""
    from cop2l.experiments import life
    from cop2l.text import rate

    classes, accuracy, names = life.predict(
        arguments.state, arguments.data, **_read_as(arguments), task=arguments.task
    )
    if arguments.out:
        life.write_classes(arguments.out, classes)
    if arguments.json:
        print(json.dumps({"classes": classes.tolist(), "accuracy": accuracy}))
        return 0
    if not arguments.out:
        print("\n".join(names[c] if c < len(names) else str(c) for c in classes.tolist()))
    if accuracy is not None:
        print(f"accuracy {rate(accuracy)} on {len(classes)} examples", file=sys.stderr)
    return 0
