"""cop2l export: a certified model for other programs."""

import argparse
from pathlib import Path
from typing import Any

TEXT = """\
Write the model of a run for other programs, with its certificate: weights.safetensors, the program and export.json, which binds
them to the certificate by their hashes. 'cop2l verify FOLDER --data DATA' checks all of it.

--format torch   model.pt2, for torch.export.load
--format onnx    model.onnx; ONNX Runtime rounds in its own way, so the errors are counted again there, on the data of every task,
                 and the bounds that follow from these counts are the program's"""
EXAMPLES = """\
examples:
  cop2l export runs/mnist --to service
  cop2l export runs/mnist --to service-onnx --format onnx
  cop2l verify service-onnx --data mnist"""


def add(commands: Any) -> None:
    """The parser of the command."""
    parser = commands.add_parser(
        "export",
        description=TEXT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="RUN", help="a run directory or a saved learner, with a certificate"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--format", choices=("torch", "onnx"), default="torch", help="which program is written (torch)"
    )
    parser.add_argument(
        "--data",
        metavar="STREAM|FOLDER|FILE.npz",
        help="the data the tasks were learned from: count the program's errors on it (onnx: the run's own stream)",
    )
    parser.set_defaults(run=export)


def export(arguments: argparse.Namespace) -> None:
    """Write it, and say what is claimed of it."""
    from cop2l.exporting import export as write
    from cop2l.exporting import export_sentences

    content = write(arguments.source, arguments.to, format=arguments.format, data=arguments.data)
    print("\n".join([f"Exported to {arguments.to}.", *export_sentences(content)]))
