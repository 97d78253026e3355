import json

import pytest

from cop2l.cli import main


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", {"cop2l", "replay", "csrel", "joint"}),
        ("streams", {"mnist", "cifar100", "rotated-mnist", "synthetic"}),
        ("models", {"mlp", "cnn", "linear", "mlp-head", "multi-head"}),
        ("configs", {"mnist", "cifar10", "cifar100-20", "tinyimagenet", "imagewoof", "digits", "demo"}),
    ],
)
def test_every_name_has_a_line(capsys, what, names):
    assert main(["list", what, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert names <= set(found)
    assert all(len(line) > 10 and "\n" not in line for line in found.values())
    assert not any(name.startswith("_") for name in found)
    assert main(["list", what]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(found)


def test_every_key_has_its_default_and_a_sentence(capsys):
    assert main(["list", "keys", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"method", "stream", "holdout", "device", "preset", "gamma", "optimiser"} <= set(found)
    assert found["delta"]["default"] == 0.05
    assert found["k"] == {"default": 8, "sentence": "How many examples one iteration picks."}
    assert found["stop"]["sentence"].endswith(" One of: kl, preference, combined, none.")
    assert main(["list", "keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(found)
    assert "k               8                   How many examples one iteration picks." in lines


def test_the_keys_of_a_method(capsys):
    assert main(["list", "keys", "der++", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"seed", "alpha"} <= set(found)
    assert "omega" not in found
    assert found["epochs"] == {
        "default": 20,
        "sentence": "Passes over the examples that a task is learned from; 10 if task-incremental.",
    }
    assert main(["list", "keys", "repaly"]) == 2
    assert "did you mean 'replay'?" in capsys.readouterr().err
    assert main(["list", "models", "der++"]) == 2
    assert "write: cop2l list keys der++." in capsys.readouterr().err
