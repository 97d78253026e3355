import io

import pytest
from rich.console import Console
from run_files import configured

from cop2l.experiments import learners, watch, words
from cop2l.experiments.live import Live


def record(task, kind="preference", picked=80):
    rows = [
        {
            "task": t,
            "prior": 60,
            "n": 100,
            "picked": picked,
            "iterations": 10,
            "test_error": 0.1,
            "test_n": 50,
            "bounds": {kind: 0.1 * t},
        }
        for t in range(1, task + 1)
    ]
    return {"task": task, "accuracy": [0.9] * task, "seconds": 2.0, "kind": kind, "tasks": rows}


STEP = {"task": 2, "iteration": 7, "picked": 56, "worst_loss": 1.25, "errors": 3, "bound": 0.321}


@pytest.fixture
def stream():
    return learners.load_stream(configured())


def test_lines_are_one_per_task_and_a_sign_of_life_when_it_takes_long(stream):
    out = io.StringIO()
    lines = watch.Lines(out, every=0.0)
    lines.start(configured(), stream, [record(1)])
    lines.progress(STEP)
    lines.progress({"task": 2, "epoch": 3, "epochs": 20, "loss": 0.5})
    lines.progress({"task": 2, "epoch": 1, "epochs": 1})
    lines.task(record(2))
    assert out.getvalue().splitlines() == [
        "cop2l on synthetic (class-incremental, 3 tasks), mlp, memory 30, seed 0",
        "going on after task 1",
        "  task 2/3  iteration 7  picked 56  worst loss 1.250  bound 32.11 %",
        "  task 2/3  epoch 3 of 20  loss 0.5000",
        "  task 2/3  epoch 1 of 1",
        "task 2/3  accuracy 90.0 %, certified error at most 20.01 % on every task (preference), 2.0 s",
    ]
    quiet = io.StringIO()
    watch.Lines(quiet, every=60.0).progress(STEP)
    assert quiet.getvalue() == ""


def drawn(live, console):
    with console.capture() as shown:
        console.print(live)
    return shown.get().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_has_a_bar_per_task_and_fits_into_eighty_columns(stream, width):
    console = Console(file=io.StringIO(), width=width, height=30)
    live = Live(console)
    live.note("trying up to 7 steps")
    live.start(configured(), stream, [record(1)])
    assert console.file.getvalue().startswith("trying up to 7 steps\ncop2l on ")
    live.progress(STEP)
    lines = drawn(live, console)
    live.close()
    assert lines[0].split() == ["task", "iteration", "picked", "worst", "loss", "bound", "accuracy", "time"]
    assert lines[1].split() == ["1/3", "━" * 12, "10", "80", "10.01", "%", "90.0", "%", "2.0", "s"]
    assert lines[2].split()[:1] == ["2/3"]
    assert lines[2].split()[2:6] == ["7", "56", "1.2500", "32.11"]
    assert lines[3].strip().startswith("about 4.0 s left") or lines[3].strip().startswith("about 3.9 s left")


def test_the_live_view_of_many_tasks_shows_the_newest(stream):
    console = Console(file=io.StringIO(), width=80, height=15)
    live = Live(console)
    live.tasks, live.done, live.columns = (
        40,
        [record(t, None, None) for t in range(1, 31)],
        {"epoch": "epoch"},
    )
    live.progress({"task": 31, "epoch": 3, "epochs": 6, "loss": 0.5})
    lines = drawn(live, console)
    assert len(lines) < 15
    assert lines[1].split()[0] == "24/40"
    assert lines[-2].split()[0] == "31/40"


def test_in_a_pipe_there_are_lines_and_json_sends_them_to_stderr(capsys):
    assert isinstance(watch.usual(), watch.Lines)
    import sys

    assert watch.usual(sys.stderr).out is sys.stderr


def test_the_table_of_a_baseline_has_no_column_of_picks():
    summary = {
        "accuracy": 0.5,
        "forgetting": None,
        "plasticity": 0.5,
        "seconds": 90.0,
        "tasks": [
            {"task": 1, "n": 10, "prior": None, "picked": None, "test_error": 0.5, "test_n": 20}
            | {"bounds": {"holdout": 0.9}, "holdout": {"n": 3, "errors": 1}}
        ],
        "kind": "holdout",
        "method": "replay",
        "model": "mlp",
        "sentences": [],
        "delta": 0.05,
        "not_valid": ["Tasks share examples."],
    }
    text = words.table(summary).splitlines()
    assert text[0].split() == ["task", "trained", "freely", "certified", "on", "test", "error", "holdout"]
    assert text[1].split() == ["1", "10", "3", "50.0", "%", "90.01", "%"]
    assert text[2] == "average accuracy 50.0 %, plasticity 50.0 %, 1 min 30 s"
    assert text[-1] == "Not valid: Tasks share examples."


def a_summary(picked, test_error):
    rows = [row | {"test_error": test_error} for row in record(2, picked=picked)["tasks"]]
    means = {"accuracy": 0.5, "forgetting": None, "plasticity": 0.5, "seconds": 90.0}
    names = {"method": "cop2l", "model": "mlp", "sentences": []}
    return means | names | {"kind": "preference", "delta": 0.05, "not_valid": [], "tasks": rows}


def test_the_table_says_what_was_trained_on_certified_on_and_picked():
    text = words.table(a_summary(picked=80, test_error=0.1)).splitlines()
    assert text[0].split("  ")[:4] == ["task", "trained freely", "certified on", "picked"]
    assert text[1].split()[:4] == ["1", "60", "100", "80"]
    assert not [line for line in text if "Nothing was picked" in line or "above the claim" in line]


def test_the_table_says_that_nothing_was_picked():
    text = words.table(a_summary(picked=0, test_error=0.1)).splitlines()
    assert text[-1] == "Nothing was picked: this is a hold-out certificate on 200 examples."


def test_the_table_says_when_a_test_error_is_above_its_claim():
    """Task 1 claims 10 % and errs on 6 of 50, task 2 claims 20 %."""
    text = words.table(a_summary(picked=80, test_error=0.12)).splitlines()
    assert text[-2:] == [
        "Task 1: the test error, 12.00 %, is above the claim, 10.01 %: p-value 0.38 (6 of 50 test examples).",
        "The p-value is the probability of so many test errors, or more, if the true error were the claim.",
    ]
