import math
import platform
import shutil
import statistics
import subprocess

import numpy as np
import pytest
import torch
from run_files import configured, content

from cop2l.bounds import anytime_log_delta, holdout_certificate
from cop2l.certificates.certificate import read_certificate
from cop2l.console import Watcher
from cop2l.errors import UserError
from cop2l.experiments import grid, learners
from cop2l.experiments.run import run
from cop2l.files import read_json, read_lines
from cop2l.kernel.exact import withheld_rows
from cop2l.methods import REMARKS
from cop2l.report.page import page
from cop2l.report.runs import find_runs
from cop2l.text import run_table

REPLAY = ("method=replay", "holdout=0", "epochs=2", "lr=0.1")
HOLDOUT = ("method=replay", "holdout=0.3", "epochs=2", "lr=0.1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    summary = run(configured(), folder)
    return folder, summary


def test_a_task_without_test_examples_is_refused_before_anything_is_learned(tmp_path):
    x, y = np.zeros((8, 2), np.float32), np.arange(8) % 4
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    config = grid.single_run(
        grid.read_configuration(str(tmp_path / "own.npz")), grid.overrides(["tasks=2", "method=replay"])
    )
    with pytest.raises(UserError, match="Task 2 of own has no test example"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()


def test_the_run_directory_is_as_documented(finished):
    folder, summary = finished
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "environment.json", "records.jsonl", "summary.json"),
        *("certificates", "state", "lock"),
    }
    config = read_json(folder / "config.json")
    assert config["hash"] == configured().hash
    assert config["options"]["gamma"] == -math.log(0.5)  # what the configuration leaves open is resolved
    assert config["scenario"] == "class-incremental"
    environment = read_json(folder / "environment.json")
    assert environment["torch"] == torch.__version__
    assert environment["threads"] == 1
    assert environment["stream"]["fingerprint"]
    records = read_lines(folder / "records.jsonl")
    assert [record["task"] for record in records] == [1, 2, 3]
    keys = "task accuracy classes seconds learn_seconds peak_memory peak_cuda_allocated peak_cuda_reserved total_cuda_allocated"
    assert {
        *keys.split(),
        "memory_used",
        "tasks",
        "kind",
        "claims",
        "not_valid",
    } == set(records[-1])
    assert records[-1]["peak_memory"] > 1e7
    assert set(records[1]["classes"]) == {"0", "1", "2", "3"}
    assert [path.name for path in (folder / "certificates").iterdir()] == ["after-03"]
    assert [record["kind"] for record in records] == [None, None, "preference"]
    assert not any(row["bounds"] for record in records[:2] for row in record["tasks"])
    assert read_json(folder / "summary.json") == summary


def test_a_run_starts_no_process(tmp_path, monkeypatch):
    """A child process would hold the lock of a run that was killed."""

    def refuse(*arguments, **keywords):
        raise AssertionError(f"a process was started: {arguments}")

    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setattr(platform, "_platform_cache", {})
    monkeypatch.setattr(subprocess, "Popen", refuse)
    run(configured(), tmp_path / "run")


def test_the_summary_agrees_with_the_certificate_and_the_records(finished):
    folder, summary = finished
    records = read_lines(folder / "records.jsonl")
    assert summary["matrix"] == [record["accuracy"] for record in records]
    assert summary["tasks"] == records[-1]["tasks"]
    assert summary["accuracy"] == statistics.fmean(summary["matrix"][-1])
    assert summary["kind"] == "preference"
    assert summary["not_valid"] == []
    certificate = read_certificate(folder / "certificates" / "after-03")
    assert certificate.options.tasks == 3
    for row, issued in zip(summary["tasks"], certificate.records, strict=True):
        for count in (
            "task",
            "n",
            "compression",
            "evicted",
            "errors",
            "picked",
            "errors_not_picked",
            "iterations",
        ):
            assert row[count] == issued[count]
        claimed = {certificate.kind: certificate.bounds[row["task"]]}
        assert row["bounds"] == claimed | certificate.information(row["task"])
        assert {"kl", "preference", "buffer"} == set(row["bounds"])
        accuracy = summary["matrix"][-1][row["task"] - 1]
        assert row["test_error"] == pytest.approx(1 - accuracy, abs=1e-12)


def test_the_accuracies_are_those_of_the_stored_learner(finished):
    folder, summary = finished
    config = configured()
    stream = learners.load_stream(config)
    learner = learners.new_learner(config, stream)
    learner.restore(folder / "state")
    for task, accuracy in zip(stream.test, summary["matrix"][-1], strict=True):
        assert accuracy == (learner.predict(task.x).numpy() == task.y).mean()


def test_a_finished_run_is_not_run_again(finished):
    folder, summary = finished
    before = content(folder)
    assert run(configured(), folder) == summary
    assert content(folder) == before


def test_another_configuration_is_refused_by_the_directory(finished):
    folder, _ = finished
    with pytest.raises(UserError, match=r"holds another run \(it differs in seed\)"):
        run(configured("seed=1"), folder)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex, ...\)"):
        run(configured(), tmp_path)


class Stop(Watcher):
    """Interrupt during the second task."""

    tasks = 0
    events = 0

    def progress(self, event):
        self.events += 1
        if self.tasks == 1 and self.events == 2:
            raise KeyboardInterrupt

    def task(self, record):
        self.tasks, self.events = self.tasks + 1, 0


