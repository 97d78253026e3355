"""The life of a saved learner outside experiments: find it, add a task to it, predict with it."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from cop2l.certify.certificate import Certificate, certifying_examples
from cop2l.errors import UserError
from cop2l.experiments.directory import check_certificate
from cop2l.files import last_complete, read_json, recover, replace_folder, write_array, write_json, write_text
from cop2l.kernel.exported import EXPORT
from cop2l.methods import METHODS, method
from cop2l.methods.base import SAVED_METHOD, Learner, read_state
from cop2l.methods.protocol import Method
from cop2l.streams.files import examples
from cop2l.text import Names, short_name

SAVED_COP2L = "learner.safetensors"
DATA = "data.json"
"""Beside a saved learner: the names of its classes and tasks, and how a table of examples is read for it."""
KEPT = ("class_names", "task_names", "inputs")


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
    if (state / EXPORT).exists():
        from cop2l.experiments.exported import Exported

        return Exported(state)  # type: ignore[return-value]
    raise UserError(f"There is no saved learner in {folder}; give a run directory or a folder saved before.")


def holds_learner(folder: Path) -> bool:
    """Whether a folder holds a saved learner itself."""
    return (folder / SAVED_COP2L).exists() or (folder / SAVED_METHOD).exists()


def state_of(folder: str | Path) -> Path:
    """Where the learner itself lies."""
    folder = Path(folder)
    state = last_complete(folder / "state")
    if state.is_dir():
        return state
    if last_complete(folder) != folder:  # a kill came between two renames
        recover(folder)
    return folder


def learn(
    folder: str | Path,
    data: str | Path,
    *,
    out: str | Path | None = None,
    label: str | None = None,
    classes: Sequence[str | int] | None = None,
    archive: Sequence[str] = (),
    progress: Any = None,
) -> tuple[Any, Path]:
    """Add a task to a saved learner; the learner with its new certificate, and where it was saved.

    `archive` names the data of earlier tasks, as T=PATH: then these are certified by counting their errors.
    """
    target = _target(folder, out)
    learner: Any = load(folder)
    known = data_description(folder)
    numbers = classes and [Names.from_description(known).class_number(name) for name in classes]
    old = dict(_archived(learner, entry, known, label) for entry in archive)
    x, y, groups, domains = read_examples(learner, data, known, label, labels=True)
    if (last := getattr(learner.options, "tasks", None)) is not None and learner.tasks_seen >= last:
        raise UserError(
            f"{folder} was made for {last} tasks, and all were learned; more can be added to a run with anytime=true."
        )
    if classes is None and learner.scenario == "task-incremental":
        raise UserError(
            "A task-incremental task needs its own classes; give them with --classes, as in --classes 4,5."
        )
    learn_kwargs = {"groups": groups} if claims_groups(learner) else {}
    if learn_kwargs and groups is None:
        raise UserError(
            f"The learner claims groups and {data} names none; add an array or a column named group."
        )
    _name_task(learner, known, data, domains)
    learner.learn(x, y, classes=numbers, progress=progress, **learn_kwargs)
    if hasattr(learner, "certify") and learner.options.tasks in (None, learner.tasks_seen):
        learner.certify(data=old | {learner.tasks_seen: (x, y)})

    def save(into: Path) -> None:
        learner.save(into)
        if known:
            write_json(into / DATA, known)

    replace_folder(target, save)
    return learner, target


def _name_task(learner: Any, known: dict[str, Any], data: str | Path, domains: Any) -> None:
    """Add the name of the next task, the domain of its examples, to what is known of the data and certified."""
    found = [] if domains is None else list(dict.fromkeys(map(str, domains.tolist())))
    if len(found) > 1:
        raise UserError(
            f"{data} holds the domains {', '.join(map(repr, found[:20]))}, each of which is a task; give one file for each."
        )
    names = [*known.get("task_names", ()), *found]
    if not found or len(names) != learner.tasks_seen + 1:
        return
    known["task_names"] = names
    state = getattr(learner, "state", None)
    if (
        state is not None and state.data and not state.commitment
    ):  # a commitment names the tasks of the run alone
        state.data = {**state.data, "task_names": [short_name(name) for name in names]}


def _target(folder: str | Path, out: str | Path | None) -> Path:
    """Where a learner that goes on is saved: where nothing else would be overwritten."""
    if out is None:
        target = state_of(folder)
        if (target.parent / "records.jsonl").exists():
            raise UserError(f"{folder} belongs to a run, which stays as it is; name a new folder with --out.")
        return target
    target = Path(out)
    if target.exists() and not holds_learner(target) and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not a saved learner; choose another folder with --out.")
    return target


class Predicted(NamedTuple):
    """What a learner says of examples."""

    classes: Tensor
    accuracy: float | None
    """The share that is right, if the data has labels."""
    names: Sequence[str]
    """The names of the classes; their numbers if they have none."""
    probabilities: Tensor | None


def predict(
    folder: str | Path,
    data: str | Path,
    *,
    label: str | None = None,
    task: str | int | None = None,
    probabilities: bool = False,
) -> Predicted:
    """The class of each example and, on request, the probabilities of all classes, of which nothing is certified."""
    return predict_part(
        load(folder), data, data_description(folder), label=label, task=task, probabilities=probabilities
    )


def predict_part(
    learner: Any,
    data: Any,
    known: Mapping[str, Any],
    *,
    label: str | None = None,
    task: str | int | None = None,
    probabilities: bool = False,
) -> Predicted:
    """What a learner says of a file or a table of examples; `known` is what its run keeps of its data."""
    x, y, *_ = read_examples(learner, data, known, label)
    number: int | None = Names.from_description(known).task_number(task)
    several, tasks = learner.scenario == "task-incremental", range(1, learner.tasks_seen + 1)
    if number not in tasks and (number is not None or (several and hasattr(learner, "certify"))):
        raise UserError(
            f"The learner has learned the tasks {tasks[0]} to {tasks[-1]}; say whose examples these are with --task."
        )
    classes: Tensor = learner.predict(x, task=number)
    right = None if y is None else int((classes.numpy() == y).sum()) / len(y)
    chances = _probabilities(learner, x, number) if probabilities else None
    return Predicted(classes, right, class_names(learner, known), chances)


def _probabilities(learner: Any, x: Any, task: int | None) -> Tensor:
    if hasattr(learner, "probabilities"):
        found: Tensor = learner.probabilities(x, task=task)
        return found
    if (type(learner).predict, type(learner).logits) != (Learner.predict, Learner.logits):
        raise UserError(f"{type(learner).__name__} does not predict by probabilities; leave them out.")
    chances: Tensor = learner.mask_logits(learner.logits(x), task).softmax(1).cpu()
    return chances


def class_names(learner: Any, known: Mapping[str, Any]) -> list[str]:
    """The names of the classes that a learner tells apart; numbers where there are no names."""
    outputs = learner.outputs if hasattr(learner, "shape") else int(learner.model.head.out_features)
    return [*known.get("class_names", ())][:outputs] or [str(number) for number in range(outputs)]


def read_examples(
    learner: Any,
    data: str | Path,
    known: Mapping[str, Any],
    label: str | None = None,
    *,
    labels: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Examples for a learner: inputs of its shape, class numbers (None without `labels`), groups and domains or None.

    `known` says how its run read a table: which columns, by name, and which one has the label. A `label` that is named
    comes before it.
    """
    columns = {"group": "group" if claims_groups(learner) else None, **known.get("inputs", {})}
    columns |= {} if label is None else {"label": label}
    # a frame's columns, where it learned in Python
    columns["names"] = getattr(getattr(learner, "state", learner), "columns", None)
    # of an export its program is known, and no model
    wanted = learner.shape if hasattr(learner, "shape") else tuple(learner.model.description["inputs"])
    x, y, groups, domains = examples(
        Path(data) if isinstance(data, str | Path) else data, class_names(learner, known), columns, wanted
    )
    if labels and y is None:
        raise UserError(f"{data} has no labels; add y, or name the column that holds them with --label.")
    if (shape := tuple(x.shape[1:])) != wanted:
        raise UserError(
            f"The examples in {data} have the shape {shape}, and the learner takes {wanted}; give the inputs that it learned."
        )
    return x, y, groups, domains


