"""A method, run blindly for the checker: what learns is given no withheld rows, and what predicts is given no labels.

`learn ROWS OUT CERTIFICATE` learns the tasks in ROWS and saves the learner after each; `predict ROWS OUT CERTIFICATE LEARNER`
predicts classes; `program ROWS OUT CERTIFICATE EXPORT` makes the program of an export again, and runs it. None of this code
must be right for a hold-out bound to hold: it only must not know what it is not given.
Exit code 1: what the certificate states cannot be. 2: this cannot be done here.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.certify.program import answers_alone, program
from cop2l.certify.saved import FILE
from cop2l.errors import UserError
from cop2l.experiments.environment import threads
from cop2l.kernel import arrays
from cop2l.kernel.building import model_for, put_scale, stored_tensors, where
from cop2l.kernel.exact import sample
from cop2l.kernel.exported import EXPORT
from cop2l.kernel.form import HOLDOUT_FILES, Unreadable, read_certificate
from cop2l.kernel.options import require
from cop2l.methods import METHODS, method
from cop2l.methods.base import SAVED_METHOD

PASSES = ("epochs", "steps", "selections", "inner", "iterations")
"""Words in the names of settings that make learning longer."""
BROKEN = (UserError, RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError)


def new_method(certificate: Mapping[str, Any], own: str | None, first: Any = None) -> Any:
    """The method of a certificate with its model, before the first task, whose rows may give the scale of the inputs."""
    name, settings = certificate["method"], dict(certificate["settings"] or {})
    require(name in METHODS, "There is no such method.")
    prefix = "theta/" if name == "cop2l" else "model."
    model = model_for(certificate, own, certificate["folder"] / HOLDOUT_FILES[0], prefix)
    if model is None:
        raise Unreadable("its model is the issuer's own; give the function that builds it with --model")
    if first is not None:
        put_scale(
            certificate, sample(first[0], torch.from_numpy(first[1]), 1, certificate["options"].seed), model
        )
    more = {"seed": certificate["options"].seed} if "seed" not in settings else {}
    names = ("data", "not_valid", "commitment") if name == "cop2l" else ()
    more |= {key: certificate[key] for key in names} | (
        {"preset": "picking"} if names else {}
    )  # every option is given
    return method(name)(model, scenario=certificate["scenario"], **settings, **more)


def learn(certificate: Mapping[str, Any], rows: Path, out: Path, own: str | None, limit: float) -> None:
    """Learn again, and save the learner after each task."""
    _, tasks, _ = arrays.read_arrays(rows)
    learner, settings = new_method(certificate, own, tasks[1]), certificate["settings"] or {}
    passes = sum(v for k, v in settings.items() if type(v) is int and any(word in k for word in PASSES))
    size = sum(p.numel() for p in learner.model.parameters())
    operations = 12.0 * size * sum(len(y) for _, y, *_ in tasks.values()) * max(1, passes)
    if operations > limit:
        raise Unreadable(
            f"learning again takes {operations:.1e} operations, and {limit:.1e} are allowed: see --limit"
        )
    for t, (x, y, *groups) in tasks.items():
        learn_kwargs = {"groups": groups[0]} if getattr(learner.options, "groups", ()) else {}
        learner.learn(x, y, classes=certificate["records"][t - 1]["head"], progress=None, **learn_kwargs)
        with tempfile.TemporaryDirectory() as scratch:
            learner.save(scratch)
            shutil.copyfile(next(Path(scratch).glob("*.safetensors")), out / f"after-{t}.safetensors")


def predict(certificate: Mapping[str, Any], rows: Path, out: Path, file: Path, own: str | None) -> None:
    """The classes of rows, in several orders; single rows come first, each task with a learner of its own."""
    for t, (x, *_) in arrays.read_arrays(rows)[1].items():
        learner = new_method(certificate, own)
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copyfile(
                file, Path(scratch) / (FILE if certificate["method"] == "cop2l" else SAVED_METHOD)
            )
            learner.restore(scratch)
        task_number = t if certificate["scenario"] == "task-incremental" else None
        orders = [np.load(rows / f"order-{t}-{i}.npy") for i in range(len([*rows.glob(f"order-{t}-*.npy")]))]
        classes = (
            learner.predict(x[order], task=task_number).cpu().numpy().astype(np.int64) for order in orders
        )
        np.savez(out / f"{t}.npz", **{f"{i}": found for i, found in enumerate(classes)})


def make_program(
    certificate: Mapping[str, Any], rows: Path, out: Path, export: Path, own: str | None
) -> None:
    """The program that the certified parameters give here: its hash, what made and ran it, and the logits of each row."""
    claimed = json.loads((export / EXPORT).read_text(encoding="utf-8"))["program"]
    model = model_for(certificate, own, *where(certificate))
    if model is None:
        raise Unreadable("its model is the issuer's own; give the function that builds it with --model")
    model.cpu().load_state_dict(stored_tensors(*where(certificate)))
    try:
        made = program(model, claimed["inputs"], claimed["format"])
    except UserError as error:
        raise Unreadable(str(error)) from None
    for t, (x, *_) in arrays.read_arrays(rows)[1].items():
        np.save(out / f"{t}.npy", answers_alone(made.logits, x))
    found = {"sha256": sha256(made.content).hexdigest(), "made_by": made.made_by, "run_by": made.run_by}
    (out / "made.json").write_text(json.dumps(found), encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """Do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("learn", "predict", "program"))
    for name in ("rows", "out", "certificate"):
        parser.add_argument(name, type=Path)
    parser.add_argument("given", type=Path, nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=float, default=1e14)
    typed = parser.parse_args(words)
    try:
        certificate = read_certificate(typed.certificate)
        with threads(certificate["threads"]):
            if typed.command == "learn":
                learn(certificate, typed.rows, typed.out, typed.model, typed.limit)
            else:
                do = predict if typed.command == "predict" else make_program
                do(certificate, typed.rows, typed.out, typed.given, typed.model)
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 2
    except BROKEN as error:
        print(error if isinstance(error, ValueError) else type(error).__name__, file=sys.stderr)
        return 2 if "memory" in str(error) or "allocate" in str(error) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
