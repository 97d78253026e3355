"""cop2l list: list methods, streams, models, configurations or keys."""

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "list",
        description="List methods, streams, models, configurations or keys, with a line about each.",
        epilog="Examples: cop2l list streams; cop2l list keys replay",
    )
    choices = ("methods", "streams", "models", "configs", "keys")
    parser.add_argument(
        "what", choices=choices, help="what to list; keys are what a configuration or key=value may set"
    )
    parser.add_argument(
        "method",
        nargs="?",
        metavar="METHOD",
        help="with keys: the method of the run (default: weighted-replay)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: names to descriptions, or to defaults and sentences"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print names and descriptions."""
    from cop2l.errors import UserError
    from cop2l.experiments import catalogue, options
    from cop2l.experiments.config import Config
    from cop2l.text import as_typed

    if arguments.what == "keys":
        keys = options.run_keys(arguments.method or Config.method)
        rows = [[name, as_typed(key.default), key.sentence] for name, key in keys.items()]
        as_json: dict[str, Any] = {name: key._asdict() for name, key in keys.items()}
    elif arguments.method:
        raise UserError(f"Only keys depend on the method; write: cop2l list keys {arguments.method}.")
    else:
        as_json = getattr(catalogue, arguments.what)()
        rows = [[name, description] for name, description in as_json.items()]
    if arguments.json:
        print(json.dumps(as_json, indent=1))
        return 0
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, last in rows:
        print("  ".join([*map(str.ljust, cells, widths), last]))
    return 0
