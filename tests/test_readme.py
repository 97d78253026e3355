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
CALCULATIONS = [text for kind, text in BLOCKS if kind == "console" and text.startswith("$ cop2l")]


def test_the_python_example_prints_the_table_shown():
    """Counts may move by an example or two on another processor, so the bounds are compared to a few points."""
    pytest.importorskip("sklearn")
    shown = next(text for kind, text in BLOCKS if kind == "text")
    code = next(text for kind, text in BLOCKS if kind == "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    lines, expected = printed.getvalue().splitlines(), shown.splitlines()
    assert len(lines) == len(expected)
    assert (lines[0], lines[-1]) == (expected[0], expected[-1])
    for line, other in zip(lines[1:-1], expected[1:-1], strict=True):
        *sizes, picked, _errors, bound, _percent, kind = line.split()
        *sizes_0, picked_0, _errors, bound_0, _percent, kind_0 = other.split()
        assert (sizes, kind) == (sizes_0, kind_0)
        assert abs(int(picked) - int(picked_0)) <= 8
        assert abs(float(bound) - float(bound_0)) < 5


@pytest.mark.parametrize("text", CALCULATIONS)
def test_the_calculations_print_what_is_shown(text, capsys):
    command, shown = text.split("\n", 1)
    assert main(shlex.split(command.removeprefix("$ cop2l "))) == 0
    assert capsys.readouterr().out == shown


def test_every_page_that_is_linked_exists():
    """Links are absolute, so that they work on the package index, too."""
    root, here = Path(__file__).parents[1], "https://github.com/cop2l/cop2l/blob/main/"
    assert not re.findall(r"\]\((?!https://)", README)
    defined = dict(re.findall(r"^\[(.+)\]: (\S+)$", README, re.MULTILINE))
    used = re.findall(r"\[([\w/]+\.\w+)\](?![:(])", README)
    assert set(used) == set(defined)
    links = defined.values()
    pages = [link.removeprefix(here) for link in links if link.startswith(here)]
    assert len(pages) > 8
    assert not [page for page in pages if not (root / page).exists()]


def test_there_is_something_to_test():
    assert CALCULATIONS
