"""cop2l learn and cop2l predict: use a saved learner."""

import argparse
import json
import sys
from typing import Any

from cop2l.cli.verify import names

LEARN = """\
examples:
  cop2l learn runs/mine --data new.csv --out mine            bound earlier tasks from the memory alone
  cop2l learn mine --data newer.csv --archive 6=new.csv      bound task 6 from its data"""
PREDICT = """\
examples:
  cop2l predict runs/mine --data new.csv
  cop2l predict runs/mine --data new.npz --out classes.npy"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "learn",
        description="Add a task to a saved learner. A CoP2L learner also issues a new certificate.",
        epilog=LEARN,
    )
    _common(parser)
    parser.add_argument(
        "--classes",
        metavar="A,B,...",
        type=names,
        help="the classes of the task, fixed in advance, by name or number",
    )
    parser.add_argument(
        "--archive",
        metavar="T=FILE",
        action="append",
        default=[],
        help="certify the earlier task T (a name or number) from its data; without it, from the memory alone",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="the folder to save the learner in (default: STATE; a run is never changed)",
    )
    parser.add_argument("--json", action="store_true", help="print the certificate as JSON")
    parser.set_defaults(run=learn)

    parser = commands.add_parser(
        "predict",
        description="Predict the class of each example, one per line.",
        epilog=PREDICT,
    )
    _common(parser)
    parser.add_argument(
        "--task", metavar="T", help="the task of the examples, if task-incremental: its name or number"
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="print the probability of each class too; probabilities are not certified",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write CSV with the column 'predicted' to this file instead of the screen (.npy: an array)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object with class names, class numbers and accuracy",
    )
    parser.set_defaults(run=predict)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "state", metavar="STATE", help="a run directory, a saved learner or, to predict, an export"
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        required=True,
        help=".npz with x and y, .npy, a table with the columns of the run, or pictures",
    )
    parser.add_argument(
        "--label", metavar="COLUMN", help="the column of labels, if the run does not name it (default: label)"
    )


def learn(arguments: argparse.Namespace) -> int:
    from cop2l.experiments import saved_learner

    learner, folder = saved_learner.learn(
        arguments.state,
        arguments.data,
        out=arguments.out,
        label=arguments.label,
        classes=arguments.classes,
        archive=arguments.archive,
    )
    certificate = getattr(learner, "certificate", None)
    if arguments.json:
        print(json.dumps(certificate and certificate.content, indent=1))
        return 0
    print(f"Learned task {learner.tasks_seen}; saved in {folder}.")
    if certificate is not None:
        print(certificate)
        print(f"What {arguments.state} stores of earlier tasks was not checked.")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    from cop2l.experiments import saved_learner
    from cop2l.text import measured_percent

    predicted = saved_learner.predict(
        arguments.state,
        arguments.data,
        label=arguments.label,
        task=arguments.task,
        probabilities=arguments.probabilities,
    )
    if arguments.out:
        saved_learner.write_predicted(arguments.out, predicted)
    if arguments.json:
        content: dict[str, Any] = {
            "classes": predicted.labels,
            "numbers": predicted.classes.tolist(),
            "accuracy": predicted.accuracy,
        }
        if predicted.probabilities is not None:
            content |= {"names": predicted.names, "probabilities": predicted.probabilities.tolist()}
        print(json.dumps(content))
        return 0
    if not arguments.out and arguments.probabilities:
        print(saved_learner.prediction_table(predicted), end="")
    elif not arguments.out:
        print("\n".join(predicted.labels))
    if predicted.accuracy is not None:
        print(
            f"accuracy {measured_percent(predicted.accuracy)} on {len(predicted.classes)} examples",
            file=sys.stderr,
        )
    return 0
