"""`cop2l verify` and `cop2l show`: what an auditor runs."""

import argparse
import json
from pathlib import Path
from typing import Any

VERIFY = """\
Check a certificate without trusting it, in four levels:
  1  its form, and the hashes of its files
  2  the arithmetic: every bound is recomputed from the counts
  3  with the data: fingerprints, and every error counted again
  4  the model: rebuilt bit for bit from the compression sets, and learned again from all the data
Exit code 0: valid. 1: invalid. 2: cannot tell (data missing, another processor or version)."""


def add(verbs: Any) -> None:
    """Add the verbs `verify` and `show`."""
    verify = verbs.add_parser(
        "verify",
        help="check a certificate",
        description=VERIFY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("path", type=Path, help="a certificate, or a run directory (its last certificate)")
    verify.add_argument(
        "--data", metavar="STREAM|FOLDER|FILE.npz", help="the data the tasks were learned from"
    )
    verify.add_argument(
        "--level", type=int, choices=(1, 2, 3, 4), default=4, help="check up to this level (default: 4)"
    )
    verify.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="a function of yours that returns your model's architecture",
    )
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    verify.set_defaults(run=run_verify)
    show = verbs.add_parser(
        "show",
        help="print a certificate readably, with the terms of each bound",
        description="Print a certificate readably, with the terms of each bound. Nothing is checked: see 'verify'.",
    )
    show.add_argument("path", type=Path, help="a certificate, or a run directory (its last certificate)")
    show.add_argument("--brief", action="store_true", help="print the table alone")
    show.add_argument("--json", action="store_true", help="print the certificate's own JSON")
    show.set_defaults(run=run_show)


def run_verify(arguments: argparse.Namespace) -> int:
    """Check a certificate; the exit code is the verdict."""
    from cop2l.certify.holdout import holdout_content, verify_holdout
    from cop2l.certify.places import find_certificate, given_model, samples_for
    from cop2l.certify.verify import verify

    path = find_certificate(arguments.path)
    if content := holdout_content(path):
        verdict = verify_holdout(content, arguments.level)
    else:
        data = samples_for(path, arguments.data) if arguments.level > 2 else None
        verdict = verify(path, data, model=given_model(arguments.model), level=arguments.level)
    if arguments.json:
        levels = [
            {"level": level.number, "status": level.status, "sentences": level.sentences}
            for level in verdict.levels
        ]
        print(
            json.dumps(
                {"exit_code": verdict.exit_code, "not_valid": list(verdict.not_valid), "levels": levels}
            )
        )
    else:
        print(f"Certificate: {path}")
        print(verdict)
    return verdict.exit_code


def run_show(arguments: argparse.Namespace) -> None:
    """Print a certificate."""
    from cop2l.certify.certificate import Certificate
    from cop2l.certify.places import find_certificate, readable

    path = find_certificate(arguments.path)
    if arguments.json:
        print((path / "certificate.json").read_text(), end="")
    else:
        certificate = Certificate.load(path)
        print(certificate if arguments.brief else readable(certificate))
