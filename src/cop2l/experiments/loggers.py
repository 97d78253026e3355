"""Loggers for `--log`: the built-in ones, or your own class. Nothing leaves the machine unless you configure it."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from cop2l.console import Watcher
from cop2l.errors import missing_extra, unknown
from cop2l.experiments.config import Config
from cop2l.plugins import imported
from cop2l.streams.task import Stream


class Logged(Watcher):
    """A watcher that calls a logger: an object with `start(config)`, `log(task, numbers)` and `end(finished)`.

    A run that continues starts the logger again and logs the finished tasks. The averages of the run are logged last.
    """

    def __init__(self, logger: Any) -> None:
        self.logger, self.begun, self.finished = logger, False, False

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:  # noqa: ARG002
        """Start the logger: only now it is known that the run directory belongs to this run."""
        self.logger.start(config.as_record())
        self.begun = True
        for record in records:
            self.task(record)

    def task(self, record: dict[str, Any]) -> None:
        """Log the numbers of a task."""
        self.logger.log(record["task"], measurements(record))

    def finish(self, summary: dict[str, Any]) -> None:
        """Log the averages."""
        values = {f"final/{name}": summary[name] for name in ("accuracy", "forgetting", "plasticity")}
        numbers = {name: value for name, value in values.items() if value is not None}
        self.logger.log(len(summary["tasks"]), numbers)
        self.finished = True

    def close(self) -> None:
        """End the logger, once."""
        if self.begun:
            self.begun = False
            self.logger.end(self.finished)


def logged(name: str, folder: str | Path) -> Logged:
    """The watcher for a logger (tensorboard, mlflow, wandb, or a class by its path) and a run directory."""
    if ":" not in name and name not in LOGGERS:
        raise unknown("logger", name, LOGGERS)
    return Logged((LOGGERS.get(name) or imported(name))(Path(folder)))


def measurements(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of one record, by name; of the bounds only those that are claimed and valid."""
    accuracy, claim = record["accuracy"], None if record["not_valid"] else record["kind"]
    numbers = {"accuracy/average": sum(accuracy) / len(accuracy), "seconds": record["seconds"]}
    numbers |= {f"accuracy/task {t}": value for t, value in enumerate(accuracy, 1)}
    rows = [row for row in record["tasks"] if claim in row["bounds"]]
    return numbers | {f"bound {claim}/task {row['task']}": row["bounds"][claim] for row in rows}


def _library(module: str, package: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise missing_extra(package, extra, f"--log {extra}") from None


class TensorBoard:
    """Event files in tensorboard/ in the run directory."""

    def __init__(self, folder: Path) -> None:
        self.library = _library("torch.utils.tensorboard", "tensorboard", "tensorboard")
        self.folder = folder / "tensorboard"

    def start(self, config: dict[str, Any]) -> None:  # noqa: ARG002
        self.writer = self.library.SummaryWriter(str(self.folder))

    def log(self, task: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, task)
        self.writer.flush()

    def end(self, finished: bool) -> None:  # noqa: ARG002
        self.writer.close()


class MLflow:
    """A run of the experiment "cop2l", at MLFLOW_TRACKING_URI or else in mlruns/ beside the run directory."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
        library = _library("mlflow", "mlflow-skinny", "mlflow")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            address = (folder.resolve().parent / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # needs no database and no server
        self.client = library.MlflowClient(address)

    def start(self, config: dict[str, Any]) -> None:
        experiment = self.client.get_experiment_by_name("cop2l")
        number = experiment.experiment_id if experiment else self.client.create_experiment("cop2l")
        self.run_id = self.client.create_run(number, run_name=config["hash"]).info.run_id
        for key, value in config.items():
            self.client.log_param(self.run_id, key, value)

    def log(self, task: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.client.log_metric(self.run_id, name, value, step=task)

    def end(self, finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")


class WandB:
    """A run of the project "cop2l" in wandb/ in the run directory; offline unless WANDB_MODE=online."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        self.library, self.folder = _library("wandb", "wandb", "wandb"), folder

    def start(self, config: dict[str, Any]) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        quiet = self.library.Settings(silent=True, console="off", disable_git=True, save_code=False)
        names = {"project": "cop2l", "name": config["hash"], "dir": self.folder}
        self.run = self.library.init(**names, config=config, mode=mode, settings=quiet)
        self.run.define_metric("*", step_metric="task")  # the axis of the plots, instead of a count of calls

    def log(self, task: int, numbers: dict[str, float]) -> None:
        self.run.log({"task": task, **numbers})

    def end(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


LOGGERS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