def claims_groups(learner: Any) -> bool:
    """Whether the learner must be told the group of each example."""
    return bool(getattr(learner.options, "groups", ()))


def data_description(folder: str | Path) -> dict[str, Any]:
    """What lies beside a learner about its data: names of classes and tasks, and the columns of its table."""
    folder = Path(folder)
    run = folder.parent if folder.name == "state" else folder
    kept, described = folder / DATA, run / "environment.json"
    found = read_json(kept) if kept.is_file() else {}
    if (folder / EXPORT).is_file():
        found = read_json(folder / EXPORT).get("data", {})
    if not found and described.is_file():
        found = read_json(described).get("stream", {})
    return {key: found[key] for key in KEPT if key in found}


def _archived(
    learner: Method, entry: str, known: Mapping[str, Any], label: str | None
) -> tuple[int, tuple[Any, np.ndarray]]:
    name, equals, path = entry.partition("=")
    if not equals:
        raise UserError(
            f"Write the data of an earlier task as T=PATH, for example 1=first.npz, not {entry!r}."
        )
    number = Names.from_description(known).task_number(name)
    if number not in range(1, learner.tasks_seen + 1):
        raise UserError(
            f"There is no earlier task {name}; the learner has learned the tasks 1 to {learner.tasks_seen}."
        )
    x, y, *_ = read_examples(learner, path, known, label, labels=True)
    return number, (x, y)


def certificate_json(learner: Method) -> dict[str, Any]:
    """What a learner certifies, for JSON."""
    certificate: Certificate | None = getattr(learner, "certificate", None)
    names = Names.from_description(certificate.content["data"]).tasks if certificate else ()
    rows = (
        []
        if certificate is None
        else [
            {
                "task": t,
                **({"name": names[t - 1]} if t <= len(names) else {}),
                "n": certifying_examples(record),
                "bounds": certificate.claimed.get(t, {}) | certificate.information(t),
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


def write_predicted(path: str | Path, predicted: Predicted) -> None:
    """Predictions as a file: an array for .npy, of probabilities if there are any; else lines."""
    if Path(path).suffix != ".npy":
        write_text(Path(path), "".join(f"{line}\n" for line in prediction_lines(predicted)))
        return
    found = predicted.classes if predicted.probabilities is None else predicted.probabilities
    write_array(Path(path), found.numpy())


def prediction_lines(predicted: Predicted) -> list[str]:
    """The name of the class of each example; with probabilities, CSV with a column for each class."""
    names = [predicted.names[number] for number in predicted.classes.tolist()]
    if predicted.probabilities is None:
        return names
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["predicted", *predicted.names])
    table.writerows([name, *row] for name, row in zip(names, predicted.probabilities.tolist(), strict=True))
    return text.getvalue().splitlines()
