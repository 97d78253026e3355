"""A saved learner outside experiments: load it, add a task to it, predict with it."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cop2l.certificates.program import load_program
from cop2l.errors import UserError
from cop2l.experiments.records import ENVIRONMENT, RECORDS
from cop2l.files import last_complete, read_json, recover, replace_folder, write_array, write_json, write_text
from cop2l.holdout.holdout import SAVED_HOLDOUT, Holdout
from cop2l.kernel.exported import CERTIFICATE, EXPORT, PROGRAMS
from cop2l.kernel.form import read_content
from cop2l.learner.saved import SAVED_COP2L
from cop2l.methods import load as load_method
from cop2l.methods import method
from cop2l.methods.base import SAVED_METHOD
from cop2l.streams.files import examples
from cop2l.text import Names, count, short_name

DATA = "data.json"
"""The names of classes and tasks, and how a table of examples is read: a file beside a saved learner."""
DATA_KEYS = ("class_names", "task_names", "inputs")


def load(folder: str | Path) -> Any:
    """The learner saved in a folder, or in the state/ of a run directory."""
    state = state_of(folder)
    if (state / SAVED_COP2L).exists():
        return method("cop2l").load(state)
    if (state / SAVED_HOLDOUT).exists():
        return Holdout.load(state)
    if (state / SAVED_METHOD).exists():
        return load_method(state)
    raise UserError(
        f"There is no saved learner in {folder}; give a run directory, a saved learner or, to predict, an export."
    )


class Exported:
    """The program of an exported folder as a learner that predicts; load only what you exported yourself."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        content, certificate = read_json(self.folder / EXPORT), read_content(self.folder / CERTIFICATE)
        kind = content["program"]["format"]
        self._logits = load_program(self.folder / PROGRAMS[kind], kind)
        self.scenario, self.options = certificate["scenario"], certificate["options"]
        self.heads = [record["head"] for record in certificate["records"]]
        self.tasks_seen, self.outputs = len(self.heads), certificate["classes"]
        self.shape = tuple(content["program"]["inputs"])

    def probabilities(self, x: Any, *, task: int | None = None) -> Tensor:
        """The softmax of the logits over the classes of the task if task-incremental, else over all learned classes."""
        heads = [self.heads[task - 1]] if task and self.scenario == "task-incremental" else self.heads
        masked = sorted(set(range(self.outputs)) - {number for head in heads for number in head})
        with torch.no_grad():
            logits = self._logits(torch.as_tensor(np.asarray(x))).clone()
        logits[:, masked] = -torch.inf
        return logits.softmax(1)

    def predict(self, x: Any, *, task: int | None = None) -> Tensor:
        return self.probabilities(x, task=task).argmax(1)

    def predict_names(self, rows: Sequence[Mapping[str, Any]], *, task: str | int | None = None) -> list[str]:
        """The class name of each row; a row maps column names to values."""
        import pyarrow as pa

        table = pa.Table.from_pylist([*map(dict, rows)])
        return predict(self.folder, table, task=task, learner=self).labels


