"""The commands and the Python of README and docs run as they are written, on small data under the real names."""

import re
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import small_data_sets
from PIL import Image

from cop2l.cli import main
from doc_pages import PAGES, ROOT, blocks, sections

TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
NOT_RUN = {
    "git": "needs the network",
    "python3 -m venv": "the tests have an environment",
    "pip": "`make ci-long` installs",
    "$": "its output is compared in test_readme.py and test_planning.py",
    "cop2l verify certified": "README.md: test_readme.py",
    "cop2l features cifar10": "fetches a backbone's weights",
    "torchrun": "experiments/test_ranks.py starts ranks",
}
if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
    NOT_RUN["cop2l export runs/species --to service-onnx"] = "needs the extra onnx"
PYTHON_ELSEWHERE = {
    ("README.md", "A first certificate"): "test_readme.py",
    ("methods.md", "The file"): "methods/test_adding_a_method.py",
    ("integrations.md", "Avalanche"): "test_avalanche.py, where Avalanche is installed",
    ("integrations.md", "Serve over HTTP"): "test_service_page.py",
    ("integrations.md", "Several processes and machines"): "experiments/test_ranks.py",
    (
        "data.md",
        "Features of frozen backbones",
    ): "fetches a backbone's weights; features/test_modules.py runs the module",
}


def commands(name):
    lines = [
        line
        for block in blocks(TEXTS[name], "console")
        if not block.startswith("$")  # its output is shown
        for line in block.splitlines()
    ]
    return [line for line in lines if line.strip() and not line.startswith(tuple(NOT_RUN))]


def python(name):
    parts = [text for heading, text in sections(name).items() if (name, heading) not in PYTHON_ELSEWHERE]
    return "\n".join(block for text in parts for block in blocks(text, "python"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages use: data sets and features, all of them small."""
    small_data_sets.mnist(tmp_path / "data", n=400, n_test=100)
    small_data_sets.cifar10(tmp_path / "data")
    small_data_sets.cifar100(tmp_path / "data")
    draws, y = np.random.default_rng(0), np.arange(200) % 10
    arrays = {f"x_{part}": draws.normal(size=(200, 8)).astype(np.float32) for part in ("train", "test")}
    for size in (70, 224):
        np.savez(tmp_path / f"cifar10-dinov2-vits14-{size}.npz", **arrays, y_train=y, y_test=y)
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())\n"
    )
    for number in range(40):
        (tmp_path / "my-pictures" / f"class{number % 4}").mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(draws.integers(0, 256, (8, 8, 3), np.uint8))
        picture.save(tmp_path / "my-pictures" / f"class{number % 4}" / f"{number}.png")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COP2L_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    space = {}
    for block in blocks(TEXTS["tutorial.md"], "python"):  # the page writes its files
        if ".write_text(" in block or "np.savez(" in block:
            exec(compile(block, "tutorial.md", "exec"), space)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    sys.modules.pop("my_nets", None)
    signal.signal(signal.SIGTERM, handler)


def make_runs(name):
    """The finished runs that a page is about, and feedback on one of them if the page is about the monitor."""
    if name == "report.md":
        main(["run", "synthetic"])
    if "cop2l monitor" in TEXTS[name]:
        main(["run", "synthetic", "data.n=2000", "--out", "runs/mnist"])
        Path("monday.csv").write_text("\n".join(["0"] * 20))


@pytest.mark.parametrize("name", [name for name in PAGES if commands(name)])
def test_the_commands_run(name, folder, capsys):
    for size in (70, 224):
        main(["features", "--import", f"cifar10-dinov2-vits14-{size}.npz"])
    make_runs(name)
    commitment = ""
    for line in commands(name):
        capsys.readouterr()
        arguments = [commitment if word == "HASH" else word for word in shlex.split(line, comments=True)[1:]]
        if arguments[0] == "sweep":  # the list of its runs, and one of them
            assert main([*arguments, "--list"]) == 0, line
            arguments = ["run", arguments[1], "method=replay", "--out", f"{arguments[-1]}/0"]
        assert main(arguments) == 0, line
        hashes = re.findall(r"\b[0-9a-f]{64}\b", capsys.readouterr().out)
        commitment = hashes[0] if hashes else commitment


@pytest.mark.parametrize("name", [name for name in PAGES if python(name)])
def test_the_python_runs(name, folder):
    make_runs(name)
    exec(compile(python(name), name, "exec"), {"predicted": [1, 0], "true": [1, 1]})


def test_no_reason_is_left_over():
    lines = [
        line for text in TEXTS.values() for block in blocks(text, "console") for line in block.splitlines()
    ]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    assert [key for key in PYTHON_ELSEWHERE if not blocks(sections(key[0])[key[1]], "python")] == []
    assert sum(len(commands(name)) for name in PAGES) > 15


def test_at_most_thirteen_pages():
    assert len([*(ROOT / "docs").rglob("*.md")]) <= 13  # CONTRIBUTING.md is one more, the index is none
