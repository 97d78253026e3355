"""cop2l list: what there is to choose from."""

import argparse
import json
from typing import Any


def add(verbs: Any) -> None:
    """The parser of the verb."""
    parser = verbs.add_parser(
        "list",
        help="list the methods, streams, models, configurations, or keys of one",
        description="List what there is to choose from, with a line about each.",
    )
    parser.add_argument("what", choices=("methods", "streams", "models", "configs", "keys"))
    parser.add_argument("--json", action="store_true", help="as JSON: name to description")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print names and descriptions."""
    from cop2l.experiments import catalogue

    found = getattr(catalogue, arguments.what)()
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    width = max(map(len, found), default=0)
    for name, description in found.items():
        print(f"{name:{width}}  {description}")
    return 0
