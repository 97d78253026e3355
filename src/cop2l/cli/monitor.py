"""`cop2l monitor`: does a claim still hold in service?"""

import argparse
import json
from pathlib import Path
from typing import Any

from cop2l.errors import UserError

TEXT = """\
Does a claim still hold in service? Give it labelled feedback as it comes; it raises an alarm when the feedback refutes the
claim. If the claim is true, the probability that there is ever an alarm is at most alpha, however long it runs.

FEEDBACK is a file: one 0 (right) or 1 (wrong) per line, or CSV with a column 'error', or with columns
'predicted' and 'label'. Columns 'task' and 'group', where there are any, say which rows a claim is about. The evidence is
looked at when a batch ends: at blank lines, after every --batch examples, and at the end.
Exit code 0: no alarm. 1: alarm, now or before. 3: the feedback could not be counted, and none of the file was."""
EXAMPLES = """\
examples:
  cop2l monitor runs/mnist --task 3 --state task-3.json monday.csv     one batch per call, say one per day
  cop2l monitor runs/mnist --task 3 --state task-3.json --batch 100 --whole log.csv
                                   a growing log: what was counted before is left out, also after a kill
  cop2l monitor 0.05 --state feed.json --batch 50 feed.csv             a bound instead of a certificate
  cop2l monitor runs/mnist --task 3 --state task-3.json                only look"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "monitor",
        description=TEXT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "claim", metavar="CLAIM", help="a certificate, a run (its last certificate), or a bound: 0.05"
    )
    parser.add_argument("feedback", metavar="FEEDBACK", nargs="?", help="a file; without it, only look")
    parser.add_argument("--task", metavar="T", help="the task that the claim is about: its name or number")
    parser.add_argument(
        "--family",
        default="tasks",
        metavar="NAME",
        help="which claims: tasks, average, classes, groups, forgetting (tasks)",
    )
    parser.add_argument("--subject", metavar="NAME", help="the class or the group that the claim is about")
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.01,
        help="the probability of a false alarm that you accept, in all (0.01)",
    )
    parser.add_argument(
        "--state", type=Path, required=True, metavar="FILE", help="carries the counts on; one per monitor"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="a batch is N examples (otherwise blank lines end one)"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="the file holds all feedback since the beginning; count what is new",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=monitor)


def monitor(arguments: argparse.Namespace) -> int:
    """Count the feedback; the exit code says whether there is an alarm."""
    from cop2l.monitor.feedback import read_feedback
    from cop2l.monitor.monitor import Monitor
    from cop2l.text import feedback_assumptions, monitor_report, monitor_verdict

    if arguments.batch is not None and arguments.batch < 1:
        raise UserError(f"--batch must be at least 1, not {arguments.batch}.")
    options = {"alpha": arguments.alpha, "state": arguments.state}
    watch = Monitor(_claim(arguments.claim), arguments.family, arguments.task, arguments.subject, **options)
    if arguments.feedback is not None:
        path = Path(arguments.feedback)
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
