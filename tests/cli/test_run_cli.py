import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cop2l import cli
from cop2l.cli import main
from cop2l.files import read_json

SMALL = ("method=cop2l", "data.n=100", "architecture.hidden=16", "memory=30", "epochs=5", "lr=0.3")


pytestmark = pytest.mark.usefixtures("somewhere")


def test_run_shows_the_tasks_and_says_where_the_results_are(capsys):
    assert main(["run", "synthetic", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "on synthetic (class-incremental, 3 tasks), mlp, memory 30, seed 0" in out.splitlines()[0]
    for task in (1, 2, 3):
        assert f"task {task}/3  accuracy " in out
    assert "errors  test error  error <=        kind\n" in out
    assert "With probability at least 95 % over the draw of the data, all statements hold at once.\n" in out
    folder = Path(out.rpartition("Results: ")[2].strip())
    assert folder.parent == Path("runs")
    assert json.loads((folder / "config.json").read_text())["hash"] == folder.name
    assert (folder / "summary.json").exists()

    assert main(["run", "synthetic", *SMALL]) == 0  # finished: nothing is run again
    again = capsys.readouterr()
    assert "task 1/3" not in again.out
    assert again.err == "This run is already finished; nothing was learned again.\n"


def test_the_first_line_of_a_run_names_the_method_and_the_certificate(capsys):
    assert main(["run", "synthetic", "data.n=60", "--out", "here"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
        "weighted-replay, hold-out certificate on half of each task, on synthetic (class-"
    )


def test_run_prints_json_alone_on_stdout(capsys):
    assert main(["run", "digits", "method=finetuning", "epochs=2", "--out", "here", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary == read_json("here/summary.json")
    assert len(summary["matrix"]) == 5
    assert "task 5/5" in printed.err


def test_what_is_changed_may_stand_anywhere():
    arguments = [
        "--out",
        "here",
        "synthetic",
        "method=finetuning",
        "--json",
        *SMALL,
        "--log",
        "tensorboard",
        "seed=3",
    ]
    parsed = cli.parse_arguments(["run", *arguments])
    assert (parsed.config, parsed.out, parsed.log) == ("synthetic", "here", "tensorboard")
    assert parsed.overrides == ["method=finetuning", *SMALL, "seed=3"]
    parsed = cli.parse_arguments(["commit", "synthetic", "--out", "a=b", "seed=3"])
    assert (parsed.out, parsed.overrides) == ("a=b", ["seed=3"])


@pytest.mark.parametrize("arguments", [["run", "synthetic", "-w", "seed=3"], ["show", "here", "seed=3"]])
def test_what_no_verb_knows_is_refused_in_a_sentence(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("cop2l: unrecognized arguments: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "There is no configuration named 'nothing'"),
        (["synthetic", "seed=0..1", "memory=30,40"], "a grid of 4 runs; use cop2l sweep"),
        (["synthetic", "seed=4..0"], "4..0 is not a range; write the smaller number first, as in 0..4."),
        (["synthetic", "stream=none.npz", "data=false"], "There is no file or folder none.npz"),
        (["synthetic", "--out", "file/run"], "Cannot write in file/run (Not a directory)"),
    ],
)
def test_run_refuses_with_one_sentence_and_exit_code_2(capsys, arguments, sentence):
    Path("file").write_text("")
    assert main(["run", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


LONG = ["run", "synthetic", *SMALL, "tasks=12", "epochs=100", "--out", "run"]


def stopped(number):
    """Start a run, send it a signal after its first task, and return its exit code and output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cop2l", *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job would ignore it
    )
    out = ""
    for line in process.stdout:
        out += line
        if line.startswith("task "):
            break
    process.send_signal(number)
    more, err = process.communicate()
    assert "Traceback" not in err
    return process.returncode, out + more, err


def test_signals_stop_a_run_and_the_same_command_continues(capsys):
    code, out, err = stopped(signal.SIGINT)
    assert code == 130
    assert err == "Stopped; run the same command again to continue after the last finished task.\n"
    assert "task 12/12" not in out
    code, out, _ = stopped(signal.SIGTERM)
    assert code == 143
    assert "continuing after task" in out
    assert "task 12/12" not in out
    assert main(LONG) == 0
    out = capsys.readouterr().out
    assert "continuing after task" in out
    assert "task 1/12" not in out
    assert "task 12/12" in out


@pytest.mark.parametrize("together", [False, True])
def test_a_run_whose_output_nobody_reads_stops_and_goes_on(capsys, together):
    """The output is closed as in `cop2l run ... | head -1`, with stderr in the same pipe or not."""
    arguments = [*LONG, "tasks=4"]
    errors = subprocess.STDOUT if together else subprocess.PIPE
    command = [sys.executable, "-m", "cop2l", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        assert process.stdout.readline().startswith("cop2l, certified by all examples")
        process.stdout.close()
        error = "" if together else process.stderr.read()
    assert process.returncode == 141
    assert together or error == "The output was closed; run the same command again to continue.\n"
    assert not Path("run/summary.json").exists()
    learned = len(Path("run/records.jsonl").read_text().splitlines())
    assert main(arguments) == 0
    assert f"continuing after task {learned}\n" in capsys.readouterr().out
