"""Loggers for those who ask, or an object of your own; nothing leaves the machine unless told so."""

import csv
import os
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from cop2l.console import Watcher
from cop2l.errors import missing_extra, unknown
from cop2l.experiments.config import Config
from cop2l.files import write_text
from cop2l.plugins import imported
from cop2l.streams.task import Stream


class Logger(Protocol):
    """What a logger is told. One that also has `step(task, number, numbers)` hears of every iteration or epoch."""

    def start(self, config: dict[str, Any]) -> None:
        """The run begins, or goes on: then the tasks that it has learned follow first."""

    def log(self, task: int, numbers: dict[str, float]) -> None:
        """A task is learned and measured."""

    def end(self, summary: dict[str, Any] | None) -> None:
        """Nothing more will come; None: the run stopped before its end."""


class Logged(Watcher):
    """A logger as a watcher of a run."""

    def __init__(self, logger: Logger) -> None:
        self.logger, self.begun = logger, False
        self.summary: dict[str, Any] | None = None

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:  # noqa: ARG002
        """Only now is the run directory known to be ours."""
        self.logger.start(config.as_record())
        self.begun = True
        for record in records:
            self.task(record)

    def progress(self, event: dict[str, Any]) -> None:
        """The numbers of one iteration or epoch, for those who want them."""
        numbers = {name: event.get(name) for name in ("worst_loss", "bound", "picked", "loss")}
        known = {name: value for name, value in numbers.items() if value is not None and isfinite(value)}
        if (step := getattr(self.logger, "step", None)) is not None:
            step(event["task"], event.get("iteration", event.get("epoch")), known)

    def task(self, record: dict[str, Any]) -> None:
        """The numbers of a task."""
        self.logger.log(record["task"], measurements(record))

    def finish(self, summary: dict[str, Any]) -> None:
        """It ends well."""
        self.summary = summary

    def close(self) -> None:
        """Once, whatever the reason."""
        if self.begun:
            self.begun = False
            self.logger.end(self.summary)


def logged(name: str, folder: str | Path) -> Logged:
    """The logger of this name (csv, tensorboard, mlflow, wandb), or a class by its path, made with the run directory."""
    if ":" not in name and name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return Logged((LOGGERS.get(name) or imported(name))(Path(folder)))


def measurements(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of one record, by name."""
    accuracy = record["accuracy"]
    numbers = {"accuracy/average": sum(accuracy) / len(accuracy), "seconds": record["seconds"]}
    numbers |= {f"accuracy/task {t}": value for t, value in enumerate(accuracy, 1)}
    for row in record["tasks"]:
        numbers |= {f"bound {kind}/task {row['task']}": bound for kind, bound in row["bounds"].items()}
    return numbers


def averages(summary: dict[str, Any] | None) -> dict[str, float]:
    """The numbers of a whole run, by name; none if it stopped."""
    names = ("accuracy", "forgetting", "plasticity")
    return {f"final/{name}": summary[name] for name in names if summary and summary[name] is not None}


class CSV:
    """log.csv in the run directory: task, name, value."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.csv"

    def start(self, config: dict[str, Any]) -> None:  # noqa: ARG002
        """A new file: earlier tasks are told again."""
        write_text(self.path, "task,name,value\n")

    def log(self, task: int, numbers: dict[str, float]) -> None:
        """One line per number."""
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([task, *pair] for pair in numbers.items())

    def end(self, summary: dict[str, Any] | None) -> None:
        """The averages, under the last task."""
        if summary is not None:
            self.log(len(summary["tasks"]), averages(summary))


class TensorBoard:
    """Event files in the run directory, under tensorboard/."""

    def __init__(self, folder: Path) -> None:
        try:
            self.tensorboard: Any = import_module("torch.utils.tensorboard")
        except ImportError:
            raise missing_extra("tensorboard", "tensorboard", "--log tensorboard") from None
        self.folder = folder / "tensorboard"

    def start(self, config: dict[str, Any]) -> None:  # noqa: ARG002
        """A new event file."""
        self.writer: Any = self.tensorboard.SummaryWriter(str(self.folder))

    def step(self, task: int, number: int, numbers: dict[str, float]) -> None:
        """One curve per task and quantity."""
        for name, value in numbers.items():
            self.writer.add_scalar(f"{name}/task {task}", value, number)

    def log(self, task: int, numbers: dict[str, float]) -> None:
        """One point per task."""
        for name, value in numbers.items():
            self.writer.add_scalar(f"after each task: {name}", value, task)
        self.writer.flush()

    def end(self, summary: dict[str, Any] | None) -> None:
        """The averages; and close the event file."""
        for name, value in averages(summary).items():
            self.writer.add_scalar(name, value)
        self.writer.close()


class MLflow:
    """A run of the experiment "cop2l", at MLFLOW_TRACKING_URI or else beside the run directory, in mlruns/."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
        try:
            library: Any = import_module("mlflow")
        except ImportError:
            raise missing_extra("mlflow-skinny", "mlflow", "--log mlflow") from None
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            address = (folder.resolve().parent / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # needs no database and no server
        self.client: Any = library.MlflowClient(address)
        self.run_id: str | None = None
        self.told: set[int] = set()

    def start(self, config: dict[str, Any]) -> None:
        """Begin a run, or go on with the one of the same configuration."""
        found = self.client.get_experiment_by_name("cop2l")
        experiment = found.experiment_id if found else self.client.create_experiment("cop2l")
        if runs := self.client.search_runs([experiment], f"tags.hash = '{config['hash']}'"):
            self.run_id = runs[0].info.run_id
            self.told = {m.step for m in self.client.get_metric_history(self.run_id, "seconds")}
            return
        tags = {"hash": config["hash"]}
        self.run_id = self.client.create_run(experiment, tags=tags, run_name=config["hash"]).info.run_id
        for key, value in config.items():
            self.client.log_param(self.run_id, key, value)

    def log(self, task: int, numbers: dict[str, float]) -> None:
        """One point per task, once."""
        for name, value in numbers.items() if task not in self.told else ():
            self.client.log_metric(self.run_id, name, value, step=task)

    def end(self, summary: dict[str, Any] | None) -> None:
        """The averages."""
        for name, value in averages(summary).items():
            self.client.log_metric(self.run_id, name, value)
        self.client.set_terminated(self.run_id, None if summary else "KILLED")


class WandB:
    """A run of the project "cop2l", offline, in the run directory under wandb/; WANDB_MODE=online sends it."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        try:
            self.wandb: Any = import_module("wandb")
        except ImportError:
            raise missing_extra("wandb", "wandb", "--log wandb") from None
        self.folder = folder

    def start(self, config: dict[str, Any]) -> None:
        """A new run; earlier tasks are told again."""
        self.run: Any = self.wandb.init(
            project="cop2l",
            name=config["hash"],
            dir=self.folder,
            config=config,
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self.wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        for names in ("accuracy/*", "bound*", "seconds", "final/*"):  # not over its own counter of calls
            self.run.define_metric(names, step_metric="task")

    def step(self, task: int, number: int, numbers: dict[str, float]) -> None:
        """One curve per task and quantity."""
        self.run.log(
            {f"iterations/{name}/task {task}": value for name, value in numbers.items()}
            | {"iteration": number}
        )

    def log(self, task: int, numbers: dict[str, float]) -> None:
        """One point per task."""
        self.run.log({"task": task, **numbers})

    def end(self, summary: dict[str, Any] | None) -> None:
        """The averages."""
        self.run.summary.update(averages(summary))
        self.run.finish(exit_code=0 if summary else 1)


LOGGERS: dict[str, Any] = {"csv": CSV, "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
