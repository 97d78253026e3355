"""cop2l init: a configuration to start from, for own data."""

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Write a commented configuration for data of your own, to read, change and run. Names, types and shapes are read; no
statistics of the values are made, so that nothing in the configuration is chosen with the data."""


def add(commands: Any) -> None:
    """The parser of the command."""
    parser = commands.add_parser(
        "init",
        description=DESCRIPTION,
        epilog="Example: cop2l init my-data.csv --out my.toml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="your data: a file or a folder (docs/data.md)")
    parser.add_argument("--out", metavar="FILE", help="the configuration (default: PATH's name, .toml, here)")
    parser.set_defaults(run=init)


def init(arguments: argparse.Namespace) -> None:
    """Write it, and say what is next."""
    from cop2l.experiments import start

    out = arguments.out or f"{Path(arguments.path).resolve().stem}.toml"
    start.write(arguments.path, out)
    print(f"Wrote {out}; read it, then: cop2l run {out}")