def state_of(folder: str | Path) -> Path:
    """The folder of the learner itself: the state/ of a run directory, or the folder."""
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
    """Add a task to a saved learner. Returns the learner with its new certificate, and its folder.

    `archive` names the data of earlier tasks as T=PATH: these tasks are certified by counting their errors.
    """
    target = _target(folder, out)
    learner: Any = load(folder)
    description = data_description(folder)
    numbers = classes and [Names.from_description(description).class_number(name) for name in classes]
    samples = dict(_archived(learner, entry, description, label) for entry in archive)
    if isinstance(learner, Holdout) and len(samples) not in (0, learner.tasks_seen):
        raise UserError(
            "Give --archive for every earlier task, or for none: then the withheld rows that are kept certify."
        )
    x, y, groups, domains = read_examples(learner, data, description, label, labels=True)
    if (last := getattr(learner.options, "tasks", None)) is not None and learner.tasks_seen >= last:
        raise UserError(
            f"{folder} was made for {count(last, 'task')} and has learned all; more can be added to a run with anytime=true."
        )
    if classes is None and learner.scenario == "task-incremental":
        raise UserError(
            "A task-incremental task needs its classes; give them with --classes, as in --classes 4,5."
        )
    learn_kwargs = {"groups": groups} if claims_groups(learner) else {}
    if learn_kwargs and groups is None:
        raise UserError(
            f"The learner claims groups, but {data} names none; add an array or a column named group."
        )
    _name_task(learner, description, data, domains)
    learner.learn(x, y, classes=numbers, progress=progress, **learn_kwargs)
    if hasattr(learner, "certify") and learner.options.tasks in (None, learner.tasks_seen):
        given = samples | {learner.tasks_seen: (x, y)}
        is_partial = isinstance(learner, Holdout) and len(given) < learner.tasks_seen
        learner.certify(None if is_partial else given)

    def save(new: Path) -> None:
        learner.save(new)
        if description:
            write_json(new / DATA, description)

    replace_folder(target, save)
    return learner, target


def _name_task(learner: Any, description: dict[str, Any], data: str | Path, domains: Any) -> None:
    """Add the domain of the examples, which names the next task, to the description and to the certificate's data."""
    domain_names = [] if domains is None else list(dict.fromkeys(map(str, domains.tolist())))
    if len(domain_names) > 1:
        raise UserError(
            f"{data} has the domains {', '.join(map(repr, domain_names[:20]))}, each of which is a task; give one file for each."
        )
    names = [*description.get("task_names", ()), *domain_names]
    if not domain_names or len(names) != learner.tasks_seen + 1:
        return
    description["task_names"] = names
    state = getattr(learner, "state", None)
    # A commitment fixes the names of the tasks.
    if state is not None and state.data and not state.commitment:
        state.data = {**state.data, "task_names": [short_name(name) for name in names]}


def _target(folder: str | Path, out: str | Path | None) -> Path:
    """The folder to save a learner in; refused if something else would be overwritten."""
    if out is None:
        target = state_of(folder)
        if (target.parent / RECORDS).exists():
            raise UserError(
                f"{folder} belongs to a run, which must not change; name a new folder with --out."
            )
        return target
    target = Path(out)
    is_learner = (target / SAVED_COP2L).exists() or (target / SAVED_METHOD).exists()
    if target.exists() and not is_learner and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not a saved learner; choose another folder with --out.")
    return target


class Predicted(NamedTuple):
    """The predictions for some examples."""

    classes: Tensor
    accuracy: float | None
    """None if the data has no labels."""
    names: Sequence[str]
    """The names of all classes, or their numbers."""
    probabilities: Tensor | None

    @property
    def labels(self) -> list[str]:
        """The name of each predicted class."""
        return [self.names[number] for number in self.classes.tolist()]


def predict(
    folder: str | Path,
    data: Any,
    *,
    label: str | None = None,
    task: str | int | None = None,
    probabilities: bool = False,
    learner: Any = None,
) -> Predicted:
    """The class of each example and, on request, the probabilities of all classes, which are not certified.

    `data` is a file or a table; `learner` is the one of the folder, if it is loaded already.
    """
    if learner is None:
        learner = Exported(folder) if (Path(folder) / EXPORT).exists() else load(folder)
    description = data_description(folder)
    x, y, *_ = read_examples(learner, data, description, label)
    number: int | None = Names.from_description(description).task_number(task)
    tasks = range(1, learner.tasks_seen + 1)
    if number not in tasks and (number is not None or learner.scenario == "task-incremental"):
        raise UserError(
            f"The learner has learned {count(len(tasks), 'task')}; name the task of these examples with --task."
        )
    classes: Tensor = learner.predict(x, task=number)
    accuracy = None if y is None else int((classes.numpy() == y).sum()) / len(y)
    probability = learner.probabilities(x, task=number) if probabilities else None
    return Predicted(classes, accuracy, class_names(shape_and_outputs(learner)[1], description), probability)


