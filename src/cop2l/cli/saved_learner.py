"""cop2l learn and cop2l predict: a saved learner at work."""

import argparse
import json
import sys
from typing import Any

from cop2l.cli.verify import names

LEARN = """\
examples:
  cop2l learn runs/mine --data new.csv --out mine            the bounds of earlier tasks are from memory alone
  cop2l learn mine --data newer.csv --archive 6=new.csv      the data of task 6 certifies it once more"""
PREDICT = """\
examples:
  cop2l predict runs/mine --data new.csv
  cop2l predict runs/mine --data new.npz --out classes.npy"""


def add(commands: Any) -> None:
    """The parsers of the two commands."""
    parser = commands.add_parser(
        "learn",
        description="Add a task to a saved learner. A CoP2L learner also issues a new certificate.",
        epilog=LEARN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser)
    parser.add_argument(
        "--classes",
        metavar="A,B,...",
        type=names,
        help="the task's own classes, fixed in advance, by name or number",
    )
    parser.add_argument(
        "--archive",
        metavar="T=FILE",
        action="append",
        default=[],
        help="the data of an earlier task (its name or number), to certify it; without it the bound is from memory alone",
    )
    parser.add_argument("--out", metavar="DIR", help="where the learner goes (default: where it was)")
    parser.add_argument("--json", action="store_true", help="print what was issued as JSON")
    parser.set_defaults(run=learn)

    parser = commands.add_parser(
        "predict",
        description="Predict the class of each example, one per line.",
        epilog=PREDICT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser)
    parser.add_argument(
        "--task", metavar="T", help="the examples' task, if task-incremental: its name or number"
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="also the probability of each class; nothing is certified of them",
    )
    parser.add_argument("--out", metavar="FILE", help="write there (.npy: as an array), not on the screen")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: classes by name and number, and accuracy",
    )
    parser.set_defaults(run=predict)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="STATE", help="a run directory or a saved learner")
    parser.add_argument(
        "--data",
        metavar="FILE",
        required=True,
        help=".npz with x and y, .npy, a table with the columns of the run, or pictures",
    )
    parser.add_argument(
        "--label", metavar="COLUMN", help="the column of labels, if the run does not name it (label)"
    )


def learn(arguments: argparse.Namespace) -> int:
    """Learn one more task."""
    from cop2l.experiments import saved_learner

    learner, folder = saved_learner.learn(
        arguments.state,
        arguments.data,
        out=arguments.out,
        label=arguments.label,
        classes=arguments.classes,
        archive=arguments.archive,
    )
    if arguments.json:
        print(json.dumps(saved_learner.certificate_json(learner), indent=1))
        return 0
    print(f"Learned task {learner.tasks_seen}; saved in {folder}.")
    if getattr(learner, "certificate", None) is not None:
        print(learner.certificate)
        print(f"It rests on the memory, prior examples and sums in {arguments.state}, which nothing checks.")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Predict the class of each example."""
    from cop2l.experiments import saved_learner
    from cop2l.text import measured_percent

    found = saved_learner.predict(
        arguments.state,
        arguments.data,
        label=arguments.label,
        task=arguments.task,
        probabilities=arguments.probabilities,
    )
    if arguments.out:
        saved_learner.write_predicted(arguments.out, found)
    if arguments.json:
        content: dict[str, Any] = {
            "classes": [found.names[number] for number in found.classes.tolist()],
            "numbers": found.classes.tolist(),
            "accuracy": found.accuracy,
        }
        if found.probabilities is not None:
            content |= {"names": found.names, "probabilities": found.probabilities.tolist()}
        print(json.dumps(content))
        return 0
    if not arguments.out:
        print("\n".join(saved_learner.prediction_lines(found)))
    if found.accuracy is not None:
        print(
            f"accuracy {measured_percent(found.accuracy)} on {len(found.classes)} examples", file=sys.stderr
        )
    return 0
