"""The life of a saved learner outside experiments: find it, add a task to it, predict with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cop2l.certify.certificate import Certificate, certifying
from cop2l.errors import UserError
from cop2l.experiments.directory import check_certificate
from cop2l.files import read_json, recover, replace_folder, standing, write_array, write_json, write_text
from cop2l.kernel.form import MOST_CLASSES
from cop2l.methods import METHODS, method
from cop2l.methods.base import SAVED_METHOD, read_state
from cop2l.methods.protocol import Method
from cop2l.streams.files import examples
from cop2l.streams.tables import Columns

SAVED_COP2L = "learner.safetensors"
USUAL = Columns()
NAMES = "names.json"
"""Beside a saved learner: the names of its classes, in order."""


def load(folder: str | Path) -> Method:
    """The learner saved in a folder, or in the state/ of a run directory."""
    state = state_of(folder)
    if (state / SAVED_COP2L).exists():
        check_certificate(state / "certificate")
        return method("cop2l").load(state)
    if (state / SAVED_METHOD).exists():
        _, note = read_state(state)
        names = {method(name).__name__: name for name in METHODS}
        if note["method"] not in names:  # a file does not say what is to be imported
            raise UserError(
                f"{folder} was learned by {note['method']}, which no installed package declares; load it in Python: "
                f"{note['method']}.load({str(state)!r})."
            )
        return method(names[note["method"]]).load(state)
    raise UserError(f"There is no saved learner in {folder}; give a run directory or a folder saved before.")


def saved(folder: Path) -> bool:
    """Whether a folder holds a saved learner itself."""
    return (folder / SAVED_COP2L).exists() or (folder / SAVED_METHOD).exists()


def state_of(folder: str | Path) -> Path:
    """Where the learner itself lies."""
    folder = Path(folder)
    state = standing(folder / "state")
    if state.is_dir():
        return state
    if standing(folder) != folder:  # a kill came between two renames
        recover(folder)
    return folder


def learn(
    folder: str | Path,
    data: str | Path,
    *,
    out: str | Path | None = None,
    columns: Columns = USUAL,
    names: Sequence[str] = (),
    classes: Sequence[int] | None = None,
    archive: Sequence[str] = (),
    progress: Any = None,
) -> tuple[Any, Path]:
    """Add a task to a saved learner; the learner with its new certificate, and where it was saved.

    `archive` names the data of earlier tasks, as T=PATH: then these are certified by counting their errors.
    """
    target = _target(folder, out)
    learner: Any = load(folder)
    names = names or names_beside(folder)
    old = dict(_archived(learner, entry, columns, names) for entry in archive)
    x, y, groups = read(learner, data, columns, names, labels=True)
    if (last := getattr(learner.options, "tasks", None)) is not None and learner.tasks_seen >= last:
        raise UserError(
            f"{folder} was made for {last} tasks, and all were learned; more can be added to a run with anytime=true."
        )
    if classes is None and learner.scenario == "task-incremental":
        raise UserError(
            "A task-incremental task needs its own classes; give them with --classes, as in --classes 4,5."
        )
    told = {"groups": groups} if claims_groups(learner) else {}
    if told and groups is None:
        raise UserError(
            f"The learner claims groups and {data} names none; add group, or name the column with --group."
        )
    learner.learn(x, y, classes=classes, progress=progress, **told)
    if hasattr(learner, "certify") and learner.options.tasks in (None, learner.tasks_seen):
        learner.certify(data=old | {learner.tasks_seen: (x, y)})

    def save(into: Path) -> None:
        learner.save(into)
        if names:
            write_json(into / NAMES, {"names": list(names)})

    replace_folder(target, save)
    return learner, target


def _target(folder: str | Path, out: str | Path | None) -> Path:
    """Where a learner that goes on is saved: where nothing else would be overwritten."""
    if out is None:
        target = state_of(folder)
        if (target.parent / "records.jsonl").exists():
            raise UserError(f"{folder} belongs to a run, which stays as it is; name a new folder with --out.")
        return target
    target = Path(out)
    if target.exists() and not saved(target) and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not a saved learner; choose another folder with --out.")
    return target


def predict(
    folder: str | Path,
    data: str | Path,
    *,
    columns: Columns = USUAL,
    names: Sequence[str] = (),
    task: int | None = None,
) -> tuple[Tensor, float | None, Sequence[str]]:
    """The class of each example, the share that is right if the data has labels, and the classes' names, if known."""
    learner: Any = load(folder)
    names = names or names_beside(folder)
    x, y, _ = read(learner, data, columns, names)
    several, known = learner.scenario == "task-incremental", range(1, learner.tasks_seen + 1)
    if task not in known and (task is not None or (several and hasattr(learner, "certify"))):
        raise UserError(
            f"{folder} has learned the tasks {known[0]} to {known[-1]}; say whose examples these are with --task."
        )
    predicted: Tensor = learner.predict(x, task=task)
    right = None if y is None else int((predicted.numpy() == y).sum()) / len(y)
    return predicted, right, names


