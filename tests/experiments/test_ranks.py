"""Ranks that torchrun starts share a run, and leave what one process leaves, bit for bit; one that fails ends all of them."""

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
"""Three blocks of examples and two of the buffer; inputs of 625 kinds only, so that nearly all losses tie."""
FAILING, ALIKE = (Path(__file__).with_name(name) for name in ("failing_rank.py", "ranks_alike.py"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(configured(*SMALL), folder / "run")
    return content(folder / "run")


def command(folder):
    return ["run", "synthetic", *SMALL, "--out", folder]


LONG = pytest.mark.long


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=LONG), 2, pytest.param(3, marks=LONG)])
def test_ranks_leave_what_one_process_leaves(ranks, tmp_path, whole):
    done = torchrun(ranks, "-m", "cop2l", *command(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("task 1/2") == done.stdout.count("Results:") == 1
    assert content(tmp_path / "run") == whole
    assert {"certificates/after-02/theta.safetensors", "state/learner.safetensors"} <= {*whole}


@pytest.mark.long
def test_random_streams_are_learned_alike():
    done = torchrun(3, ALIKE, "gloo")
    assert done.returncode == 0, done.stderr
    found = sorted(map(json.loads, done.stdout.splitlines()), key=itemgetter("rank"))
    assert [one["shares"] for one in found] == [
        [[0, 32], [0, 0]],
        [[32, 80], [0, 0]],
        [[80, 100], [0, 10]],
    ]  # of 100 and 10 rows in blocks of 16
    for one in found:
        assert one["refusal"] == "The ranks do not have the same data; give the same to every rank."
        assert (one["streams"], one["refused"]) == (16, 1)
        assert min(one[name] for name in ("several blocks each", "a rank without rows")) >= 5


@pytest.mark.parametrize(
    ("ranks", "rank", "how"),
    [
        pytest.param(3, 1, "dies", marks=LONG),
        pytest.param(2, 0, "dies", marks=LONG),
        pytest.param(2, 1, "hangs", marks=LONG),
        (2, 1, "errs"),
    ],
)
def test_a_rank_that_fails_ends_all_and_the_run_goes_on_later(ranks, rank, how, tmp_path, whole):
    folder = tmp_path / "run"
    done = torchrun(
        ranks, FAILING, rank, how, *command(folder), COP2L_RANKS_MINUTES="0.3" if how == "hangs" else "30"
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("cop2l: ")]
    assert done.returncode != 0
    assert said == ["cop2l: This rank has an error of its own." if how == "errs" else f"cop2l: {LOST}"]
    assert "Results:" not in done.stdout
    assert not (folder / "summary.json").exists()
    shutil.copytree(folder, tmp_path / "again")
    run(configured(*SMALL), tmp_path / "again")
    assert content(tmp_path / "again") == whole
    if ranks == 3:
        again = torchrun(2, "-m", "cop2l", *command(folder))
        assert again.returncode == 0, again.stderr
        assert "continuing after task 1" in again.stdout
        assert content(folder) == whole


def test_the_python_of_the_page(tmp_path, monkeypatch):
    (code,) = python("integrations.md", "Several processes and machines")
    (tmp_path / "learn.py").write_text(code)
    done = torchrun(2, "learn.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all statements hold at once") == 1
    alone = re.sub(r"^(dist\.|learner\.engine\.ranks = ).*\n", "", code, flags=re.MULTILINE)
    alone = alone.replace("if learner.engine.ranks.is_first", "if learner.engine.ranks is None").replace(
        '"run"', '"alone"'
    )
    monkeypatch.chdir(tmp_path)
    with threads(1):
        exec(alone, {})
    assert content(tmp_path / "run") == content(tmp_path / "alone") != {}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_cuda_device(tmp_path):
    run(configured(*SMALL, "device=cuda"), tmp_path / "alone")
    done = torchrun(2, "-m", "cop2l", *command(tmp_path / "run"), "device=cuda")
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "run") == content(tmp_path / "alone")
    done = torchrun(1, ALIKE, "nccl")  # which refuses two ranks on one device
    assert done.returncode == 0, done.stderr


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
