"""cop2l init: write a configuration for your own data."""

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Write a configuration with comments for your own data, to read, change and run. It is made from names, types and shapes
alone, so that no value in it depends on the data."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "init",
        description=DESCRIPTION,
        epilog="Example: cop2l init my-data.csv --out my.toml",
    )
    parser.add_argument("path", metavar="PATH", help="your data: a file or a folder (docs/data.md)")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the configuration (default: the name of PATH with .toml, in the current folder)",
    )
    parser.set_defaults(run=init)


def init(arguments: argparse.Namespace) -> None:
    """Write the configuration, and print the next command."""
    from cop2l.experiments import start

    out = arguments.out or f"{Path(arguments.path).resolve().stem}.toml"
    start.write(arguments.path, out)
    print(f"Wrote {out}; read it, then: cop2l run {out}")
