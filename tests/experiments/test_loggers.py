import json
import subprocess
import sys

import pytest
from run_files import SMALL, configured

from cop2l.errors import UserError
from cop2l.experiments.loggers import LOGGERS, measurements
from cop2l.experiments.run import run
from cop2l.experiments.watch import Watcher

RECORD = {
    "task": 2,
    "accuracy": [0.5, 1.0],
    "seconds": 3.0,
    "tasks": [{"task": 1, "bounds": {"kl": 0.2}}, {"task": 2, "bounds": {}}],
}


def test_the_numbers_of_a_record_by_name():
    assert measurements(RECORD) == {
        "accuracy/average": 0.75,
        "accuracy/task 1": 0.5,
        "accuracy/task 2": 1.0,
        "bound kl/task 1": 0.2,
        "seconds": 3.0,
    }


def logged(tmp_path, kind, read):
    """Run with a logger in a process of its own (the libraries warn as they please) and read what it wrote."""
    script = f"""
import json, sys
from cop2l.cli import main
assert main(["run", "synthetic", *{SMALL!r}, "--log", {kind!r}, "--out", {str(tmp_path / "run")!r}]) == 0
{read}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    read = f"""
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator({str(tmp_path / "run" / "tensorboard")!r}); events.Reload()
points = lambda tag: [[e.step, e.value] for e in events.Scalars(tag)]
print(json.dumps([points("after each task: accuracy/average"), len(points("picked/task 2"))]))
"""
    averages, iterations = logged(tmp_path, "tensorboard", read)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [step for step, _ in averages] == [1, 2, 3]
    for (_, value), record in zip(averages, records, strict=True):
        assert value == pytest.approx(sum(record["accuracy"]) / len(record["accuracy"]), abs=1e-6)
    trace = (tmp_path / "run" / "trace.jsonl").read_text()
    assert iterations == trace.count('"task": 2')


def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    read = f"""
from mlflow import MlflowClient
client = MlflowClient({(tmp_path / "mlruns").as_uri()!r})
(found,) = client.search_runs([client.get_experiment_by_name("cop2l").experiment_id])
bounds = [[m.step, m.value] for m in client.get_metric_history(found.info.run_id, "bound preference/task 1")]
print(json.dumps([found.data.metrics["final/accuracy"], found.data.params["method"], sorted(bounds)]))
"""
    accuracy, method, bounds = logged(tmp_path, "mlflow", read)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert accuracy == summary["accuracy"]
    assert method == "cop2l"
    assert [step for step, _ in bounds] == [3]
    assert bounds[-1][1] == summary["tasks"][0]["bounds"]["preference"]


def test_neither_library_is_imported_unless_asked_for():
    script = """
import sys, cop2l.cli.run, cop2l.experiments.run, cop2l.experiments.loggers, cop2l.experiments.sweep
print([name for name in ("tensorboard", "mlflow", "ray", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", sorted(LOGGERS))
def test_a_missing_library_is_named(tmp_path, monkeypatch, kind):
    for module in ("torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"--log {kind} needs the package .* pip install 'cop2l\[{kind}\]'"):
        LOGGERS[kind](tmp_path)


def test_watchers_are_closed_when_the_run_fails(tmp_path):
    class Broken(Watcher):
        closed = 0

        def task(self, record):
            raise RuntimeError("no")

        def close(self):
            self.closed += 1

    broken = Broken()
    with pytest.raises(RuntimeError):
        run(configured(), tmp_path / "run", [broken])
    assert broken.closed == 1
