"""cop2l export: write a certified model for other programs."""

import argparse
from pathlib import Path
from typing import Any

TEXT = """\
Write the model of a run for other programs, with its certificate: weights.safetensors, the program, and export.json,
which has the hashes of both and of the certificate. Check the folder with: cop2l verify FOLDER --data DATA.

--format torch   writes model.pt2, for torch.export.load
--format onnx    writes model.onnx; ONNX Runtime rounds differently, so its errors are counted on the data of every task, and
                 the program gets its own bounds from these counts"""
EXAMPLES = """\
examples:
  cop2l export runs/mnist --to service
  cop2l export runs/mnist --to service-onnx --format onnx
  cop2l verify service-onnx --data mnist"""


def add(commands: Any) -> None:
    parser = commands.add_parser("export", description=TEXT, epilog=EXAMPLES)
    parser.add_argument(
        "source", metavar="RUN", help="a run directory or a saved learner, with a certificate"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--format", choices=("torch", "onnx"), default="torch", help="the program to write (default: torch)"
    )
    parser.add_argument(
        "--data",
        metavar="STREAM|FOLDER|FILE.npz",
        help="count the errors of the program on this data of the tasks (default for onnx: the stream of the run)",
    )
    parser.set_defaults(run=export)


def export(arguments: argparse.Namespace) -> None:
    """Write the export, and print its claims."""
    from cop2l.exporting import export as write
    from cop2l.exporting import export_sentences

    content = write(arguments.source, arguments.to, format=arguments.format, data=arguments.data)
    print("\n".join([f"Exported to {arguments.to}.", *export_sentences(content)]))
