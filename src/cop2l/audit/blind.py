"""Runs a method for the checker, without withheld rows to learn from and without labels to predict.

- `learn ROWS OUT CERTIFICATE` learns the tasks in ROWS and saves the learner after each.
- `predict ROWS OUT CERTIFICATE LEARNER` predicts classes.
- `program ROWS OUT CERTIFICATE EXPORT` makes the program of an export again, and runs it.

A hold-out bound holds even if this code is wrong, because its process has only the files that it is given.
Exit code 1: the certificate states something impossible. 2: this machine cannot do it.
"""

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.certificates.program import answers_alone, program
from cop2l.errors import UserError
from cop2l.kernel import arrays
from cop2l.kernel.building import set_scale
from cop2l.kernel.exact import multiplications, sample, tensor
from cop2l.kernel.exported import EXPORT
from cop2l.kernel.form import MAX_TENSOR_BYTES, Unreadable, read_content
from cop2l.kernel.holdout import AFTER, new_model, predicting_model, watch
from cop2l.kernel.options import require
from cop2l.learner.state import threads
from cop2l.methods import METHODS, method, predicts_with_its_model
from cop2l.methods.base import SAVED_METHOD

PASSES = ("epochs", "steps", "selections", "inner", "iterations")
"""Words in the names of settings that lengthen learning."""
MOST_PASSES, FEWEST_IN_STEP = 200, 64
"""Of weighted replay, where its settings leave them open."""
METHOD_ERRORS = (RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What impossible settings raise; any other error is this machine's."""


def new_method(certificate: Mapping[str, Any], function: str | None, first: Any = None) -> Any:
    """The method of a certificate with its model, before the first task; its rows, if given, set the scale of the inputs."""
    name, settings = certificate["method"], certificate["settings"] or {}
    require(name in METHODS, "There is no such method.")
    model = new_model(certificate, function)
    if first is not None:
        x, y = first[:2]
        set_scale(certificate, sample(x, torch.from_numpy(y), 1, certificate["options"].seed), model)
    arguments = {} if "seed" in settings else {"seed": certificate["options"].seed}
    return method(name)(model, scenario=certificate["scenario"], **settings, **arguments)


def operations_of(learner: Any, settings: Mapping[str, Any], tasks: arrays.Samples) -> float:
    """About how many operations learning takes; of CoP2L, whose iterations nobody knows before, at least."""
    lengths = (v for k, v in settings.items() if type(v) is int and any(word in k for word in PASSES))
    passes = max(1, sum(lengths))
    if settings.get("epochs") == 0:  # weighted replay decides by the number of rows
        passes = MOST_PASSES
    width: int = settings.get("random_features", 0)
    batch: int = settings.get("batch") or FEWEST_IN_STEP
    if 40 * width**2 > MAX_TENSOR_BYTES:
        raise Unreadable(f"random_features={width} take more memory than is allowed")
    sizes = [len(y) for _, y, *_ in tasks.values()]
    examples = 12.0 * sum(sizes) * multiplications(learner.model, tensor(tasks[1][0][:1]))
    steps = 1e7 * sum(1 + size // batch for size in sizes)
    return passes * (examples + steps) + 10.0 * width**2 * (width + sum(sizes))


def learn(certificate: Mapping[str, Any], rows: Path, out: Path, function: str | None, limit: float) -> None:
    """Learn again, and save the learner after each task."""
    _, tasks, _ = arrays.read_arrays(rows)
    learner = new_method(certificate, function, tasks[1])
    operations = operations_of(learner, certificate["settings"] or {}, tasks)
    if operations > limit:
        raise Unreadable(
            f"learning again takes {operations:.1e} operations, and {limit:.1e} are allowed: see --limit"
        )
    for t, (x, y, *_) in tasks.items():
        learner.learn(x, y, classes=certificate["records"][t - 1]["head"], progress=None)
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            learner.save(scratch)
            shutil.copyfile(next(Path(scratch).glob("*.safetensors")), out / AFTER.format(t))


def predict(certificate: Mapping[str, Any], rows: Path, out: Path, file: Path, function: str | None) -> None:
    """Predict the rows of each task with a stored learner that predicted nothing before; refuse it if others beside matter.

    `file` may be a folder, with the learner after each task.
    """
    for t, (x, *_) in arrays.read_arrays(rows)[1].items():
        learner, draws = new_method(certificate, function), np.random.default_rng(0)
        with tempfile.TemporaryDirectory(dir=out) as scratch:
            shutil.copyfile(file / AFTER.format(t) if file.is_dir() else file, Path(scratch) / SAVED_METHOD)
            learner.restore(scratch)
        task_number = t if certificate["scenario"] == "task-incremental" else None
        orders = [draws.permutation(len(x))[:size] for size in (*[1] * 30, -(-len(x) // 3), len(x))]
        classes = [learner.predict(x[order], task=task_number) for order in (*orders, np.arange(len(x)))]
        same = all(
            torch.equal(classes[-1][order], part) for order, part in zip(orders, classes, strict=False)
        )
        sentence = f"What is predicted for a row of task {t} depends on the rows that are predicted with it."
        require(same, sentence)
        np.save(out / f"{t}.npy", classes[-1].cpu().numpy().astype(np.int64))


def make_program(
    certificate: Mapping[str, Any], rows: Path, out: Path, export: Path, function: str | None
) -> None:
    """Make the program of the certified parameters; write its hash, the versions that made and ran it, and its logits."""
    alone = predicts_with_its_model(certificate["method"])
    require(alone, "it does not predict with its model alone, so no program of the model is certified")
    record = json.loads((export / EXPORT).read_text(encoding="utf-8"))["program"]
    model = predicting_model(certificate, function).cpu()
    try:
        exported = program(model, record["inputs"], record["format"])
    except UserError as error:
        raise Unreadable(str(error)) from None
    for t, (x, *_) in arrays.read_arrays(rows)[1].items():
        np.save(out / f"{t}.npy", answers_alone(exported.logits, x))
    digest = sha256(exported.content).hexdigest()
    facts = {"sha256": digest, "made_by": exported.made_by, "run_by": exported.run_by}
    (out / "made.json").write_text(json.dumps(facts), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("learn", "predict", "program"))
    for name in ("rows", "out", "certificate"):
        parser.add_argument(name, type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=float, default=1e14)
    parser.add_argument("--parent", type=int)
    parsed = parser.parse_args(arguments)
    if arguments is None:  # a process of its own
        watch(parsed.parent, math.inf, parsed.out)
    try:
        certificate = read_content(parsed.certificate)
        with threads(certificate["threads"]):
            if parsed.command == "learn":
                learn(certificate, parsed.rows, parsed.out, parsed.model, parsed.limit)
            else:
                run = predict if parsed.command == "predict" else make_program
                run(certificate, parsed.rows, parsed.out, parsed.file, parsed.model)
    except Exception as error:
        print(error if isinstance(error, ValueError) else type(error).__name__, file=sys.stderr)
        is_invalid = isinstance(error, METHOD_ERRORS) and not isinstance(error, Unreadable)
        # a learner raises its own error in place of torch's
        failures = [e for e in (error, error.__context__) if isinstance(e, RuntimeError)]
        out_of_memory = re.search("memory|allocate", str(failures))
        return 1 if is_invalid and not out_of_memory else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
