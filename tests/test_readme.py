"""The README's examples do what it says they do."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from cop2l.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
TEXTS = [text for kind, text in BLOCKS if kind == "text"]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the Python examples print, one after the other, in a folder where the first saves its certificate."""
    pytest.importorskip("sklearn")
    space, texts = {}, []
    with contextlib.chdir(tmp_path_factory.mktemp("readme")):
        for code in (text for kind, text in BLOCKS if kind == "python"):
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                exec(compile(code, "README.md", "exec"), space)
            texts.append(text.getvalue())
        yield texts


@pytest.mark.parametrize("example", [0, 1])
def test_the_python_examples_print_the_tables_shown(printed, example):
    """Counts may move by an example or two on another processor, so the bounds are compared to a few points."""
    lines, expected = printed[example].splitlines(), TEXTS[example].splitlines()
    assert [line for line in lines if "<=" in line or "%  " not in line] == [
        line for line in expected if "<=" in line or "%  " not in line
    ]
    for line, shown in zip(lines[1:], expected[1:], strict=True):
        if "%  " in line:
            task, n, *picked, errors, bound, _percent, kind = line.split()
            task_shown, n_shown, *picked_shown, errors_shown, bound_shown, _percent, kind_shown = (
                shown.split()
            )
            assert (task, n, kind) == (task_shown, n_shown, kind_shown)
            assert abs(int(errors) - int(errors_shown)) <= 4
            assert abs(int(*picked or "0") - int(*picked_shown or "0")) <= 20
            assert float(bound) < (50 if picked else 12)
            assert abs(float(bound) - float(bound_shown)) < 3


def test_the_verdict_shown_is_the_one_printed(printed, capfd):
    (command,) = re.findall(r"^cop2l (verify .*)$", README, re.MULTILINE)
    assert main(shlex.split(command, comments=True)) == 0
    assert capfd.readouterr().out.startswith(TEXTS[2])
    assert main(shlex.split(re.sub(r"--tasks \d", "--tasks 1", command), comments=True)) == 2  # another split


def test_the_page_is_short():
    assert len(README.splitlines()) <= 95


def test_every_page_that_is_linked_exists():
    """Links are absolute, so that they work on the package index, too."""
    root, repository = Path(__file__).parents[1], "https://github.com/cop2l/cop2l/blob/main/"
    assert not re.findall(r"\]\((?!https://)", README)
    pages = [
        link.removeprefix(repository)
        for link in re.findall(r"\]\(([^)\s]+)\)", README)
        if link.startswith(repository)
    ]
    assert len(pages) > 8
    assert not [page for page in pages if not (root / page).exists()]
