"""cop2l data: list the data sets, or download one."""

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        description="List the data sets, or download one. Your own data needs no command: give its path instead of a name.",
        epilog="Example: cop2l data get mnist",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for name, run, text in (
        ("list", show, "list the data sets and their folders on this machine"),
        ("get", get, "download and check a data set, unless it is on this machine, and print its folder"),
    ):
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument("--json", action="store_true", help="print JSON on stdout")
        action.set_defaults(run=run)
        if name == "get":
            action.add_argument("name", metavar="NAME", help="a name from 'cop2l data list'")


def show(arguments: argparse.Namespace) -> None:
    """List the data sets."""
    from cop2l.streams import catalogue, download

    rows = download.data_state()
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        command = f"'cop2l data get {row['name']}'"
        where = row["folder"] or f"not here; {command} downloads {row['megabytes']} MB"
        print(f"{row['name']:<{width}}  {row['classes']:>3} classes  {row['tasks']:>2} tasks  {where}")
    others = {name: line for name, line in catalogue().items() if name not in {row["name"] for row in rows}}
    for name, line in others.items():
        print(f"{name:<{width}}  {line}")


def get(arguments: argparse.Namespace) -> None:
    """Download one data set, unless it is there, and print its folder."""
    from cop2l.streams import download

    folder = download.get(arguments.name)
    print(json.dumps({"name": arguments.name, "folder": str(folder)}) if arguments.json else folder)
