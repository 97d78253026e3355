"""cop2l sweep: run a grid of experiments."""

import argparse
import contextlib
import json
import signal
import sys
from typing import Any

from cop2l.cli.run import CONFIG_HELP

EPILOG = """\
A grid has a list for each key under [grid] in the configuration, or several values in key=value: seed=0,1 or seed=0..4.
data.columns=a,b is one value, a list; to try several values write grid.data.columns=...
Finished runs are skipped. 'cop2l list keys METHOD' lists the keys of METHOD and their defaults.

examples:
  cop2l sweep digits method=cop2l,replay seed=0,1,2 --workers 2
  cop2l sweep mine.toml --ray
  cop2l sweep mine.toml --ray 10.0.0.5:6379 --out /shared/runs"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        description="Run every combination of the values in a grid, in local processes or on a Ray cluster.",
        epilog=EPILOG,
    )
    parser.add_argument("config", metavar="NAME|FILE|DATA", help=CONFIG_HELP)
    parser.add_argument(
        "overrides", metavar="key=value[,value...]", nargs="*", help="changes of the configuration"
    )
    parser.add_argument(
        "--out", metavar="DIR", default="runs", help="the folder for the run directories (default: runs)"
    )
    parser.add_argument("--list", action="store_true", help="print the runs, and run nothing")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON; progress on stderr")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of local processes (default: 1)"
    )
    where.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run on the Ray cluster at ADDRESS, or on a new local one",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the runs, run the unfinished ones, and print those that failed."""
    from cop2l.errors import UserError
    from cop2l.experiments import grid, sweep
    from cop2l.text import averages, count

    if arguments.ray and "=" in arguments.ray:  # no address: argparse took the next argument
        arguments.overrides, arguments.ray = [*arguments.overrides, arguments.ray], ""
    if arguments.workers < 1:
        raise UserError(f"--workers is {arguments.workers}; give at least 1.")
    jobs = sweep.jobs(
        grid.expand(grid.read_configuration(arguments.config), grid.overrides(arguments.overrides)),
        arguments.out,
    )
    todo = [job for job in jobs if not job.finished]
    out = sys.stderr if arguments.json else sys.stdout
    print(f"{count(len(jobs), 'run')} in {arguments.out}, {len(jobs) - len(todo)} finished:", file=out)
    for job in jobs:
        print(f"  {job.config.hash}  {job.name}{'  (finished)' * job.finished}", file=out, flush=True)
    if arguments.list:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ray = arguments.ray is not None
    outcomes = sweep.on_ray(todo, arguments.ray or None) if ray else sweep.locally(todo, arguments.workers)
    failed = []
    with contextlib.closing(outcomes):
        for number, outcome in enumerate(outcomes, 1):
            failed += [outcome] if outcome.error else []
            parts = ["failed" if outcome.error else "done", outcome.job.name]
            parts += [averages(outcome.summary)] if outcome.summary else []
            print(f"[{number}/{len(todo)}] {'  '.join(parts)}", file=out, flush=True)
    if arguments.json:
        print(json.dumps(sweep.overview(jobs, failed), indent=1))
    for outcome in failed:
        print(f"failed: {outcome.job.folder}  {outcome.job.name}  {outcome.error}", file=sys.stderr)
    print(f"{len(jobs) - len(failed)} of {len(jobs)} runs are finished in {arguments.out}", file=out)
    return 1 if failed else 0
