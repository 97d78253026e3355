"""A learner on disk: one checked file, read without pickle."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.certificate import Certificate, read_certificate
from cop2l.certify.state import load_parameters, parameters
from cop2l.errors import UserError
from cop2l.files import DamagedError, last_complete, read_tensors, replace_folder, write_tensors
from cop2l.kernel.building import scalable
from cop2l.kernel.exact import Examples, digest, sample
from cop2l.kernel.learning import SET_NAMES, Sets, set_tensors
from cop2l.kernel.options import PRIOR
from cop2l.models import rebuild

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

FORMAT = "cop2l-learner 7"
FILE = "learner.safetensors"


def save(learner: "CoP2L", folder: Path, certificate: bool = True) -> None:
    """Write the learner and, if there is one and it is wanted, its certificate."""
    engine, state = learner.engine, learner.state
    sets = ({name: getattr(one, name) for name in SET_NAMES} for one in engine.sets)
    tensors = {f"sets/{name}": value for name, value in _concatenate_columns(sets).items()}
    for name, theta in (("theta_0", state.theta_0), ("theta", parameters(learner.model))):
        tensors |= {f"{name}/{key}": value for key, value in theta.items()}
    for name, parts in (("buffer", engine.buffer), ("prior", engine.prior)):
        tensors |= {
            f"{name}/{key}": value for key, value in _concatenate_columns(map(_columns, parts)).items()
        }
    counts = _concatenate_columns({"n": count} for count in engine.prior_counts)
    tensors |= {f"counts/{name}": value for name, value in counts.items()}
    tensors |= {f"sums/{name}": value.cpu() for name, value in engine.sums.items()}
    hashes = ({"rows": rows.view(np.int64)} for rows in state.hashes)
    tensors |= {f"hashes/{name}": value for name, value in _concatenate_columns(hashes).items()}
    for number, facts in enumerate(state.facts):
        tensors |= {f"facts/{number}/{name}": torch.from_numpy(rows.copy()) for name, rows in facts.items()}
    note = {
        "format": FORMAT,
        "options": learner.options.as_dict(),
        "scenario": learner.scenario,
        "not_valid": list(state.not_valid),
        "repeats": state.repeats,
        "void": list(state.void),
        "data": state.data,
        "commitment": state.commitment,
        "model": learner.description,
        "trained": state.trained,
        "classes": state.classes,
        "machines": state.machines,
        "threads": state.threads,
        "issued": state.issued,
        "columns": state.columns,
        "scale": learner.scale,
        "tasks": [
            {
                "head": list(head),
                "fingerprint": found,
                "sizes": list(sizes),
                "numbers": [one.iterations, one.stopped],
            }
            for head, found, sizes, one in zip(
                state.heads, state.fingerprints, engine.sizes, engine.sets, strict=True
            )
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / FILE, tensors, note)
    if certificate and learner.certificate is not None:
        replace_folder(folder / "certificate", learner.certificate.save)


def restore(learner: "CoP2L", folder: Path) -> None:
    """Put a learner, made with the same model and options, into the saved state."""
    note, tensors = _read(folder)
    mine = learner.options.as_dict()
    changed = [name for name, value in mine.items() if note["options"].get(name) != value]
    if note["scenario"] != learner.scenario:
        changed.append("scenario")
    if note["commitment"] != learner.state.commitment:
        changed.append("commitment")
    if changed:
        raise UserError(f"The saved learner has another {', '.join(changed)}; use what it was made with.")
    _put(learner, note, tensors, folder)


def load(cls: "type[CoP2L]", folder: Path, model: nn.Module | None) -> "CoP2L":
    """A learner from its folder (or from the state of a run directory)."""
    if not (folder / FILE).exists() and (folder / "state" / FILE).exists():
        folder = folder / "state"
    note, tensors = _read(folder)
    if model is None:
        if not note["model"].get("name"):
            raise UserError(
                f"The learner in {folder} has a model of your own; pass it: CoP2L.load(folder, model=...)."
            )
        model = rebuild_model(
            note["model"], {name: value for name, value in tensors.items() if name.startswith("theta/")}
        )
        if note["machines"] and ", cpu, " not in note["machines"][-1] and torch.cuda.is_available():
            model = model.cuda()
    names = ("scenario", "scale", "not_valid", "data", "commitment", "repeats")
    given = {name: note[name] for name in names} | note["options"]
    learner = cls(model, preset="cop2l", **given)  # every option is given
    _put(learner, note, tensors, folder)
    return learner


def rebuild_model(description: dict[str, Any], theta: dict[str, Tensor]) -> nn.Module:
    """One of cop2l's own models with its seed's weights, in the precision of theta."""
    model = rebuild({key: value for key, value in description.items() if key != "parameters"})
    kinds = [value.dtype for value in theta.values() if value.is_floating_point()]
    return model.to(kinds[0] if kinds else None)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not (folder / FILE).exists():
        raise UserError(f"There is no saved learner in {folder}: the file {FILE} is missing.")
    tensors, note = read_tensors(folder / FILE)
    if note.get("format") != FORMAT:
        raise UserError(f"{folder / FILE} is not a learner that this version of cop2l can read.")
    return note, tensors


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _put(learner: "CoP2L", note: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    if note["model"].get("scale") == PRIOR:
        learner.use_model(scalable(learner.model, note["model"]["inputs"]))
    first, mine, state = _part(tensors, "theta_0/"), learner.model.state_dict(), learner.state
    wrong = [
        name
        for name in sorted({*first, *mine})
        if name not in first or name not in mine or _form(first[name]) != _form(mine[name])
    ]
    if wrong:
        raise UserError(f"The model does not fit the saved learner: look at its parameter {wrong[0]}.")
    if note["trained"] != state.trained:
        raise UserError(
            "The model trains other parameters than the saved learner; set requires_grad as it was there."
        )
    load_parameters(learner.model, _part(tensors, "theta/"))
    engine, tasks = learner.engine, note["tasks"]
    state.theta_0, state.machines, state.classes = first, note["machines"], note["classes"]
    state.threads, state.issued, state.columns = note["threads"], note["issued"], note["columns"]
    state.not_valid = tuple(dict.fromkeys([*note["not_valid"], *state.not_valid]))
    state.repeats, state.void = note["repeats"], tuple(note["void"])
    state.hashes = [one["rows"].numpy().view(np.uint64) for one in _split_columns(_part(tensors, "hashes/"))]
    state.heads = [tuple(task["head"]) for task in tasks]
    state.fingerprints = [task["fingerprint"] for task in tasks]
    state.facts = [
        {name: rows.numpy() for name, rows in _part(tensors, f"facts/{number}/").items()}
        for number in range(len(tasks))
    ]
    engine.sizes = [tuple(task["sizes"]) for task in tasks]
    engine.sets = []
    for task, columns in zip(tasks, _split_columns(_part(tensors, "sets/")), strict=True):
        rows: dict[str, Any] = {name: value.numpy() for name, value in columns.items()}
        engine.sets.append(Sets(**rows, iterations=task["numbers"][0], stopped=task["numbers"][1]))
    device, seed = next(learner.model.parameters()).device, learner.options.seed
    engine.buffer, engine.prior = (
        [
            sample(held["x"].to(device), held["y"].to(device), number, seed, held["row"].numpy())
            for number, held in enumerate(_split_columns(_part(tensors, f"{name}/")), 1)
        ]
        for name in ("buffer", "prior")
    )
    engine.prior_counts = [task["n"] for task in _split_columns(_part(tensors, "counts/"))]
    engine.sums = {name: value.to(device) for name, value in _part(tensors, "sums/").items()}
    engine.masked_classes = learner._outside() if tasks else None
    state.theta = digest(learner.model.state_dict())
    state.certificate = _stored_certificate(_issued(folder, len(tasks)), learner)
    learner.model.eval()


def _columns(part: Examples) -> dict[str, Any]:
    """The columns of examples that are stored."""
    return {"x": part.x, "y": part.y, "row": part.row}


def _concatenate_columns(every: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The columns of all tasks one behind the other, and how long each is: few large tensors instead of many small ones."""
    found, parts = dict[str, Tensor](), list(every)
    for name in parts[0] if parts else ():
        columns = [part[name] for part in parts]
        arrays = isinstance(columns[0], np.ndarray)
        found |= {
            name: torch.from_numpy(np.concatenate(columns)) if arrays else torch.cat(columns).cpu(),
            f"{name} lengths": torch.tensor([len(column) for column in columns]),
        }
    return found


