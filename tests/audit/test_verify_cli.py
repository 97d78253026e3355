"""`cop2l verify`, `show` and `commit`: the exit code is a verdict, and a failure never looks like one."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from audit_cases import copied

from cop2l.audit.flags import verify_command
from cop2l.cli import main, parse_arguments
from doc_pages import python

RUN = ("run", "synthetic", "method=cop2l", "architecture.hidden=16", "memory=30", "epochs=5", "lr=0.3")


def code(*arguments):
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def test_the_exit_code_is_the_verdict(run, data, tmp_path, capsys):
    assert code("verify", run, "--data", data, "--tasks", "2") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("VALID: ")
    assert len(printed.out.splitlines()) <= 32
    assert printed.err == ""
    assert code("verify", run) == 2
    broken = copied(run, tmp_path / "run")
    next(broken.glob("certificates/*/theta.safetensors")).write_bytes(b"0")
    assert code("verify", broken, "--data", data, "--json") == 1
    capsys.readouterr()
    assert code("verify", run, "--data", data, "--tasks", "2", "--json", "--count-repeats") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert {
        "status",
        "exit_code",
        "claim",
        "checked",
        "assumed",
        "unverified",
        "invalid",
        "statements",
    } < set(verdict)
    assert all(one["value"] <= one["million"] <= 1 for one in verdict["statements"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify"],
        ["verify", "nowhere"],
        ["verify", "{run}", "--bogus"],
        ["verify", "{run}", "--tasks", "many"],
        ["verify", "{run}", "--limit", "lots"],
        ["verify", "{run}", "--option", "n"],
        ["verify", "{run}", "--data", "nowhere.npz"],
        ["verify", "{run}", "--data", "{data}", "--limit", "10"],
        ["verify", "{run}", "--data", "{data}", "--model", "nowhere:build"],
        ["verify", "{run}", "--data", "{data}", "--commitment", "nowhere.json"],
        ["--debug", "verify", "nowhere"],
    ],
)
def test_what_cannot_be_checked_is_exit_code_3_and_one_sentence(run, data, capsys, arguments):
    assert code(*(argument.format(run=run, data=data) for argument in arguments)) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--debug" in arguments or printed.err.count("\n") == 1
    assert "cop2l: " in printed.err


def test_columns_are_named_as_in_a_run(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("64,65,label\n" + "1,2,a\n,3,b\n4,5,a\n2,,b\n" * 40)
    run, data, keys = tmp_path / "run", tmp_path / "t.csv", ("missing=64,65", "repeats=true")
    assert code("run", data, *keys, "method=replay", "holdout=0.5", "tasks=1", "epochs=2", "--out", run) == 0
    command = ("verify", run, "--data", data, "--label", "label", "--tasks", "1", "--repeats-are-draws")
    assert code(*command, "--option", keys[0]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("\x1b[2J"), RecursionError(), KeyError("x"), AssertionError()]
)
def test_a_crash_never_looks_like_a_verdict(run, data, monkeypatch, capsys, error):
    def crash(*_, **__):
        raise error

    monkeypatch.setattr("cop2l.kernel.checking._check_learning", crash)
    assert code("verify", run, "--data", data) == 3
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "\x1b" not in printed.err


def test_an_interruption_is_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cop2l.audit.verify.find_certificates", interrupted)
    assert code("verify", run) == 130


def test_show_prints_the_claim_without_torch(run):
    script = f"""
import sys
from cop2l.cli import main
assert main(["show", {str(run)!r}]) == 0
assert main(["show", {str(run)!r}, "--brief"]) == 0
assert main(["show", {str(run)!r}, "--json"]) == 0
assert main(["show", "nowhere"]) == 2
assert "torch" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "With probability at least 95 %" in process.stdout
    assert (
        process.stderr
        == "cop2l: There is nothing at nowhere; give a certificate's folder or a run directory.\n"
    )


@pytest.mark.parametrize("path", [".", "certificate.json"])
def test_show_works_where_the_certificate_lies(run, monkeypatch, capsys, path):
    monkeypatch.chdir(next((run / "certificates").iterdir()))
    assert code("show", path) == 0
    assert "With probability at least 95 %" in capsys.readouterr().out


