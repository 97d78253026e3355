"""Finding what the verifier needs: the certificate in a folder, the samples it speaks of, a user's own model."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cop2l.certify.certificate import ASSUMPTIONS, Certificate, read, table
from cop2l.errors import UserError
from cop2l.features import load_stream
from cop2l.files import numbered
from cop2l.streams.withhold import withhold

RECIPE_KEYS = ("scenario", "tasks", "order_seed", "images", "seed")


def find_certificate(path: Path) -> Path:
    """The certificate's folder: itself, or the last one of a run directory or of a saved learner."""
    if path.name == "certificate.json" and path.is_file():
        return path.parent
    issued = [folder / "certificate.json" for folder in numbered(path / "certificates", "after-")]
    for found in (path / "certificate.json", *reversed(issued), path / "certificate" / "certificate.json"):
        if found.is_file():
            return found.parent
    raise UserError(f"There is no certificate in {path}; give a certificate's folder or a run directory.")


def samples_for(path: Path, given: str | None) -> dict[int, tuple[Any, Any]] | None:
    """The samples of the tasks, from a stream by name, a folder, or a file of arrays; None if nothing is given.

    An .npz file may hold the samples themselves, as x_1, y_1, x_2, y_2, ... Any other source is cut into tasks as the
    certificate's `data` says it was.
    """
    if given is None:
        return None
    arrays = _task_arrays(Path(given))
    if arrays:
        return arrays
    try:
        content, _ = read(path)
    except UserError:
        return None  # the verifier says what is wrong with it
    recipe: dict[str, Any] = content["data"] if isinstance(content.get("data"), dict) else {}
    wanted = {"scenario": content.get("scenario"), "tasks": content.get("options", {}).get("tasks")}
    wanted |= {key: recipe[key] for key in RECIPE_KEYS if recipe.get(key) is not None}
    more: dict[str, Any] = recipe["options"] if isinstance(recipe.get("options"), dict) else {}
    more = {
        key: value for key, value in more.items() if key not in ("folder", "download")
    }  # the reader's to choose
    try:
        stream = load_stream(given, **{**more, **wanted})
        parts = [withhold(task, recipe.get("holdout"), recipe.get("holdout_seed") or 0)[0] for task in stream]
    except (TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"The certificate does not say correctly how its data was cut ({error}); give the samples as an .npz file."
        ) from None
    return {task.t: (task.x, task.y) for task in parts}


def _task_arrays(path: Path) -> dict[int, tuple[Any, Any]]:
    if path.suffix != ".npz" or not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as content:
            tasks = [int(name[2:]) for name in content.files if name.startswith("x_") and name[2:].isdigit()]
            return {task: (content[f"x_{task}"], content[f"y_{task}"]) for task in tasks}
    except (ValueError, OSError, KeyError, EOFError) as error:
        raise UserError(f"{path} is not a readable .npz file of plain arrays ({error}).") from None


def given_model(name: str | None) -> nn.Module | None:
    """The model that a function of the user's returns, named as MODULE:FUNCTION."""
    if name is None:
        return None
    module, _, function = name.partition(":")
    try:
        model = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"--model must name a function as MODULE:FUNCTION, and {name!r} does not: {error}."
        ) from None
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def readable(certificate: Certificate) -> str:
    """The certificate as text: the table, the terms of every bound, and the assumptions."""
    lines = [table(certificate), ""]
    for record in certificate.tasks:
        lines.append(f"Task {record.counts.task}")
        for kind, bound in record.bounds.items():
            claimed = " (the claim)" if kind == certificate.claim else ""
            lines.append(
                f"  {kind}{claimed}: {bound.value:.6f}" + (f"  {bound.reason}" if bound.reason else "")
            )
            lines += [f"    {name:<44} {value:.6g}" for name, value in bound.terms.items()]
    lines += ["", "Assumptions", *(f"  - {sentence}" for sentence in ASSUMPTIONS)]
    lines += [
        "",
        "Model   " + json.dumps(certificate.model),
        "Options " + json.dumps(certificate.options.as_dict()),
    ]
    return "\n".join(lines)
