"""cop2l monitor: raise an alarm when labels that arrive later refute a claim."""

import argparse
import json
from pathlib import Path
from typing import Any

from cop2l.errors import UserError

TEXT = """\
Raise an alarm when labelled feedback refutes a claim. If the claim is true, the probability that there is ever an alarm is
at most alpha, however long the monitor runs.

FEEDBACK is a file. It has one 0 (right) or 1 (wrong) per line; or it is CSV with a column 'error', or with the columns
'predicted' and 'label'. The columns 'task' and 'group', if it has them, select the rows that the claim is about. Columns of
inputs with values unlike those that were learned are named. The monitor decides at the end of each batch: at
a blank line, after every --batch examples, and at the end of the file.
Exit code 0: no alarm. 1: alarm, now or before. 3: the feedback could not be read, and nothing was counted."""
EXAMPLES = """\
examples:
  cop2l monitor runs/mnist --task 3 --state task-3.json monday.csv     one batch per call, for example one per day
  cop2l monitor runs/mnist --task 3 --state task-3.json --batch 100 --whole log.csv
                                   a growing log: only new feedback is counted, also after a kill
  cop2l monitor 0.05 --state feed.json --batch 50 feed.csv             give a bound instead of a certificate
  cop2l monitor runs/mnist --task 3 --state task-3.json                show the state, count nothing"""


def add(commands: Any) -> None:
    parser = commands.add_parser("monitor", description=TEXT, epilog=EXAMPLES)
    parser.add_argument(
        "claim", metavar="CLAIM", help="a certificate, a run (its last certificate), or a bound: 0.05"
    )
    parser.add_argument(
        "feedback", metavar="FEEDBACK", nargs="?", help="a file; without it, show the state and count nothing"
    )
    parser.add_argument("--task", metavar="T", help="the task that the claim is about: its name or number")
    parser.add_argument(
        "--family",
        default="tasks",
        metavar="NAME",
        help="the family of the claim: tasks, average, classes, groups or forgetting (default: tasks)",
    )
    parser.add_argument("--subject", metavar="NAME", help="the class or the group that the claim is about")
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.01,
        help="the probability of a false alarm that you accept, over all time (default: 0.01)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        required=True,
        metavar="FILE",
        help="stores the counts between calls; use one file per monitor",
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="end a batch after N examples (default: at blank lines)"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="FEEDBACK has all feedback since the beginning; count the new part",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=monitor)


def monitor(arguments: argparse.Namespace) -> int:
    """Count the feedback; the exit code is 1 if there is an alarm."""
    from cop2l.monitor.feedback import has_inputs, read_feedback
    from cop2l.monitor.monitor import Monitor
    from cop2l.text import feedback_assumptions, monitor_report, monitor_verdict

    if arguments.batch is not None and arguments.batch < 1:
        raise UserError(f"--batch must be at least 1, not {arguments.batch}.")
    options = {"alpha": arguments.alpha, "state": arguments.state}
    watch = Monitor(_claim(arguments.claim), arguments.family, arguments.task, arguments.subject, **options)
    if arguments.feedback is not None:
        path = Path(arguments.feedback)
        if Path(arguments.claim).is_dir() and has_inputs(path):
            from cop2l.experiments.saved_learner import data_description
            from cop2l.streams.files import check_columns

            check_columns(path, data_description(arguments.claim).get("inputs", {}).get("columns", ()))
        for batch in read_feedback(path, watch, arguments.batch, includes_counted=arguments.whole):
            watch.update(batch)
    if arguments.json:
        text = {"verdict": monitor_verdict(watch), "assumptions": feedback_assumptions(watch.statement)}
        print(json.dumps(watch.as_dict() | text, indent=1))
    else:
        print(monitor_report(watch))
    return int(watch.alarm)


def _claim(text: str) -> Any:
    try:
        return text if Path(text).exists() else float(text)
    except ValueError:
        return text