@pytest.mark.parametrize("pairs", [("siblings=20",), ("method=replay", "holdout=0.3", "siblings=20")])
def test_a_run_keeps_its_commitment_or_is_refused(tmp_path, monkeypatch, capsys, pairs):
    monkeypatch.chdir(tmp_path)
    assert main(["commit", *RUN[1:], *pairs]) == 0
    promised = capsys.readouterr().out.strip()
    assert len(promised) == 64
    assert main([*RUN, *pairs, "seed=1", "--commitment", "commitment.json"]) == 2
    assert "This run differs from the commitment in" in capsys.readouterr().err
    assert main([*RUN, *pairs[:-1], "--commitment", "commitment.json"]) == 2
    assert "differs from the commitment in siblings;" in capsys.readouterr().err
    assert main([*RUN, *pairs, "--commitment", "commitment.json", "--out", "run"]) == 0
    assert main([*RUN, *pairs, "--out", "run"]) == 2  # it is another run without its commitment
    capsys.readouterr()
    few = ("--split-as-stated",)
    assert main(["verify", "run", "--data", "synthetic", "--commitment", promised, *few]) == 0
    shown = capsys.readouterr().out
    assert "are those that were committed to" in shown
    assert "At most 20 commitments, this one among them, were made for this data." in shown
    assert main(["verify", "run", "--data", "synthetic", "--commitment", "commitment.json", *few]) == 0
    assert main(["verify", "run", "--data", "synthetic", "--commitment", "0" * 64, *few]) == 1


def test_nothing_to_commit_to_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["commit", *RUN[1:], "method=replay", "holdout=0"]) == 2
    assert "nothing to commit to; add holdout=0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "bad", ["--split-as-stated", "--model=evil:build", "-x", "a b; rm c", "\x1b[201~\nrm c"]
)
@pytest.mark.parametrize("key", ["stream", "label", "columns", "task_classes", "classes", "something"])
def test_no_statement_of_a_certificate_becomes_another_option_of_the_command(key, bad):
    """What the page and the doubts tell the auditor to type is the issuer's text."""
    for value in (bad, [bad, bad], [[0, 1], bad], [[0, 1], [bad]]):
        line = verify_command(Path("run"), {"tasks": 2, key: value})
        assert line.isprintable()
        found = parse_arguments(shlex.split(line)[1:])
        assert (found.split_as_stated, found.model, found.tasks, found.path) == (False, None, 2, Path("run"))


def test_a_commitment_that_is_not_there_is_not_called_damaged(tmp_path, capsys):
    assert code(*RUN, "--commitment", tmp_path / "nowhere.json") == 2
    assert "There is no commitment" in capsys.readouterr().err
    repeated = '{"format": "cop2l-commitment", "version": 3, "seed": 1, "seed": 2}'
    infinite = repeated.replace('"seed": 2', '"delta": 1e999')
    for text in ("{not JSON", repeated, repeated.replace("2", "NaN"), infinite):
        (tmp_path / "other.json").write_text(text)
        assert code(*RUN, "--commitment", tmp_path / "other.json") == 2
        assert "is not a commitment of version 3" in capsys.readouterr().err


def test_a_full_disk_is_refused_before_the_arrays_are_written(run, data, monkeypatch, capsys):
    usage = shutil.disk_usage(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 10))
    assert code("verify", run, "--data", data) == 3
    assert "set TMPDIR to a larger disk, or give --keep-arrays." in capsys.readouterr().err


@pytest.mark.processes
def test_the_checker_runs_alone_on_arrays_that_were_kept(run, data, tmp_path):
    """As an auditor does who wants to see, or to make, what the checker is given."""
    (tmp_path / "random.py").write_text("raise SystemExit(0)")  # planted: nothing of this folder is imported
    verify = [sys.executable, "-m", "cop2l", "verify", str(run), "--data", str(data), "--tasks", "2"]
    verify += ["--keep-arrays", "kept"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run(verify, **options)
    assert (done.returncode, done.stdout[:6], done.stderr) == (0, "VALID:", "")
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    (certificate,) = (run / "certificates").iterdir()
    decide = [sys.executable, "-P", "-m", "cop2l.kernel", "kept", str(certificate)]
    assert subprocess.run(decide, **options).returncode == 0
    (page,) = python("threat_model.md", "Two processes")  # the page's function writes what the checker reads
    exec(compile(page, "threat_model.md", "exec"), space := {})
    tasks = {t: [np.load(tmp_path / "kept" / f"{name}-{t}.npy") for name in "xy"] for t in (1, 2)}
    tasks[1][0][0, 0] += 1
    space["write_arrays"](tmp_path / "made", certificate, tasks)
    changed = subprocess.run([*decide[:-2], "made", decide[-1]], **options)
    assert (changed.returncode, changed.stdout[:8]) == (1, "INVALID:")
    listed = json.loads((tmp_path / "kept" / "arrays.json").read_text())
    (tmp_path / "kept" / "arrays.json").write_text(json.dumps(listed | {"certificate": "0" * 64}))
    assert "loaded for another certificate" in subprocess.run(decide, **options).stdout
    assert subprocess.run(verify, **options).returncode == 3  # the folder is there already
