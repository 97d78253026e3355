"""cop2l serve and cop2l watch: a model, and a run, behind an address."""

import argparse
from pathlib import Path
from typing import Any

SERVE = """\
Serve predictions over HTTP, with the certificate beside them, and count feedback: one monitor for each claim, which raises an
alarm when true labels refute it. There is no login and no encryption: it listens on this machine alone unless told otherwise.

  GET  /             what is served, for people         GET  /certificate   the certificate's own JSON
  GET  /health       state and alarms                   POST /predict       {"rows": [[...], ...]}
  POST /feedback     {"labels": [...], "rows": [[...], ...]}, or "predicted" in place of rows: one batch
Task-incremental models need "task" in both. Feedback needs it too where a class belongs to several tasks."""
SERVE_EXAMPLES = """\
examples:
  cop2l serve runs/mnist
  curl -H 'Content-Type: application/json' -d '{"rows": [[0.1, 0.2]]}' http://127.0.0.1:8000/predict
  curl -H 'Content-Type: application/json' -d '{"predicted": [3, 1], "labels": [3, 7]}' http://127.0.0.1:8000/feedback"""
WATCH = """\
Show the report page while its runs go on. The page is made again after every task, and a browser that shows it follows by
itself. The run need not have begun."""


def add(verbs: Any) -> None:
    """The parsers of the two verbs."""
    verb = verbs.add_parser(
        "serve",
        help="serve predictions, the certificate and monitors over HTTP",
        description=SERVE,
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("source", metavar="RUN", help="a run directory or a saved learner")
    _address(verb, 8000)
    verb.add_argument(
        "--alpha",
        type=float,
        default=0.01,
        help="the probability of any false alarm, ever, that you accept; all monitors share it (0.01)",
    )
    verb.add_argument(
        "--state", type=Path, metavar="FOLDER", help="where the monitors keep their counts (RUN/monitor)"
    )
    verb.add_argument(
        "--rows", type=int, default=1000, metavar="N", help="rows that a request may have (1000)"
    )
    verb.set_defaults(run=serve)
    verb = verbs.add_parser(
        "watch",
        help="the report page, live, while a run goes on",
        description=WATCH,
        epilog="Example: cop2l watch runs/mnist",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or folders that hold some")
    _address(verb, 8001)
    verb.add_argument(
        "--over", nargs="+", default=["seed"], metavar="KEY", help="configuration keys to average over (seed)"
    )
    verb.set_defaults(run=watch)


def _address(verb: argparse.ArgumentParser, port: int) -> None:
    verb.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (127.0.0.1: this machine alone)"
    )
    verb.add_argument("--port", type=int, default=port, help=f"the port; 0 takes a free one ({port})")


def serve(arguments: argparse.Namespace) -> None:
    """Answer until Ctrl-C."""
    from cop2l.service.serve import serve as answer

    answer(
        arguments.source,
        host=arguments.host,
        port=arguments.port,
        state=arguments.state,
        alpha=arguments.alpha,
        most_rows=arguments.rows,
    )


def watch(arguments: argparse.Namespace) -> None:
    """Show until Ctrl-C."""
    from cop2l.service.watch import watch as show

    show(arguments.runs, host=arguments.host, port=arguments.port, over=arguments.over)