def read(
    learner: Any, data: str | Path, columns: Columns, names: Sequence[str], *, labels: bool = False
) -> tuple[Any, Any, Any]:
    """Examples for a learner: inputs of its shape, class numbers (None without `labels`), and groups or None.

    The column of groups is the one that was named, or `group` where the learner claims groups.
    """
    columns = columns._replace(group=columns.group or ("group" if claims_groups(learner) else None))
    outputs = int(learner.model.head.out_features)
    known = names if 0 < len(names) <= outputs else [str(number) for number in range(outputs)]
    x, y, groups = examples(Path(data), columns, known)
    if labels and y is None:
        raise UserError(f"{data} has no labels; add y, or name the column that holds them with --label.")
    shape, wanted = tuple(x.shape[1:]), tuple(learner.model.description["inputs"])
    if shape != wanted:
        raise UserError(
            f"The examples in {data} have the shape {shape}, and the learner takes {wanted}; choose its inputs, of a table with"
            " --columns and --text."
        )
    return x, y, groups


def claims_groups(learner: Any) -> bool:
    """Whether the learner must be told the group of each example."""
    return bool(getattr(learner.options, "groups", ()))


def names_beside(folder: str | Path) -> Sequence[str]:
    """The names of the classes that lie beside a learner, in order; none if they are not known."""
    described, kept = Path(folder) / "environment.json", Path(folder) / NAMES
    found = read_json(kept) if kept.is_file() else {}
    if not found and described.is_file():
        found = read_json(described).get("stream", {})
    names: Sequence[str] = found.get("names", found.get("class_names", ()))
    return names


def _archived(
    learner: Method, entry: str, columns: Columns, names: Sequence[str]
) -> tuple[int, tuple[Any, np.ndarray]]:
    number, equals, path = entry.partition("=")
    if not equals or not number.isdecimal():
        raise UserError(
            f"Write the data of an earlier task as T=PATH, for example 1=first.npz, not {entry!r}."
        )
    if not 1 <= int(number) <= learner.tasks_seen:
        raise UserError(
            f"There is no earlier task {number}; the learner has learned the tasks 1 to {learner.tasks_seen}."
        )
    x, y, _ = read(learner, path, columns, names, labels=True)
    return int(number), (x, y)


def class_numbers(text: str | None) -> list[int] | None:
    """The classes of a task from text such as 0,1 or 0-9."""
    if text is None:
        return None
    try:
        ends = [[int(number) for number in part.split("-")] for part in text.split(",")]
        runs = [range(first, last + 1) for first, last in (end if len(end) > 1 else end * 2 for end in ends)]
    except ValueError:
        runs = []
    if not runs or not all(runs):
        raise UserError(f"Write classes as numbers, for example 4,5 or 0-9, not {text!r}.")
    if max(run[-1] for run in runs) >= MOST_CLASSES:
        raise UserError(
            f"A model may have {MOST_CLASSES} classes; declare no more than 0-{MOST_CLASSES - 1}."
        )
    return [number for run in runs for number in run]


def issued(learner: Method) -> dict[str, Any]:
    """What a learner certifies, for JSON."""
    certificate: Certificate | None = getattr(learner, "certificate", None)
    rows = (
        []
        if certificate is None
        else [
            {
                "task": t,
                "n": certifying(record),
                "bounds": certificate.stated.get(t, {}) | certificate.information(t),
            }
            for t, record in enumerate(certificate.records, 1)
        ]
    )
    return {
        "tasks_seen": learner.tasks_seen,
        "kind": certificate and certificate.kind,
        "tasks": rows,
        "claims": [s for s in certificate.statements if s["family"] != "tasks"] if certificate else [],
        "sentences": certificate.sentences if certificate else [],
    }


def write_classes(path: str | Path, classes: Tensor) -> None:
    """Predicted classes as a file: an array for .npy, else one per line."""
    path = Path(path)
    if path.suffix != ".npy":
        write_text(path, "".join(f"{number}\n" for number in classes.tolist()))
        return
    write_array(path, classes.numpy())
