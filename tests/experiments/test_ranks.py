"""Ranks that torchrun starts share a run, and leave what one process leaves, bit for bit; one that fails ends all of them."""

import shutil
from pathlib import Path

import pytest
from run_files import configured, content
from torchrun import torchrun

from cop2l.certify.ranks import LOST
from cop2l.experiments.run import run

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
FAILING = Path(__file__).with_name("failing_rank.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(configured(*SMALL), folder / "run")
    return content(folder / "run")


def command(folder):
    return ["run", "synthetic", *SMALL, "--out", folder]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_leave_what_one_process_leaves(ranks, tmp_path, whole):
    done = torchrun(ranks, "-m", "cop2l", *command(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("task 1/2") == done.stdout.count("Results:") == 1
    assert content(tmp_path / "run") == whole
    assert {"certificates/after-02/theta.safetensors", "state/learner.safetensors"} <= {*whole}


@pytest.mark.parametrize(("rank", "how"), [(1, "dies"), (0, "dies"), (1, "hangs"), (2, "errs")])
def test_a_rank_that_fails_ends_all_and_the_run_goes_on_later(rank, how, tmp_path, whole):
    folder = tmp_path / "run"
    done = torchrun(
        3, FAILING, rank, how, *command(folder), COP2L_RANKS_MINUTES="0.1" if how == "hangs" else "30"
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("cop2l: ")]
    assert done.returncode != 0
    assert said == ["cop2l: This rank has an error of its own." if how == "errs" else f"cop2l: {LOST}"]
    assert "Results:" not in done.stdout
    assert not (folder / "summary.json").exists()
    shutil.copytree(folder, tmp_path / "again")
    run(configured(*SMALL), tmp_path / "again")
    assert content(tmp_path / "again") == whole
    if how == "dies":
        again = torchrun(2, "-m", "cop2l", *command(folder))
        assert again.returncode == 0, again.stderr
        assert "going on after task 1" in again.stdout
        assert content(folder) == whole


def test_what_cannot_be_shared_is_refused_once(tmp_path):
    done = torchrun(2, "-m", "cop2l", "run", "synthetic", "method=replay", "--out", tmp_path / "run")
    assert done.returncode != 0
    assert (
        done.stderr.count("cop2l: Ranks share the work of method=cop2l alone; run replay without torchrun.")
        == 1
    )
