"""Ranks started by torchrun share a run: they write what one process writes, bit for bit, and one that fails ends all."""

import json
import re
import shutil
import signal
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from run_files import configured, content
from torchrun import torchrun

from cop2l.certify.ranks import LOST, Ranks
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.experiments.environment import threads
from cop2l.experiments.ranks import check
from cop2l.experiments.run import run
from doc_pages import python

SMALL = (
    "data.n=5000",
    "data.n_test=100",
    "tasks=2",
    "architecture.hidden=16",
    "memory=2500",
    "epochs=2",
    "lr=0.3",
)
SMALL += ("k=16", "max_iterations=9", "anytime=true", "claim=tasks,forgetting")
"""Three blocks of examples and two of the buffer; the inputs have only 625 values, so that nearly all losses tie."""
FAILING, ALIKE = (Path(__file__).with_name(name) for name in ("failing_rank.py", "ranks_alike.py"))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_process")
    run(configured(*SMALL), folder / "run")
    return content(folder / "run")


def command(folder):
    return ["run", "synthetic", *SMALL, "--out", folder]


LONG = pytest.mark.long


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=LONG), 2, pytest.param(3, marks=LONG)])
def test_ranks_leave_what_one_process_leaves(ranks, tmp_path, one_process):
    process = torchrun(ranks, "-m", "cop2l", *command(tmp_path / "run"))
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("task 1/2") == process.stdout.count("Results:") == 1
    assert content(tmp_path / "run") == one_process
    assert {"certificates/after-02/theta.safetensors", "state/learner.safetensors"} <= {*one_process}


@pytest.mark.long
def test_random_streams_are_learned_alike():
    process = torchrun(3, ALIKE, "gloo")
    assert process.returncode == 0, process.stderr
    reports = sorted(map(json.loads, process.stdout.splitlines()), key=itemgetter("rank"))
    assert [report["shares"] for report in reports] == [
        [[0, 32], [0, 0]],
        [[32, 80], [0, 0]],
        [[80, 100], [0, 10]],
    ]  # of 100 and 10 rows in blocks of 16
    for report in reports:
        assert report["refusal"] == "The ranks do not have the same data; give the same to every rank."
        assert (report["streams"], report["refused"]) == (16, 1)
        assert min(report[name] for name in ("several blocks each", "a rank without rows")) >= 5


@pytest.mark.parametrize(
    ("ranks", "rank", "failure"),
    [
        pytest.param(3, 1, "dies", marks=LONG),
        pytest.param(2, 0, "dies", marks=LONG),
        pytest.param(2, 1, "hangs", marks=LONG),
        (2, 1, "errs"),
    ],
)
def test_a_rank_that_fails_ends_all_and_the_run_goes_on_later(ranks, rank, failure, tmp_path, one_process):
    folder = tmp_path / "run"
    process = torchrun(
        ranks,
        FAILING,
        rank,
        failure,
        *command(folder),
        COP2L_RANKS_MINUTES="0.3" if failure == "hangs" else "30",
    )
    errors = [line for line in process.stderr.splitlines() if line.startswith("cop2l: ")]
    assert process.returncode != 0
    assert errors == ["cop2l: This rank has an error of its own." if failure == "errs" else f"cop2l: {LOST}"]
    assert "Results:" not in process.stdout
    assert not (folder / "summary.json").exists()
    shutil.copytree(folder, tmp_path / "again")
    run(configured(*SMALL), tmp_path / "again")
    assert content(tmp_path / "again") == one_process
    if ranks == 3:
        again = torchrun(2, "-m", "cop2l", *command(folder))
        assert again.returncode == 0, again.stderr
        assert "continuing after task 1" in again.stdout
        assert content(folder) == one_process


def test_the_python_of_the_page(tmp_path, monkeypatch):
    (code,) = python("integrations.md", "Several processes and machines")
    (tmp_path / "learn.py").write_text(code)
    process = torchrun(2, "learn.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("all statements hold at once") == 1
    one_rank = re.sub(r"^(dist\.|learner\.engine\.ranks = ).*\n", "", code, flags=re.MULTILINE)
    one_rank = one_rank.replace(
        "if learner.engine.ranks.is_first", "if learner.engine.ranks is None"
    ).replace('"run"', '"alone"')
    monkeypatch.chdir(tmp_path)
    with threads(1):
        exec(one_rank, {})
    assert content(tmp_path / "run") == content(tmp_path / "alone") != {}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_cuda_device(tmp_path):
    run(configured(*SMALL, "device=cuda"), tmp_path / "alone")
    process = torchrun(2, "-m", "cop2l", *command(tmp_path / "run"), "device=cuda")
    assert process.returncode == 0, process.stderr
    assert content(tmp_path / "run") == content(tmp_path / "alone")
    process = torchrun(1, ALIKE, "nccl")  # which refuses two ranks on one device
    assert process.returncode == 0, process.stderr


def test_what_cannot_be_shared_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="run replay without torchrun"):
        check(configured("method=replay"))
    with pytest.raises(UserError, match="start with torchrun"):
        Ranks()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "here")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["sweep", "synthetic", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("cop2l: Ranks share one run;")
    monkeypatch.setenv("COP2L_RANKS_MINUTES", "soon")
    assert main(["run", "synthetic", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("cop2l: The ranks cannot be joined (could not convert")
    assert not (tmp_path / "run").exists()
