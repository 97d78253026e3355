import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cop2l.cli import main
from cop2l.experiments import grid, sweep
from cop2l.experiments.directory import RunDirectory
from cop2l.files import read_json

SMALL = ("data.n=60", "architecture.hidden=8", "memory=30", "tasks=2", "epochs=2")
SIX = ("synthetic", *SMALL, "method=finetuning,replay", "seed=0,1,2")


pytestmark = pytest.mark.usefixtures("somewhere")


def finished(folder="runs"):
    return sorted(path.parent.name for path in Path(folder).glob("*/summary.json"))


def test_a_sweep_lists_its_runs_first_runs_them_and_skips_them_the_next_time(capsys):
    assert main(["sweep", SIX[0], "--list", *SIX[1:]]) == 0
    printed_list = capsys.readouterr().out
    assert main(["sweep", *SIX[:-1], "--list", "--ray", "seed=0..2"]) == 0  # a Ray without an address
    assert capsys.readouterr().out == printed_list
    assert printed_list.startswith("6 runs in runs, 0 finished:\n")
    assert printed_list.count("method=replay seed=") == 3
    assert finished() == []

    assert main(["sweep", *SIX, "method=replay", "--workers", "2"]) == 0
    assert len(finished()) == 3
    capsys.readouterr()

    assert main(["sweep", *SIX, "--workers", "2", "--json"]) == 0
    printed = capsys.readouterr()
    outcomes = json.loads(printed.out)
    assert len(outcomes) == 6
    assert all(run["finished"] and run["error"] is None for run in outcomes)
    assert printed.err.count("(finished)") == 3
    assert "[3/3] done" in printed.err  # and not six
    assert [Path(run["folder"]).name for run in outcomes if run["finished"]].sort() == finished().sort()


def test_one_failure_does_not_stop_the_others_and_is_listed_at_the_end(capsys):
    arguments = ["sweep", "synthetic", *SMALL, "method=replay", "device=cpu,cuda:99", "seed=0,1"]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert len(finished()) == 2
    failures = printed.err.splitlines()
    assert len(failures) == 2
    assert all("This machine has no device 'cuda:99'" in line for line in failures)
    assert printed.out.splitlines()[-1] == "2 of 4 runs are finished in runs"


def broken(config, folder, answer):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_a_failure_of_its_run(monkeypatch):
    jobs = sweep.jobs(
        grid.expand(grid.read_configuration("synthetic"), grid.overrides([*SMALL, "seed=0,1"])), "runs"
    )
    monkeypatch.setattr(sweep, "_work", broken)
    outcomes = list(sweep.locally(jobs, workers=2))
    assert [outcome.error for outcome in outcomes] == [
        "The process ended without a result (exit code -9)."
    ] * 2


def test_an_unexpected_error_leaves_its_traceback_in_the_run_directory(monkeypatch):
    config = grid.single_run(grid.read_configuration("synthetic"), grid.overrides(SMALL))

    def run(config, folder):
        Path(folder).mkdir(parents=True)
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("cop2l.experiments.run.run", run)
    summary, error = sweep.attempt(config, "runs/here")
    assert summary is None
    assert error == "ZeroDivisionError: of all things (see runs/here/error.txt)"
    assert "Traceback" in Path("runs/here/error.txt").read_text()


def test_a_run_whose_last_attempt_failed_can_be_run_again():
    config = grid.single_run(
        grid.read_configuration("synthetic"), grid.overrides([*SMALL, "method=finetuning"])
    )
    Path("runs/here").mkdir(parents=True)
    Path("runs/here/error.txt").write_text("Traceback")
    summary, error = sweep.attempt(config, "runs/here")
    assert error is None
    assert summary["method"] == "finetuning"
    assert not Path("runs/here/error.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["synthetic", "--workers", "0"], "--workers is 0; give at least 1."),
        (["synthetic", "seeds=0,1"], "There is no key named 'seeds'; did you mean 'seed'?"),
    ],
)
def test_a_sweep_refuses_with_one_sentence(capsys, arguments, sentence):
    assert main(["sweep", *arguments]) == 2
    assert capsys.readouterr().err == f"cop2l: {sentence}\n"


@pytest.mark.parametrize(
    ("signal_number", "code", "error"),
    [
        (signal.SIGTERM, 143, ""),
        (signal.SIGINT, 130, "Interrupted.\n"),  # as Ctrl-C: to every process, and without a traceback
        (signal.SIGKILL, -9, ""),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_sweep_that_is_ended_ends_its_runs(signal_number, code, error):
    command = ["sweep", "synthetic", "data.n=2000", "tasks=12", "seed=0..1", "--workers", "2"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "cop2l", *command], start_new_session=True, **pipes)
    while len(list(Path("runs").glob("*/config.json"))) < 2 and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal_number) if signal_number == signal.SIGINT else process.send_signal(
        signal_number
    )
    assert process.communicate()[1] == error  # its end is that of all the processes that could write there
    assert process.returncode == code
    folders = list(Path("runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert not (folder / "summary.json").exists()
        with RunDirectory(folder):  # nobody is at work there any more
            pass


def test_a_run_that_another_process_holds_fails_with_its_name(capsys):
    config = grid.single_run(grid.read_configuration("synthetic"), grid.overrides(SMALL))
    with RunDirectory(Path("runs") / config.hash):
        assert main(["sweep", "synthetic", *SMALL]) == 1
    assert f"Another process (process {os.getpid()} on " in capsys.readouterr().err


def test_a_sweep_whose_output_nobody_reads_ends_its_runs_and_goes_on(capsys):
    arguments = ["sweep", "synthetic", *SMALL, "method=finetuning", "seed=0,1,2"]
    command = [sys.executable, "-m", "cop2l", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "3 runs in runs, 0 finished:\n"
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141
    assert error == "The output was closed; run the same command again to continue.\n"
    assert len(finished()) < 3
    assert main(arguments) == 0
    assert "3 of 3 runs are finished in runs" in capsys.readouterr().out


RAY = """
import sys
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.mark.long
def test_a_sweep_of_six_runs_on_a_real_ray():
    pytest.importorskip("ray")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
    environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"}
    cluster = subprocess.Popen(
        [sys.executable, "-c", RAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        address = cluster.stdout.readline().strip()
        assert address
        process = subprocess.run(
            [sys.executable, "-m", "cop2l", "sweep", *SIX, "--ray", address],
            capture_output=True,
            text=True,
            env=environment,
        )
    finally:
        cluster.stdin.close()
        cluster.wait()
        cluster.stdout.close()
    assert process.returncode == 0, process.stderr
    assert len(finished()) == 6
    assert "[6/6] done" in process.stdout
    # The same bits as in a process of our own.
    from cop2l.experiments.run import run

    config = grid.single_run(
        grid.read_configuration("synthetic"), grid.overrides([*SMALL, "method=replay", "seed=1"])
    )
    mine = run(config, "mine")
    theirs = read_json(Path("runs") / config.hash / "summary.json")
    assert {k: v for k, v in mine.items() if k != "seconds"} == {
        k: v for k, v in theirs.items() if k != "seconds"
    }


def test_advice_of_a_worker_is_one_line():
    arguments = ["sweep", "synthetic", *SMALL, "method=cop2l", "lr=0.000001", "seed=0"]
    warned = subprocess.run(
        [sys.executable, "-m", "cop2l", *arguments], capture_output=True, text=True, check=True
    ).stderr
    assert "Warning: The model misclassifies" in warned
    assert "Advice" not in warned
