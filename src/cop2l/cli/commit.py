"""cop2l commit: write down in advance what a run will do."""

import argparse
import json
from typing import Any

from cop2l.cli.run import CONFIG_HELP

DESCRIPTION = """\
Write down what a run will do, before it learns: method, options, seed, delta, kind and claim, number of tasks, model,
initial parameters, and the split of the data. Print the SHA-256 of this commitment.
Give the hash to your auditor. Then learn with: cop2l run CONFIG --commitment FILE. The auditor checks with: cop2l verify
--commitment HASH. If you make several commitments for the same data, give their number in each (siblings=20): each gets
an equal share of delta."""
EXAMPLES = """\
examples:
  cop2l commit mnist seed=3 --out mnist-3.json                   write the commitment and print its hash
  cop2l run mnist seed=3 --commitment mnist-3.json --out mine    learn; a run that differs is refused
  cop2l verify mine --data mnist --commitment HASH               check, as the auditor"""


def add(commands: Any) -> None:
    parser = commands.add_parser("commit", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("config", metavar="NAME|FILE|DATA", help=CONFIG_HELP)
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="changes of the configuration")
    parser.add_argument(
        "--out",
        metavar="FILE",
        default="commitment.json",
        help="the file to write (default: commitment.json)",
    )
    parser.set_defaults(run=commit)


def commit(arguments: argparse.Namespace) -> None:
    """Write the commitment and print its hash."""
    from cop2l.certificates.commitment import commitment_hash
    from cop2l.experiments import grid
    from cop2l.experiments.learners import load_stream, new_learner, run_commitment
    from cop2l.files import write_text

    config = grid.single_run(grid.read_configuration(arguments.config), grid.overrides(arguments.overrides))
    stream = load_stream(config)
    content = run_commitment(config, new_learner(config, stream))
    write_text(arguments.out, json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(commitment_hash(content))
