"""cop2l features: compute and store the features of a frozen backbone."""

import argparse
import json
from typing import Any

EPILOG = """\
examples:
  cop2l features cifar10 --backbone dinov2-vits14 --size 70     compute them; a second call continues or finds them
  cop2l features --import cifar10-dinov2-vits14-70.npz          import features that were computed elsewhere
  cop2l features my-pictures/ --backbone my_nets:make --pretrained-on nothing    use your own module
  cop2l features list                                           list the stored features
  cop2l features backbones                                      list the backbones
  cop2l run cifar10@dinov2-vits14-70                            learn from them: DATASET@BACKBONE-PX is a stream"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "features",
        description="Compute and store the features of a data set by a frozen backbone. Every later run finds them.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="DATASET",
        help="a data set, or the path of your pictures; or list, or backbones",
    )
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="a name from 'cop2l features backbones', or your package.module:function (default: dinov2-vits14)",
    )
    parser.add_argument(
        "--size", type=int, metavar="PX", help="the side to resize pictures to (default: 224)"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:1 (default: cuda if there is one)"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use only N pictures of each part, evenly spaced"
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="the weights of the backbone, if they cannot be downloaded"
    )
    parser.add_argument("--folder", metavar="FOLDER", help="the folder of the data set")
    parser.add_argument(
        "--import", dest="file", metavar="FILE", help="import computed features: .npz, .parquet or .csv"
    )
    parser.add_argument(
        "--pretrained-on",
        metavar="DATA",
        action="append",
        help="a data set that your backbone was trained on (nothing: random weights); may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Compute, import or list features."""
    from cop2l.errors import UserError

    if arguments.what == "list":
        return show(arguments)
    if arguments.what == "backbones":
        return backbones(arguments)
    if arguments.what is None and arguments.file is None:
        raise UserError("Name a data set, or a file with --import; 'cop2l features --help' has examples.")
    entry = make_entry(arguments)
    if arguments.json:
        print(json.dumps(_row(entry), indent=1))
    else:
        print(f"{entry.name} is in {entry.folder}")
        if entry.about["pretrained_on"] in ([], ["unknown"]):
            print(
                "The training data of the backbone is unknown, so certificates on these features are not valid;"
                " name it with --pretrained-on: the features are not computed again."
            )
    return None


def make_entry(arguments: argparse.Namespace) -> Any:
    """Import a file, or compute the features that are missing."""
    from cop2l.console import progress_display
    from cop2l.features import extract, import_features

    if arguments.file is not None:
        about = {name: getattr(arguments, name) for name in ("backbone", "size", "pretrained_on")}
        return import_features(arguments.file, dataset=arguments.what, **about)
    names = ("folder", "weights", "device", "limit", "pretrained_on")
    options = {name: getattr(arguments, name) for name in names}
    size = 224 if arguments.size is None else arguments.size
    with progress_display(True) as progress:
        return extract(
            arguments.what, arguments.backbone or "dinov2-vits14", size=size, progress=progress, **options
        )


def show(arguments: argparse.Namespace) -> None:
    """List the stored features."""
    from cop2l.features import entries

    rows = [_row(entry) for entry in entries()]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(
            f"{row['name']:<{width}}  {row['train']:>7} + {row['test']:>6} rows of {row['width']:>4}  {row['key']}"
        )


def backbones(arguments: argparse.Namespace) -> None:
    """List the backbones."""
    from cop2l.models.backbones import BACKBONES
    from cop2l.plugins import installed_names

    plugins = {name: path for name, path in installed_names("backbones").items() if name not in BACKBONES}
    rows: list[dict[str, Any]] = [
        {
            "name": b.name,
            "width": b.width,
            "pretrained_on": list(b.pretrained_on),
            "licence": b.licence,
            "sources": [source.url for source in b.sources],
        }
        for b in BACKBONES.values()
    ]
    if arguments.json:
        print(json.dumps(rows + [{"name": name, "path": path} for name, path in plugins.items()], indent=1))
        return
    for row in rows:
        print(
            f"{row['name']:<18}  {row['width']:>4} features, trained on {row['pretrained_on'][0]}; {row['licence']}"
        )
    for name, path in plugins.items():
        print(f"{name:<18}  from an installed package: {path}")
    print("package.module:function  your own torch module, or a function that returns it")


def _row(entry: Any) -> dict[str, Any]:
    parts = entry.about["parts"]
    return {
        "name": entry.name,
        "key": entry.key,
        "folder": str(entry.folder),
        "train": parts["train"]["rows"],
        "test": parts["test"]["rows"],
        "width": parts["train"]["width"],
        "classes": entry.about["classes"],
        "pretrained_on": entry.about["pretrained_on"],
    }
