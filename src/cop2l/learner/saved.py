"""Saves a learner in one file with a checksum, and loads it without pickle."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certificates.certificate import Certificate, stored_certificate
from cop2l.errors import UserError
from cop2l.files import read_tensors, replace_folder, write_tensors
from cop2l.kernel.exact import digest, sample
from cop2l.kernel.learning import SET_NAMES, Sets, set_tensors
from cop2l.learner.state import load_parameters, parameters
from cop2l.models import rebuild

if TYPE_CHECKING:
    from cop2l.learner.cop2l import CoP2L

FORMAT = "cop2l-learner 8"
SAVED_COP2L = "learner.safetensors"
RESTORED = ("repeats", "classes", "machines", "threads", "columns")
"""The fields of `State` that are stored and put back as they are."""
CONSTRUCTED = ("not_valid", "data", "commitment")
"""The fields of `State` that the constructor of the learner takes."""


def save(learner: "CoP2L", folder: Path, certificate: bool = True) -> None:
    """Write the learner and, unless `certificate` is false, its certificate."""
    engine, state = learner.engine, learner.state
    columns: dict[str, list[dict[str, Any]]] = {
        "sets": [{name: getattr(sets, name) for name in SET_NAMES} for sets in engine.sets],
        "buffer": [{"x": part.x, "y": part.y, "row": part.row} for part in engine.buffer],
        "hashes": [{"rows": rows.view(np.int64)} for rows in state.hashes],
    }
    groups = {"theta_0": state.theta_0, "theta": parameters(learner.model)}
    groups |= {name: _concatenate_columns(parts) for name, parts in columns.items()}
    for number, task_columns in enumerate(state.claim_columns):
        groups[f"facts/{number}"] = {
            name: torch.from_numpy(rows.copy()) for name, rows in task_columns.items()
        }
    tasks = zip(state.heads, state.fingerprints, engine.sizes, engine.sets, strict=True)
    note = {
        "format": FORMAT,
        "options": learner.options.as_dict(),
        "scenario": learner.scenario,
        "model": learner.description,
        **{name: getattr(state, name) for name in (*RESTORED, *CONSTRUCTED, "trained")},
        "void": state.void_tasks,
        "issued": state.issued_statements,
        "tasks": [
            {"head": head, "fingerprint": hashed, "rows": size, "numbers": [sets.iterations, sets.stopped]}
            for head, hashed, size, sets in tasks
        ],
    }
    tensors = {f"{name}/{key}": value for name, group in groups.items() for key, value in group.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / SAVED_COP2L, tensors, note)
    if certificate and learner.certificate is not None:
        replace_folder(folder / "certificate", learner.certificate.save)


def restore(learner: "CoP2L", folder: Path) -> None:
    """Put a learner with the same model and options into the saved state."""
    note, tensors = _read(folder)
    stored = {**note["options"], "scenario": note["scenario"], "commitment": note["commitment"]}
    current = learner.options.as_dict() | {
        "scenario": learner.scenario,
        "commitment": learner.state.commitment,
    }
    if changed := [name for name, value in current.items() if stored.get(name) != value]:
        raise UserError(f"The saved learner has another {', '.join(changed)}; use what it was made with.")
    _put(learner, note, tensors, folder)


def load(cls: "type[CoP2L]", folder: Path, model: nn.Module | None) -> "CoP2L":
    """A learner from its folder, or from a run directory."""
    if not (folder / SAVED_COP2L).exists() and (folder / "state" / SAVED_COP2L).exists():
        folder = folder / "state"
    note, tensors = _read(folder)
    if model is None:
        if not note["model"].get("name"):
            raise UserError(
                f"The learner in {folder} has a model of your own; pass it: CoP2L.load(folder, model=...)."
            )
        model = rebuild({key: value for key, value in note["model"].items() if key != "parameters"})
        dtypes = (value.dtype for value in _part(tensors, "theta/").values() if value.is_floating_point())
        model = model.to(next(dtypes, None))
        if note["machines"] and ", cpu, " not in note["machines"][-1] and torch.cuda.is_available():
            model = model.cuda()
    arguments = {name: note[name] for name in ("scenario", *CONSTRUCTED)} | note["options"]
    learner = cls(
        model, preset="picking", **arguments
    )  # the preset changes nothing: `arguments` has every option
    _put(learner, note, tensors, folder)
    return learner


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / SAVED_COP2L).exists():
        raise UserError(f"There is no saved learner in {folder}: the file {SAVED_COP2L} is missing.")
    tensors, note = read_tensors(folder / SAVED_COP2L)
    if note.get("format") != FORMAT:
        raise UserError(f"{folder / SAVED_COP2L} is not a learner that this version of cop2l can read.")
    return note, tensors


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _put(learner: "CoP2L", note: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    """Put a learner into the saved state; refuse a model that does not fit."""
    theta_0, state, tasks = _part(tensors, "theta_0/"), learner.state, note["tasks"]
    stored, current = (
        {(name, value.shape, value.dtype) for name, value in part.items()}
        for part in (theta_0, learner.model.state_dict())
    )
    if different := stored ^ current:
        raise UserError(
            f"The model does not fit the saved learner: look at its parameter {min(name for name, *_ in different)}."
        )
    if note["trained"] != state.trained:
        raise UserError(
            "The model trains other parameters than the saved learner; set requires_grad as it was there."
        )
    load_parameters(learner.model, _part(tensors, "theta/"))
    for name in RESTORED:
        setattr(state, name, note[name])
    state.theta_0, state.theta_digest = theta_0, digest(learner.model.state_dict())
    state.void_tasks, state.issued_statements = tuple(note["void"]), note["issued"]
    state.not_valid = tuple(dict.fromkeys([*note["not_valid"], *state.not_valid]))
    hashes = _split_columns(_part(tensors, "hashes/"))
    state.hashes = [columns["rows"].numpy().view(np.uint64) for columns in hashes]
    state.heads = [tuple(task["head"]) for task in tasks]
    state.fingerprints = [task["fingerprint"] for task in tasks]
    state.claim_columns = [
        {name: rows.numpy() for name, rows in _part(tensors, f"facts/{number}/").items()}
        for number in range(len(tasks))
    ]
    _put_engine(learner, tasks, tensors)
    state.certificate = _stored_certificate(folder, learner)
    learner.model.eval()


def _put_engine(learner: "CoP2L", tasks: Sequence[Mapping[str, Any]], tensors: dict[str, Tensor]) -> None:
    """Put the sets and the memory of all tasks into the engine."""
    engine = learner.engine
    engine.sizes = [task["rows"] for task in tasks]
    engine.sets = []
    for task, columns in zip(tasks, _split_columns(_part(tensors, "sets/")), strict=True):
        rows: dict[str, Any] = {name: value.numpy() for name, value in columns.items()}
        engine.sets.append(Sets(**rows, iterations=task["numbers"][0], stopped=task["numbers"][1]))
    device, seed = next(learner.model.parameters()).device, learner.options.seed
    engine.buffer = [
        sample(part["x"].to(device), part["y"].to(device), number, seed, part["row"].numpy())
        for number, part in enumerate(_split_columns(_part(tensors, "buffer/")), 1)
    ]
    engine.masked_classes = learner._masked_classes() if tasks else None


def _concatenate_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The columns of all tasks, concatenated, and their lengths: few large tensors instead of many small ones."""
    joined = dict[str, Tensor]()
    for name in parts[0] if parts else ():
        columns = [part[name] for part in parts]
        arrays = isinstance(columns[0], np.ndarray)
        joined |= {
            name: torch.from_numpy(np.concatenate(columns)) if arrays else torch.cat(columns).cpu(),
            f"{name} lengths": torch.tensor([len(column) for column in columns]),
        }
    return joined


def _split_columns(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The columns of each task, each in memory of its own."""
    if not tensors:
        return []
    names = sorted(name for name in tensors if not name.endswith(" lengths"))
    columns = [torch.split(tensors[name], tensors[f"{name} lengths"].tolist()) for name in names]
    return [
        dict(zip(names, (column.clone() for column in task), strict=True))
        for task in zip(*columns, strict=True)
    ]


def _stored_certificate(folder: Path, learner: "CoP2L") -> Certificate | None:
    """The certificate beside the learner, or in its run directory; None if it is older than the learner, after a crash."""
    certificate = stored_certificate(folder, learner.tasks_seen)
    if learner.state.issued_statements is None or certificate is None:
        return None
    theta = parameters(learner.model)
    tensors = {"theta_0": learner.state.theta_0, "theta": theta, "sets": set_tensors(learner.engine.sets)}
    if any(certificate.content[name] != digest(part) for name, part in tensors.items()):
        return None
    return replace(certificate, tensors=tensors)
