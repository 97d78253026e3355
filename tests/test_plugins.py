"""Methods, data sets and backbones of other packages, by entry points and by the path of a class."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cop2l
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.methods import METHODS, method
from cop2l.models.modules import named_backbone
from cop2l.streams import load

CODE = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cop2l.methods.base import CommonOptions
from cop2l.methods.finetuning import Finetuning
from cop2l.models.backbones import Backbone
from cop2l.streams import Labelled
from cop2l.streams.pictures import Scaled


@dataclass(frozen=True)
class Options(CommonOptions):
    """Its options."""

    patience: int = 7
    """How long it waits."""


class Waiting(Finetuning):
    """Finetuning that could wait."""

    Options = Options


class Nothing:
    """No method at all."""


def harvest(folder=None, **options):
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    y = np.arange(80) % 4
    return Labelled("harvest", x, y, x, y, names=("a", "b", "c", "d"), tasks=2)


def wrong(folder=None):
    return 3


def pictures(folder=None, **options):
    x, y = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), np.uint8), np.arange(40) % 4
    return Labelled("pictures", x, y, x, y, names=("a", "b", "c", "d"), tasks=2, prepare=Scaled((0.5,), (0.5,)))


def flat():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))


OURS = Backbone("ours", 5, ("pictures",), "MIT", flat, smallest=8)
'''
ENTRIES = """\
[cop2l.methods]
waiting = users_plugin:Waiting
replay = users_plugin:Waiting
[cop2l.streams]
harvest = users_plugin:harvest
pictures = users_plugin:pictures
wrong-harvest = users_plugin:wrong
[cop2l.backbones]
ours = users_plugin:OURS
not-ours = users_plugin:harvest
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that declares entry points."""
    (tmp_path / "users_plugin.py").write_text(CODE)
    about = tmp_path / "users_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: users-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("users_plugin", None)


SMALL = ["tasks=2", "data.n=40", "epochs=1"]


def test_a_method_runs_by_its_path(package, capsys):
    assert (
        main(["run", "synthetic", "method=users_plugin:Waiting", "patience=3", *SMALL, "--out", "run"]) == 0
    )
    config = json.loads((package / "run" / "config.json").read_text())
    assert (config["method"], config["options"]["patience"]) == ("users_plugin:Waiting", 3)
    (package / "own.toml").write_text(
        'base = "synthetic"\nmethod = "users_plugin:Waiting"\npatience = 4\nepochs = 1\n'
    )
    assert main(["run", "own.toml", "tasks=2", "--out", "run2"]) == 0
    capsys.readouterr()
    assert main(["predict", "run", "--data", "x.npy"]) == 2  # what a file names is never imported
    assert "learned by Waiting, which no installed package declares" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("users_plugin:Absent", "cannot be imported as package.module:Name"),
        ("no_such_package:Class", "is it installed"),
        ("users_plugin:Nothing", "users_plugin:Nothing is no method: derive"),
        ("users_plugin:", "cannot be imported"),
        (":Waiting", "cannot be imported"),
    ],
)
def test_what_is_no_method_is_one_sentence(package, capsys, name, sentence):
    with pytest.raises(UserError, match=sentence):
        method(name)
    assert main(["run", "synthetic", f"method={name}"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.fixture
def command(package):
    """Run cop2l in a new process, since methods are registered at import; returns what it prints."""
    here = [str(package), str(Path(cop2l.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(here), "COP2L_HOME": str(package / "home")}

    def run_command(*arguments, fails=False):
        process = subprocess.run(
            [str(Path(sys.executable).with_name("cop2l")), *arguments],
            env=environment,
            cwd=package,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (process.returncode != 0) == fails, process.stderr
        return process.stderr if fails else process.stdout

    return run_command


def test_a_method_with_an_entry_point_has_a_name(package, command):
    listed = command("list", "methods")
    assert "Finetuning that could wait." in listed
    assert listed.count("Finetuning that could wait.") == 1  # it does not replace replay
    command("run", "synthetic", "method=waiting", "patience=3", *SMALL, "--out", "run")
    assert json.loads((package / "run" / "config.json").read_text())["options"]["patience"] == 3
    assert "waiting" not in METHODS


def test_a_data_set_is_cut_like_any_other(package):
    stream = load("harvest", scenario="task-incremental")
    assert (len(stream), stream.heads, len(stream[0].y)) == (2, ((0, 1), (2, 3)), 40)
    with pytest.raises(UserError, match=r"users_plugin:wrong must return a cop2l.streams.Labelled, not int"):
        load("wrong-harvest")
    with pytest.raises(UserError, match="did you mean 'harvest'"):
        load("harvests")


def test_a_backbone(package):
    assert named_backbone("ours").width == 5
    with pytest.raises(UserError, match="users_plugin:harvest is no backbone"):
        named_backbone("not-ours")


@pytest.mark.long
def test_a_data_set_of_a_package_on_the_command_line(package, command):
    assert "harvest" in command("list", "streams")
    quick = ("method=cop2l", "epochs=2")
    command("run", "harvest", *quick, "--out", "run")  # neutral settings, as for own data
    config = json.loads((package / "run" / "config.json").read_text())
    assert (config["stream"], config["tasks"], config["options"]["optimiser"]) == ("harvest", 2, "sgd")
    assert "VALID" in command("verify", "run", "--data", "harvest")
    command("run", "digits", "stream=harvest", "method=finetuning", "tasks=2", "epochs=1", "--out", "run2")
    (package / "own.toml").write_text('base = "digits"\n[streams.harvest]\nseed = 5\n')
    command("run", "own.toml", "stream=harvest", "method=finetuning", "tasks=2", "epochs=1", "--out", "run3")
    assert json.loads((package / "run3" / "config.json").read_text())["seed"] == 5
    assert "did you mean 'harvest'" in command("run", "digits", "stream=harvests", fails=True)


@pytest.mark.long
def test_features_of_a_package_by_a_backbone_of_a_package(package, command):
    assert "ours" in command("features", "backbones")
    assert "did you mean 'ours'" in command("features", "pictures", "--backbone", "our", fails=True)
    command("features", "pictures", "--backbone", "ours", "--size", "8", "--device", "cpu")
    command("run", "pictures@ours-8", "method=finetuning", "holdout=0.5", "epochs=1", "--out", "run")
    summary = json.loads((package / "run" / "summary.json").read_text())
    assert len(summary["tasks"]) == 1
    assert "was trained on" in summary["not_valid"][0]  # the backbone saw the data
    x, y = np.zeros((8, 5), np.float32), np.arange(8) % 4
    np.savez(package / "others-ours-8.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    command("features", "--import", "others-ours-8.npz")
    (found,) = [r for r in json.loads(command("features", "list", "--json")) if r["name"] == "others@ours-8"]
    assert found["pretrained_on"] == ["pictures"]
