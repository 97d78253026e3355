"""cop2l sweep: a grid of experiments."""

import argparse
import contextlib
import json
import signal
import sys
from typing import Any

from cop2l.cli.run import WHAT

EPILOG = """\
The lists under [grid] in the configuration, and commas in key=value (seed=0,1 or seed=0..4), make a grid.
Finished runs are skipped. 'cop2l list keys METHOD' explains every key.
A key of a table takes a list as it is (data.columns=a,b); its grid is grid.data.KEY=value,value.

examples:
  cop2l sweep digits method=cop2l,replay seed=0,1,2 --workers 2
  cop2l sweep mine.toml --ray
  cop2l sweep mine.toml --ray 10.0.0.5:6379 --out /shared/runs"""


def add(commands: Any) -> None:
    """The parser of the command."""
    parser = commands.add_parser(
        "sweep",
        description="Run every combination of the values in the grid of a configuration.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="NAME|FILE|DATA", help=WHAT)
    parser.add_argument("overrides", metavar="key=value[,value...]", nargs="*", help="what to change in it")
    parser.add_argument("--out", metavar="DIR", default="runs", help="where the run directories go (runs)")
    parser.add_argument("--list", action="store_true", help="print the list of runs, and run nothing")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON; progress on stderr")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=1, metavar="N", help="local processes at a time (1)")
    where.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="run on Ray: a cluster, or a new local one"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the list, run what is not finished, and list what failed."""
    from cop2l.errors import UserError
    from cop2l.experiments import grid, sweep
    from cop2l.experiments.ranks import is_launched
    from cop2l.text import averages, count

    if is_launched():
        raise UserError(
            "Ranks share one run; start a sweep without torchrun (--ray spreads it over machines)."
        )
    if arguments.ray and "=" in arguments.ray:  # no address was given, and this is the word after
        arguments.overrides, arguments.ray = [*arguments.overrides, arguments.ray], ""
    if arguments.workers < 1:
        raise UserError(f"--workers is {arguments.workers}; give at least 1.")
    every = sweep.jobs(
        grid.expand(grid.read_configuration(arguments.config), grid.overrides(arguments.overrides)),
        arguments.out,
    )
    todo = [job for job in every if not job.finished]
    out = sys.stderr if arguments.json else sys.stdout
    print(f"{count(len(every), 'run')} in {arguments.out}, {len(every) - len(todo)} finished:", file=out)
    for job in every:
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
        print(json.dumps(sweep.overview(every, failed), indent=1))
    for outcome in failed:
        print(f"failed: {outcome.job.folder}  {outcome.job.name}  {outcome.error}", file=sys.stderr)
    print(f"{len(every) - len(failed)} of {len(every)} runs are finished in {arguments.out}", file=out)
    return 1 if failed else 0
