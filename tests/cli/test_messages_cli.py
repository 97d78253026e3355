"""Errors name the options of the command line, and the shape of the data."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from cop2l import CoP2L
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.methods import method
from cop2l.models import build

QUICK = {
    "any": ["method=cop2l", "epochs=2", "anytime=true"],
    "fixed": ["method=cop2l", "epochs=2"],
    "heads": ["method=cop2l", "epochs=2", "anytime=true", "scenario=task-incremental"],
    "tuned": ["method=finetuning", "epochs=1", "anytime=true"],
    "tuned-heads": ["method=finetuning", "epochs=1", "anytime=true", "scenario=task-incremental"],
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Learners of four inputs, and examples of several shapes."""
    folder = tmp_path_factory.mktemp("learned")
    y = np.arange(80) % 4
    x = 4 * np.eye(4)[y] + np.random.default_rng(0).normal(size=(80, 4)) / 2
    np.savez(folder / "clouds.npz", x=x.astype(np.float32), y=y)
    np.savez(folder / "wide.npz", x=np.zeros((10, 18), np.float32), y=np.arange(10) % 4)
    np.savez(folder / "square.npz", x=np.zeros((10, 2, 2), np.float32), y=np.arange(10) % 4)
    (folder / "table.csv").write_text("a,b,target\n1,2,0\n3,4,1\n")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "0.png").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name, options in QUICK.items():
            assert main(["run", "clouds.npz", "tasks=2", *options, "--out", name]) == 0
    return folder


SHAPES = "have the shape (18,), and the learner takes (4,); give the inputs that it learned."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("learn any --data wide.npz --out new", SHAPES),
        ("learn tuned --data wide.npz --out new", SHAPES),
        ("predict any --data wide.npz", SHAPES),
        ("predict tuned --data wide.npz", SHAPES),
        ("learn any --data square.npz --out new", "have the shape (2, 2), and the learner takes (4,)"),
        ("predict tuned --data square.npz", "have the shape (2, 2), and the learner takes (4,)"),
        ("predict any --data pictures", "pictures holds pictures, and the learner takes (4,); give the inputs that it learned."),
        ("learn fixed --data clouds.npz --out new", "more can be added to a run with anytime=true."),
        ("learn heads --data clouds.npz --out new", "give them with --classes, as in --classes 4,5."),
        ("learn tuned-heads --data clouds.npz --out new", "give them with --classes, as in --classes 4,5."),
        ("predict heads --data clouds.npz", "learned 2 tasks; name the task of these examples with --task."),
        ("predict heads --data clouds.npz --task 3", "learned 2 tasks; name the task"),
        ("predict tuned-heads --data clouds.npz --task 0", "learned 2 tasks; name the task"),
        ("predict tuned-heads --data clouds.npz", "learned 2 tasks; name the task"),
        ("run clouds.npz claim=groups", "give both claim=groups and groups=A,B, or neither."),
        ("run clouds.npz groups=A,B", "give both claim=groups and groups=A,B, or neither."),
        ("run clouds.npz method=replay holdout=0.5 groups=A", "give both claim=groups and groups=A,B, or neither."),
        ("verify fixed --data table.csv --tasks 2 --scenario class-incremental", "choose with --label among: a, b, target."),
    ],
)  # fmt: skip
def test_the_options_of_the_command_are_named(learned, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(learned)
    assert main(arguments.split()) == (3 if arguments.startswith("verify") else 2)
    (error,) = capsys.readouterr().err.splitlines()
    assert sentence in error
    assert error.endswith(".")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "make",
    [lambda model: CoP2L(model, preset="picking"), lambda model: method("finetuning")(model, epochs=1)],
)
def test_another_width_is_said_in_python_too(make):
    learner, y = make(build("mlp", inputs=(4,), classes=2)), np.arange(40) % 2
    with pytest.raises(UserError, match=r"takes inputs of shape \(4,\), not \(18,\)"):
        learner.learn(np.zeros((40, 18), np.float32), y)
    learner.learn(
        np.random.default_rng(0).normal(size=(40, 2, 2)).astype(np.float32), y
    )  # flattened by the model
    with pytest.raises(UserError, match=r"takes inputs of shape \(4,\), not \(18,\)"):
        learner.predict(np.zeros((3, 18), np.float32))


def test_a_model_that_describes_nothing_is_quoted_in_words():
    learner = CoP2L(nn.Linear(4, 2), preset="picking")
    with pytest.raises(UserError, match=r"inputs of shape \(18,\): a layer takes another number of values\."):
        learner.learn(np.zeros((40, 18), np.float32), np.arange(40) % 2)
