"""The command itself: help, version, errors, and what it does not import."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import cop2l
from cop2l.cli import main, parser

SCRIPT = Path(sys.executable).with_name("cop2l")
PYTHON_M = [sys.executable, "-m", "cop2l"]
BAD = ["bound", "holdout", "--n", "10", "--errors", "11"]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("command", [[SCRIPT], PYTHON_M], ids=["cop2l", "python -m cop2l"])
def test_help_and_version(command):
    shown = run(*command, "--version")
    assert (shown.returncode, shown.stdout) == (0, f"cop2l {cop2l.__version__}\n")
    helped = run(*command, "--help")
    assert helped.returncode == 0
    assert helped.stderr == ""
    assert "bound" in helped.stdout
    assert "--debug" in helped.stdout


def test_an_error_is_one_sentence_and_exit_code_2():
    failed = run(*PYTHON_M, *BAD)
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr == "cop2l: errors must be at most n = 10, not 11.\n"


def test_debug_shows_the_traceback():
    failed = run(*PYTHON_M, "--debug", *BAD)
    assert failed.returncode != 0
    assert "Traceback (most recent call last)" in failed.stderr
    assert "errors must be at most n = 10, not 11." in failed.stderr


def test_no_verb_is_an_error():
    failed = run(*PYTHON_M)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr


PROBE = """
import sys
from cop2l.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stopped:
    code = stopped.code
assert not code, code
heavy = [name for name in ("torch", "scipy.stats", "altair", "pooch", "ray", "rich", "sklearn") if name in sys.modules]
print(heavy, file=sys.stderr)
"""
GOOD = ["bound", "preference", "--n", "100", "--picked", "3", "--missed", "2", "--iterations", "3"]
QUICK = [["--help"], ["--version"], ["bound", "--help"], ["bound", "kl", "--help"], GOOD, [*GOOD, "--json"]]


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_nothing_heavy_is_imported(words):
    probed = run(sys.executable, "-c", PROBE, *words)
    assert probed.returncode == 0, probed.stderr
    assert probed.stderr == "[]\n"


def test_a_closed_pipe_ends_quietly_as_elsewhere():
    words = " ".join(f"'{word}'" for word in [*PYTHON_M, *GOOD])
    piped = run("bash", "-c", f"{words} | true; exit ${{PIPESTATUS[0]}}")
    assert (piped.returncode, piped.stderr) == (141, "")


def verbs() -> list[str]:
    return [
        verb
        for action in parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for verb in action.choices
    ]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help(capsys, verb):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: cop2l {verb}")


@pytest.mark.parametrize("verb", verbs())
def test_every_help_has_an_example_of_its_verb(verb):
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert f"cop2l {verb} " in actions.choices[verb].epilog
