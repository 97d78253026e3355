"""cop2l commit: fix in advance what a run will do."""

import argparse
import json
from typing import Any

from cop2l.cli.run import WHAT

DESCRIPTION = """\
Before learning: write down everything that must be chosen before the data is seen (method, options, seed, delta, kind and
claim, number of tasks, model and initial parameters, how the data is split), and print the SHA-256 of it. Hand that to your
auditor; then learn with: cop2l run CONFIG --commitment FILE. The auditor gives it to: cop2l verify --commitment.
Where more than one commitment is made for the same data, say in each how many (siblings=20): each has that part of delta."""
EXAMPLES = """\
examples:
  cop2l commit mnist seed=3 --out mnist-3.json                   before learning; prints the hash
  cop2l run mnist seed=3 --commitment mnist-3.json --out mine    refuses whatever differs
  cop2l verify mine --data mnist --commitment HASH               the auditor"""


def add(commands: Any) -> None:
    """The parser of the command."""
    parser = commands.add_parser(
        "commit",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="NAME|FILE|DATA", help=WHAT)
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="what to change in it")
    parser.add_argument(
        "--out", metavar="FILE", default="commitment.json", help="where to write it (commitment.json)"
    )
    parser.set_defaults(run=commit)


def commit(arguments: argparse.Namespace) -> None:
    """Write the commitment and print its hash."""
    from cop2l.certify.commitment import commitment_hash
    from cop2l.experiments import grid
    from cop2l.experiments.learners import load_stream, new_learner, run_commitment
    from cop2l.files import write_text

    config = grid.single_run(grid.read_configuration(arguments.config), grid.overrides(arguments.overrides))
    stream = load_stream(config)
    content = run_commitment(config, stream, new_learner(config, stream))
    write_text(arguments.out, json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(commitment_hash(content))