def _split_columns(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The columns of each task again, each in memory of its own."""
    if not tensors:
        return []
    names = sorted(name for name in tensors if not name.endswith(" lengths"))
    columns = [torch.split(tensors[name], tensors[f"{name} lengths"].tolist()) for name in names]
    return [
        dict(zip(names, (column.clone() for column in task), strict=True))
        for task in zip(*columns, strict=True)
    ]


def _form(value: Tensor) -> tuple[Any, Any]:
    return value.shape, value.dtype


def _issued(folder: Path, tasks: int) -> Path:
    """Where a learner's certificate lies: beside it or, in a run directory, among all that were issued."""
    own = last_complete(folder / "certificate")
    return own if own.exists() else last_complete(folder.parent / "certificates" / f"after-{tasks:02d}")


def _stored_certificate(folder: Path, learner: "CoP2L") -> Certificate | None:
    """The certificate saved with the learner; None if it is of another time (the process was killed between two files)."""
    if learner.state.issued is None or not folder.exists():
        return None
    try:
        found, theta = read_certificate(folder), parameters(learner.model)
    except UserError as error:
        raise DamagedError(folder, str(error).rstrip(".")) from None
    tensors = {"theta_0": learner.state.theta_0, "theta": theta, "sets": set_tensors(learner.engine.sets)}
    if any(found.content[name] != digest(part) for name, part in tensors.items()):
        return None
    return replace(found, tensors=tensors)
