"""`cop2l features`: compute, import, list; errors are one sentence and exit code 2."""

import json

import numpy as np
import pytest
from safetensors.torch import save_file

from cop2l import cli
from cop2l.features import find_entry
from cop2l.models.backbones import BACKBONES


@pytest.fixture
def cifar10(tmp_path):
    """The official binary layout with a few random pictures."""
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = draw.integers(0, 256, (10, 3073), np.uint8)
        rows[:, 0] = np.arange(10)
        (folder / name).write_bytes(rows.tobytes())
    return folder.parent


def test_compute_list_and_find(tmp_path, cifar10, capsys):
    file = tmp_path / "resnet18.safetensors"
    save_file(BACKBONES["resnet18"].make().eval().state_dict(), file)
    command = ["features", "cifar10", "--backbone", "resnet18", "--size", "32", "--folder", str(cifar10)]
    command += ["--weights", str(file), "--limit", "20", "--device", "cpu"]
    assert cli.main(command) == 0
    first = capsys.readouterr()
    assert first.out.startswith("cifar10:20@resnet18-32 is in ")
    assert "train: 20 of 20" in first.err
    assert cli.main([*command, "--json"]) == 0
    again = capsys.readouterr()
    assert again.err == ""
    row = json.loads(again.out)
    assert (row["train"], row["test"], row["width"], row["classes"]) == (20, 10, 512, 10)
    assert cli.main(["features", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [row]
    assert cli.main(["features", "list"]) == 0
    assert "cifar10:20@resnet18-32" in capsys.readouterr().out
    assert find_entry("cifar10:20@resnet18-32").about["class_names"][0] == "airplane"


def test_import(tmp_path, capsys):
    x, y = np.eye(10, dtype=np.int8), np.arange(10)
    file = tmp_path / "mine-net-16.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y, scale=np.float32(2))
    assert cli.main(["features", "--import", str(file)]) == 2
    assert "add the data set and --backbone" in capsys.readouterr().err
    given = ["mine", "--pretrained-on", "JFT", "--pretrained-on", "Places365"]
    assert cli.main(["features", "--import", str(file), *given, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["pretrained_on"]) == ("mine@net-16", ["JFT", "Places365"])


def test_backbones_are_listed(capsys):
    assert cli.main(["features", "backbones", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(BACKBONES)
    assert all(row["pretrained_on"] and row["licence"] and row["sources"] for row in rows)
    assert cli.main(["features", "backbones"]) == 0
    assert all(name in capsys.readouterr().out for name in ["package.module:function"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name a data set"),
        (["--import", "cifar10-resnet18-64.npz"], "There is no file"),
        (["cifar10", "--backbone", "resnet19"], "did you mean 'resnet18'"),
        (["cifar10", "--size", "71"], "71 px; choose a size of at least 14 px that is a multiple of 14"),
        (["cifar11"], "did you mean 'cifar10'"),
        (["cifar10", "--folder", "nowhere"], "nowhere"),
    ],
)
def test_bad_arguments_exit_with_2(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["features", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
