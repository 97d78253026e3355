import json
import subprocess
import sys

import pytest
from run_files import SMALL, configured

from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.experiments.loggers import LOGGERS, Logged, logged, measurements
from cop2l.experiments.run import run

RECORD = {
    "task": 2,
    "accuracy": [0.5, 1.0],
    "seconds": 3.0,
    "kind": "kl",
    "not_valid": [],
    "tasks": [{"task": 1, "bounds": {"kl": 0.2, "preference": 0.1}}, {"task": 2, "bounds": {}}],
}


def test_the_numbers_of_a_record_by_name():
    assert measurements(RECORD) == {
        "accuracy/average": 0.75,
        "accuracy/task 1": 0.5,
        "accuracy/task 2": 1.0,
        "bound kl/task 1": 0.2,
        "seconds": 3.0,
    }
    assert "bound kl/task 1" not in measurements({**RECORD, "not_valid": ["The tasks share rows."]})


def written(tmp_path, kind, read):
    """Run with a logger in a new process, since the libraries write late; then read what was logged."""
    arguments = ["run", "synthetic", *SMALL, "--log", kind, "--out", str(tmp_path / "run")]
    for command in (["-m", "cop2l", *arguments], ["-c", f"import json\n{read}"]):
        process = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    read = f"""
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator({str(tmp_path / "run" / "tensorboard")!r}); events.Reload()
print(json.dumps([[e.step, e.value] for e in events.Scalars("accuracy/average")]))
"""
    averages = written(tmp_path, "tensorboard", read)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [step for step, _ in averages] == [1, 2, 3]
    for (_, value), record in zip(averages, records, strict=True):
        assert value == pytest.approx(sum(record["accuracy"]) / len(record["accuracy"]), abs=1e-6)


@pytest.mark.long
def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    read = f"""
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the logger has set it for itself
from mlflow import MlflowClient
client = MlflowClient({(tmp_path / "mlruns").as_uri()!r})
(found,) = client.search_runs([client.get_experiment_by_name("cop2l").experiment_id])
bounds = [[m.step, m.value] for m in client.get_metric_history(found.info.run_id, "bound preference/task 1")]
print(json.dumps([found.data.metrics["final/accuracy"], found.data.params["method"], sorted(bounds)]))
"""
    accuracy, method, bounds = written(tmp_path, "mlflow", read)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert accuracy == summary["accuracy"]
    assert method == "cop2l"
    assert [step for step, _ in bounds] == [3]
    assert bounds[-1][1] == summary["tasks"][0]["bounds"]["preference"]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    read = f"""
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
(file,) = Path({str(tmp_path / "run")!r}).glob("wandb/offline-run-*/*.wandb")
data, at, whole, seen, config = file.read_bytes(), 7, b"", {{}}, {{}}
while at < len(data):  # records in blocks of 32 KiB: a checksum, their length, whether more follows
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
    if kind not in (1, 4):
        continue
    record, whole = Record.FromString(whole), b""
    told = (*record.run.config.update, *record.config.update)
    config.update((item.key or item.nested_key[0], item.value_json) for item in told)
    for item in record.history.item:
        seen.setdefault(item.key or item.nested_key[0], []).append(item.value_json)
found = [config["method"], *seen["accuracy/average"], *seen["task"], seen["final/accuracy"][-1]]
print(json.dumps([json.loads(text) for text in found]))
"""
    method, *numbers, final = written(tmp_path, "wandb", read)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert method == "cop2l"
    assert numbers[3:] == [1, 2, 3, 3]
    assert numbers[2] == pytest.approx(summary["accuracy"])
    assert final == summary["accuracy"]


class Own:
    """A user's logger: nothing to derive from."""

    def __init__(self, folder=None):
        self.heard = []

    def start(self, config):
        self.heard.append(("start", config["method"], config["hash"]))

    def log(self, task, numbers):
        self.heard.append(("log", task, numbers))

    def end(self, finished):
        self.heard.append(("end", finished))


def test_an_object_of_ones_own(tmp_path):
    config, logger = configured(), Own()
    summary = run(config, tmp_path / "run", [Logged(logger)])
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    start, *logs, averages, end = logger.heard
    assert start == ("start", "cop2l", config.hash)
    assert logs == [("log", record["task"], measurements(record)) for record in records]
    assert (averages[1], averages[2]["final/accuracy"]) == (3, summary["accuracy"])
    assert end == ("end", True)


def test_a_run_that_stops_and_goes_on_is_told_whole(tmp_path):
    class Stopped(Own):
        def log(self, task, numbers):
            super().log(task, numbers)
            if task == 2:
                raise KeyboardInterrupt

    stopped, logger, folder = Stopped(), Own(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(configured(), folder, [Logged(stopped)])
    assert stopped.heard[-1] == ("end", False)
    run(configured(), folder, [Logged(logger)])
    assert [heard[1] for heard in logger.heard[1:-1]] == [1, 2, 3, 3]


def test_several_and_ones_own_by_its_path(tmp_path, monkeypatch, capsys):
    (tmp_path / "users_logger.py").write_text(
        "heard = []\n"
        "class Mine:\n"
        "    def __init__(self, folder): heard.append(folder.name)\n"
        "    def start(self, config): heard.append(config['seed'])\n"
        "    def log(self, task, numbers): heard.append(task)\n"
        "    def end(self, finished): heard.append(finished)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    assert (
        main(
            [
                "run",
                "synthetic",
                *SMALL,
                "seed=7",
                "--log",
                "users_logger:Mine, users_logger:Mine",
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    assert sys.modules.pop("users_logger").heard.count(3) == 4
    assert main(["run", "synthetic", "--log", "tensorbord", "--out", str(folder)]) == 2
    assert "There is no logger named 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err


def test_no_library_is_imported_unless_asked_for():
    script = """
import sys, cop2l.cli.run, cop2l.experiments.run, cop2l.experiments.loggers, cop2l.experiments.sweep
print([name for name in ("tensorboard", "mlflow", "wandb", "ray", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", sorted(LOGGERS))
def test_a_missing_library_is_named(tmp_path, monkeypatch, kind):
    for module in ("torch.utils.tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):  # taken back afterwards
        monkeypatch.setenv(name, "true")
    with pytest.raises(UserError, match=rf"--log {kind} needs the package .* pip install 'cop2l\[{kind}\]'"):
        logged(kind, tmp_path)
