import json

import pytest

from cop2l.cli import main


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", {"cop2l", "replay", "csrel", "joint"}),
        ("streams", {"mnist", "cifar100", "rotated-mnist", "synthetic"}),
        ("models", {"mlp", "cnn", "linear", "mlp-head", "multi-head"}),
        ("configs", {"mnist", "cifar10", "cifar100-20", "tinyimagenet", "imagewoof", "digits", "demo"}),
    ],
)
def test_every_name_has_a_line(capsys, kind, names):
    assert main(["list", kind, "--json"]) == 0
    descriptions = json.loads(capsys.readouterr().out)
    assert names <= set(descriptions)
    assert all(len(line) > 10 and "\n" not in line for line in descriptions.values())
    assert not any(name.startswith("_") for name in descriptions)
    assert main(["list", kind]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(descriptions)


def test_every_key_has_its_default_and_a_sentence(capsys):
    assert main(["list", "keys", "cop2l", "--json"]) == 0
    listed_keys = json.loads(capsys.readouterr().out)
    assert {"method", "stream", "holdout", "device", "preset", "gamma", "optimiser"} <= set(listed_keys)
    assert listed_keys["delta"]["default"] == 0.05
    assert listed_keys["k"] == {"default": 8, "sentence": "How many examples one iteration picks."}
    assert listed_keys["stop"]["sentence"].endswith(" One of: kl, preference, none.")
    assert main(["list", "keys", "cop2l"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(listed_keys)
    assert "k               8                   How many examples one iteration picks." in lines


def test_the_keys_of_a_method(capsys):
    assert main(["list", "keys", "der++", "--json"]) == 0
    listed_keys = json.loads(capsys.readouterr().out)
    assert {"seed", "alpha"} <= set(listed_keys)
    assert "omega" not in listed_keys
    assert listed_keys["epochs"] == {
        "default": 20,
        "sentence": "Passes over the examples that a task is learned from; 10 if task-incremental.",
    }
    assert main(["list", "keys", "repaly"]) == 2
    assert "did you mean 'replay'?" in capsys.readouterr().err
    assert main(["list", "models", "der++"]) == 2
    assert "write: cop2l list keys der++." in capsys.readouterr().err
