"""Loggers for those who ask: TensorBoard and MLflow, imported only then."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from cop2l.errors import missing_extra
from cop2l.experiments.config import Config
from cop2l.experiments.watch import Watcher
from cop2l.streams.task import Stream


def measurements(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of one record, by name."""
    accuracy = record["accuracy"]
    numbers = {"accuracy/average": sum(accuracy) / len(accuracy), "seconds": record["seconds"]}
    numbers |= {f"accuracy/task {t}": value for t, value in enumerate(accuracy, 1)}
    for row in record["tasks"]:
        numbers |= {f"bound {kind}/task {row['task']}": bound for kind, bound in row["bounds"].items()}
    return numbers


class TensorBoard(Watcher):
    """Event files in the run directory, under tensorboard/."""

    def __init__(self, folder: str | Path) -> None:
        try:
            self.tensorboard: Any = import_module("torch.utils.tensorboard")
        except ImportError:
            raise missing_extra("tensorboard", "tensorboard", "--log tensorboard") from None
        self.folder = Path(folder) / "tensorboard"
        self.writer: Any = None

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:  # noqa: ARG002
        """Open the event file only now, when the run directory is known to be ours."""
        self.writer = self.tensorboard.SummaryWriter(str(self.folder))

    def progress(self, event: dict[str, Any]) -> None:
        """One curve per task and quantity."""
        step = event.get("iteration", event.get("epoch"))
        for name in ("worst_loss", "bound", "picked", "loss"):
            if event.get(name) is not None:
                self.writer.add_scalar(f"{name}/task {event['task']}", event[name], step)

    def task(self, record: dict[str, Any]) -> None:
        """One point per task."""
        for name, value in measurements(record).items():
            self.writer.add_scalar(f"after each task: {name}", value, record["task"])
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()


class MLflow(Watcher):
    """A run of the experiment "cop2l", at MLFLOW_TRACKING_URI or else beside the run directory, in mlruns/."""

    def __init__(self, folder: str | Path) -> None:
        try:
            library: Any = import_module("mlflow")
        except ImportError:
            raise missing_extra("mlflow-skinny", "mlflow", "--log mlflow") from None
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            address = (Path(folder).resolve().parent / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # needs no database and no server
        self.client: Any = library.MlflowClient(address)
        self.run_id: str | None = None

    def start(self, config: Config, stream: Stream, records: list[dict[str, Any]]) -> None:  # noqa: ARG002
        """Begin a run, or go on with the one of the same configuration."""
        found = self.client.get_experiment_by_name("cop2l")
        experiment = found.experiment_id if found else self.client.create_experiment("cop2l")
        runs = self.client.search_runs([experiment], f"tags.hash = '{config.hash}'")
        if runs:
            self.run_id = runs[0].info.run_id
        else:
            tags = {"hash": config.hash}
            self.run_id = self.client.create_run(experiment, tags=tags, run_name=config.hash).info.run_id
            for key, value in config.as_record().items():
                self.client.log_param(self.run_id, key, value)

    def task(self, record: dict[str, Any]) -> None:
        """One point per task."""
        for name, value in measurements(record).items():
            self.client.log_metric(self.run_id, name, value, step=record["task"])

    def finish(self, summary: dict[str, Any]) -> None:
        """The averages."""
        for name in ("accuracy", "forgetting", "plasticity"):
            if summary[name] is not None:
                self.client.log_metric(self.run_id, f"final/{name}", summary[name])
        self.client.set_terminated(self.run_id)


LOGGERS = {"tensorboard": TensorBoard, "mlflow": MLflow}