@pytest.mark.parametrize("pairs", [(), REPLAY, HOLDOUT, (*HOLDOUT, "anytime=true", "claim=tasks,forgetting")])
def test_a_run_that_is_interrupted_again_and_again_ends_in_the_same_bits(tmp_path, pairs):
    config = configured(*pairs)
    run(config, tmp_path / "whole")
    for finished in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "parts", [Stop()])
        assert len((tmp_path / "parts" / "records.jsonl").read_text().splitlines()) == finished
    run(config, tmp_path / "parts")
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    environment = read_json(tmp_path / "parts" / "environment.json")
    assert len(environment["resumed"]) == 2


def test_records_without_a_state_are_dropped_and_made_again(tmp_path, finished):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / "state")
    (folder / "summary.json").unlink()
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"task": 4, "cut sho')
    run(configured(), folder)
    assert content(folder) == content(finished[0])


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("cop2l.experiments.run.load_stream", None)  # no work is begun
    with pytest.raises(UserError, match=r"Cannot write in .* \(Not a directory\); choose another folder"):
        run(configured(), tmp_path / "file" / "run")


@pytest.mark.parametrize(("method", "needed"), [((), "1[67]"), (("method=ranpac", "model=linear"), "7[78]")])
def test_a_full_disk_is_refused_before_the_work(method, needed, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(UserError, match=rf"has 1 MiB free and the run needs about {needed} MiB"):
        run(grid.single_run(grid.read_configuration("synthetic"), grid.overrides(method)), tmp_path / "run")
    assert not (tmp_path / "run" / "records.jsonl").exists()


def test_what_is_held_out_is_not_learned_and_bounds_the_risk(tmp_path):
    config = configured(*HOLDOUT)
    records = []

    class Look(Watcher):
        def task(self, record):
            records.append(record)

    summary = run(config, tmp_path / "run", [Look()])
    for task, row in zip(learners.load_stream(config), summary["tasks"], strict=True):
        withheld = int(withheld_rows(len(task.y), task.t, 0.3, config.seed).sum())
        assert 5 < withheld < 35
        assert (row["n"], row["holdout"]["n"]) == (len(task.y) - withheld, withheld)
        bound = holdout_certificate(withheld, row["holdout"]["errors"], 3, math.log(0.05))
        assert row["bounds"] == {"holdout": float(bound)}
    assert not any("holdout" in row for row in records[0]["tasks"])
    assert summary["kind"] == "holdout"
    (folder,) = (tmp_path / "run" / "certificates").iterdir()
    issued = read_certificate(folder)
    assert issued.kind == summary["kind"]
    assert issued.bounds == {row["task"]: row["bounds"][issued.kind] for row in summary["tasks"]}


def test_a_hold_out_certifies_after_each_task_if_asked(tmp_path):
    run(configured(*HOLDOUT, "anytime=true"), tmp_path / "run")
    for record in read_lines(tmp_path / "run" / "records.jsonl"):
        last = record["task"]
        issued = read_certificate(tmp_path / "run" / "certificates" / f"after-{last:02d}")
        assert (issued.kind, record["kind"], issued.content["method"]) == ("holdout", "holdout", "replay")
        for row in record["tasks"]:
            assert set(row["bounds"]) == {"holdout"}
            log_delta = anytime_log_delta(math.log(0.05), last)
            bound = holdout_certificate(row["holdout"]["n"], row["holdout"]["errors"], last, log_delta)
            assert row["bounds"]["holdout"] == issued.bounds[row["task"]] == float(bound)


def test_a_baseline_without_holdout_has_no_claim_and_no_certificate(tmp_path):
    summary = run(configured(*REPLAY), tmp_path / "run")
    assert summary["kind"] is None
    assert all(row["bounds"] == {} and row["picked"] is None for row in summary["tasks"])
    assert not (tmp_path / "run" / "certificates").exists()


def test_a_method_that_comes_to_less_than_its_name_says_so(tmp_path):
    icarl = ("method=icarl", "holdout=0", "architecture=false", "epochs=1")
    for model, expected in (("linear", True), ("mlp-head", False)):
        text = run_table(
            run(configured(*icarl, f"model={model}"), tmp_path / model), REMARKS.get(("icarl", model))
        )
        assert ("iCaRL is herded nearest-mean" in text) == expected
        assert ("iCaRL is herded nearest-mean" in page(find_runs([tmp_path / model]))) == expected


def test_one_task_has_no_forgetting(tmp_path):
    assert run(configured("tasks=1"), tmp_path / "run")["forgetting"] is None


def test_the_process_is_left_as_it_was(tmp_path):
    torch.set_num_threads(2)
    try:
        before = torch.get_rng_state()
        run(configured(), tmp_path / "run")
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (("device=mps",), "does not run on the device 'mps'"),
        (("device=cuda:99",), "This machine has no device 'cuda:99'"),
        (("data.m=3",), "m"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(tmp_path, pairs, sentence):
    with pytest.raises(UserError, match=sentence):
        run(configured(*pairs), tmp_path / "run")


def test_the_visible_loop_is_short():
    import inspect

    lines = inspect.getsource(run).split('"""')[2].strip().splitlines()
    assert len(lines) < 25


@pytest.mark.parametrize("pairs", [HOLDOUT, ("stream_seed=3", "anytime=true", "scenario=task-incremental")])
def test_the_certificate_of_a_run_is_verified_from_the_name_of_its_stream(tmp_path, pairs, capsys):
    from cop2l.cli import main

    run(configured(*pairs), tmp_path / "run")
    flags = [
        "--option",
        "n=100",
        *(["--stream-seed", "3", "--scenario", "task-incremental"] if "anytime=true" in pairs else []),
    ]
    assert main(["verify", str(tmp_path / "run"), "--data", "synthetic", *flags]) == 0
    assert capsys.readouterr().out.startswith("VALID")