def shape_and_outputs(learner: Any) -> tuple[tuple[int, ...], int]:
    """The shape of an example, and the number of outputs."""
    if hasattr(learner, "shape"):  # an export has a program and no model
        return learner.shape, learner.outputs
    return tuple(learner.model.description["inputs"]), int(learner.model.head.out_features)


def class_names(outputs: int, description: Mapping[str, Any]) -> list[str]:
    """The names of the classes, or their numbers."""
    return [*description.get("class_names", ())][:outputs] or [str(number) for number in range(outputs)]


def read_examples(
    learner: Any,
    data: str | Path,
    description: Mapping[str, Any],
    label: str | None = None,
    *,
    labels: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Examples for a learner: inputs of its shape, class numbers (None without `labels`), groups and domains or None.

    The description names the columns of a table, and the column of labels unless `label` names it.
    """
    columns = {"group": "group" if claims_groups(learner) else None, **description.get("inputs", {})}
    columns |= {} if label is None else {"label": label}
    # The columns of the data frame, if the learner learned from one in Python.
    columns["names"] = getattr(
        getattr(learner, "learner", getattr(learner, "state", learner)), "columns", None
    )
    expected, outputs = shape_and_outputs(learner)
    x, y, groups, domains = examples(
        Path(data) if isinstance(data, str | Path) else data,
        class_names(outputs, description),
        columns,
        expected,
    )
    if labels and y is None:
        raise UserError(f"{data} has no labels; add y, or name the column that holds them with --label.")
    if (shape := tuple(x.shape[1:])) != expected:
        raise UserError(
            f"The examples in {data} have the shape {shape}, and the learner takes {expected}; give the inputs that it learned."
        )
    return x, y, groups, domains


def claims_groups(learner: Any) -> bool:
    return bool(getattr(learner.options, "groups", ()))


def data_description(folder: str | Path) -> dict[str, Any]:
    """What is stored beside a learner about its data: names of classes and tasks, and the columns of its table."""
    folder = Path(folder)
    run = folder.parent if folder.name == "state" else folder
    description = {}
    if (folder / EXPORT).is_file():
        description = read_json(folder / EXPORT).get("data", {})
    elif (folder / DATA).is_file():
        description = read_json(folder / DATA)
    elif (run / ENVIRONMENT).is_file():
        description = read_json(run / ENVIRONMENT).get("stream", {})
    return {key: description[key] for key in DATA_KEYS if key in description}


def _archived(
    learner: Any, entry: str, description: Mapping[str, Any], label: str | None
) -> tuple[int, tuple[Any, np.ndarray]]:
    name, equals, path = entry.partition("=")
    if not equals:
        raise UserError(
            f"Write the data of an earlier task as T=PATH, for example 1=first.npz, not {entry!r}."
        )
    number = Names.from_description(description).task_number(name)
    if number not in range(1, learner.tasks_seen + 1):
        raise UserError(
            f"There is no earlier task {name}; the learner has learned {count(learner.tasks_seen, 'task')}."
        )
    x, y, *_ = read_examples(learner, path, description, label, labels=True)
    return number, (x, y)


def write_predicted(path: str | Path, predicted: Predicted) -> None:
    """Write predictions: as an array if the file is .npy, else as CSV. The array has the probabilities, if there are any."""
    if Path(path).suffix != ".npy":
        write_text(Path(path), prediction_table(predicted))
        return
    values = predicted.classes if predicted.probabilities is None else predicted.probabilities
    write_array(Path(path), values.numpy())


def prediction_table(predicted: Predicted) -> str:
    """CSV with the class name of each example and, if there are probabilities, a column for each class."""
    columns: Any = [predicted.labels]
    if predicted.probabilities is not None:
        columns += predicted.probabilities.T.tolist()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["predicted", *predicted.names][: len(columns)])
    table.writerows(zip(*columns, strict=True))
    return text.getvalue()
