"""The command itself: help, version, errors, and imports."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import cop2l
from cop2l.cli import COMMANDS, main, parser

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


def test_no_command_is_an_error():
    for arguments in ([], ["nothing"]):
        failed = run(*PYTHON_M, *arguments)
        assert failed.returncode == 2
        assert failed.stderr.startswith(
            "cop2l: the" if not arguments else "cop2l: there is no command 'nothing'"
        )


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
GOOD = ["bound", "preference", "--n", "100", "--picked", "3", "--errors-not-picked", "2", "--iterations", "3"]
LOOK = ["monitor", "0.1", "--state", "state.json"]
QUICK = [["--help"], ["--version"], ["bound", "--help"], ["bound", "kl", "--help"], [*GOOD, "--json"], LOOK]


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_nothing_heavy_is_imported(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probed = run(sys.executable, "-c", PROBE, *arguments)
    assert probed.returncode == 0, probed.stderr
    assert probed.stderr == "[]\n"


def test_a_closed_pipe_ends_quietly_as_elsewhere():
    command = shlex.join([*PYTHON_M, *GOOD])
    piped = run("bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}")
    assert (piped.returncode, piped.stderr) == (141, "")


NAMES = [name for members in COMMANDS.values() for name in members]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_and_an_example(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: cop2l {command}")
    assert f"cop2l {command} " in shown.partition("\n")[2]


def test_help_groups_the_commands():
    shown = parser().format_help()
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":")][:4] == list(COMMANDS)
    assert all(
        f"\n  {name:10}{line}\n" in shown for group in COMMANDS.values() for name, (_, line) in group.items()
    )


def test_only_the_named_command_is_imported():
    code = "import sys, cop2l.cli; cop2l.cli.parser('plan'); print(sorted(n for n in sys.modules if 'cop2l.cli.' in n))"
    assert run(sys.executable, "-c", code).stdout == "['cop2l.cli.plan']\n"
