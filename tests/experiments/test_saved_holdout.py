"""A saved hold-out learns on: it issues the new certificate from the rows that it kept, or from the data of all tasks."""

import numpy as np
import pytest
from run_files import configured

import cop2l
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.experiments import learners, saved_learner
from cop2l.experiments.run import run
from cop2l.kernel.exact import withheld_rows

HOLDOUT = ("method=replay", "holdout=0.5", "epochs=2", "scenario=domain-incremental")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Runs of two tasks, anytime and of a fixed number, and the files of three tasks."""
    folder = tmp_path_factory.mktemp("saved")
    run(configured(*HOLDOUT, "tasks=2", "anytime=true"), folder / "anytime")
    run(configured(*HOLDOUT, "tasks=2"), folder / "fixed")
    for x, y, t in learners.load_stream(configured(*HOLDOUT)):
        np.savez(folder / f"{t}.npz", x=x, y=y)
    return folder


def samples_of(folder):
    files = {t: np.load(folder / f"{t}.npz") for t in (1, 2, 3)}
    return {t: (file["x"], file["y"]) for t, file in files.items()}


@pytest.mark.processes
def test_a_new_task_gives_a_new_certificate(saved, tmp_path):
    learner, target = saved_learner.learn(saved / "anytime", saved / "3.npz", out=tmp_path / "grown")
    assert (learner.tasks_seen, learner.certificate.kind) == (3, "holdout")
    masks = {t: withheld_rows(100, t, 0.5, 0) for t in (1, 2, 3)}
    assert [record["rows"] for record in learner.certificate.records] == [
        mask.sum() for mask in masks.values()
    ]
    for record, (x, y) in zip(learner.certificate.records, samples_of(saved).values(), strict=True):
        mask = masks[record["task"]]
        assert record["errors"] == int((learner.predict(x[mask]).numpy() != y[mask]).sum())
    again = saved_learner.load(target)
    assert again.certificate.content == learner.certificate.content | {
        "files": again.certificate.content["files"],
        "digest": again.certificate.content["digest"],
    }
    verdict = cop2l.verify(target, samples_of(saved), repeats_are_draws=True)
    assert verdict.status == "valid", verdict


def test_a_fixed_number_of_tasks_is_the_end(saved, tmp_path, capsys):
    arguments = [
        "learn",
        str(saved / "fixed"),
        "--data",
        str(saved / "3.npz"),
        "--out",
        str(tmp_path / "grown"),
    ]
    assert main(arguments) == 2
    assert "was made for 2 tasks and has learned" in capsys.readouterr().err
    assert not (tmp_path / "grown").exists()


def test_the_data_of_earlier_tasks_is_given_for_all_or_for_none(saved, tmp_path):
    files = {"data": saved / "3.npz", "out": tmp_path / "grown"}
    with pytest.raises(UserError, match="Give --archive for every earlier task, or for none"):
        saved_learner.learn(saved / "anytime", **files, archive=[f"1={saved / '1.npz'}"])
    assert not (tmp_path / "grown").exists()
    archive = [f"{t}={saved / f'{t}.npz'}" for t in (1, 2)]
    learner, _ = saved_learner.learn(saved / "anytime", **files, archive=archive)
    kept, _ = saved_learner.learn(saved / "anytime", saved / "3.npz", out=tmp_path / "kept")
    assert learner.certificate.records == kept.certificate.records  # few rows: all were kept
