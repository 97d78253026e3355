"""Progress on terminals, in notebooks and in logs; notes and warnings."""

import io
import re
import sys
import types

import numpy as np
import pytest

from cop2l import CoP2L, console
from cop2l.experiments.config import Config
from cop2l.methods import method
from cop2l.models import build
from cop2l.streams import load

STEP = {"task": 2, "iteration": 7, "picked": 56, "worst_loss": 1.25, "errors": 3, "criterion": 0.321}
EPOCH = {"task": 2, "epoch": 3, "epochs": 20, "loss": 0.5}
PICTURES = {"part": "train", "done": 512, "total": 1000, "rate": 99.6}
ROW = {"task": 1, "bounds": {"preference": 0.1}}
RECORD = {"task": 1, "accuracy": [0.9], "seconds": 2.0, "kind": "preference", "not_valid": [], "tasks": [ROW]}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (STEP, "task 2  iteration 7  picked 56  criterion 32.11 %  errors 3  worst loss 1.250"),
        (STEP | {"worst_loss": float("-inf")}, "task 2  iteration 7  picked 56  criterion 32.11 %  errors 3"),
        (EPOCH, "task 2  epoch 3/20  loss 0.500"),
        ({"task": 2, "epoch": 1, "epochs": 1}, "task 2  epoch 1/1"),
        (PICTURES, "train: 512 of 1000, 100 pictures per second"),
    ],
)
def test_an_event_is_one_line(event, line):
    assert console.event_line(event)[0] == line


def model():
    return build("mlp", inputs=(3,), classes=2)


def learn(progress):
    learner = CoP2L(model(), preset="picking", memory=40, max_iterations=2, k=4, tasks=1)
    learner.learn(np.eye(60, 3, dtype=np.float32), np.arange(60) % 2, progress=progress)


def replay(epochs):
    learner = method("replay")(model(), epochs=epochs)
    learner.learn(np.eye(6, 3, dtype=np.float32), np.arange(6) % 2, progress=True)


@pytest.mark.parametrize("progress", [None, False])
def test_a_log_has_no_lines_unless_they_are_asked_for(capsys, progress):
    learn(progress)
    assert capsys.readouterr().err == ""


def test_a_log_has_the_first_state_and_the_last(capsys):
    learn(True)
    assert capsys.readouterr().err.startswith("task 1  iteration 0  picked 0  criterion ")
    replay(5)
    shown = [line.split("  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert (shown[0], shown[-1]) == ("epoch 1/5", "epoch 5/5")


def test_a_bar_in_a_notebook(capsys, monkeypatch):
    displayed = []
    handle = types.SimpleNamespace(update=lambda data, raw: displayed.append(data))
    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=lambda data, **__: displayed.append(data) or handle)
    monkeypatch.setitem(
        sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    learn(None)
    assert displayed[0]["text/plain"] == "starting"
    assert displayed[1]["text/plain"].startswith("task 1  iteration 0")
    assert "<progress style" in displayed[1]["text/html"]
    assert '<progress value="1.000"' in displayed[-1]["text/html"]
    displayed.clear()
    monkeypatch.setattr(console, "PAUSE", 0)
    replay(4)
    assert [re.search(r'value="(.*?)"', data["text/html"])[1] for data in displayed[1:]] == [
        "0.250", "0.500", "0.750", "1.000", "1.000",
    ]  # fmt: skip
    del shell.kernel  # IPython on a terminal that is none
    assert not console.in_notebook()
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    learn(None)
    assert "iteration" in capsys.readouterr().err


def test_the_bar_of_a_download_counts_and_starts_again():
    out = Terminal()
    with console.Bar("file", size=True, out=out) as bar:
        bar.total = 4_000_000
        bar.update(2_000_000)
        bar.reset()
        bar.update(1_000_000)
    assert bar.completed == 1_000_000
    assert "file" in out.getvalue()


def test_there_is_no_bar_in_a_log():
    out = io.StringIO()
    with console.Bar("file", 10, out=out) as bar:
        bar.update()
    assert out.getvalue() == ""


def watched(out):
    view = console.RunView(out)
    view.note("trying up to 7 steps")
    stream = load("synthetic", tasks=3, n=50)
    view.start(Config(stream="synthetic", model="mlp", memory=30), stream, [RECORD])
    view.progress(STEP)
    view.task(RECORD | {"task": 2, "tasks": [ROW, {"task": 2, "bounds": {"preference": 0.2}}]})
    view.close()
    return out.getvalue()


LINES = [
    "trying up to 7 steps",
    "weighted-replay, no certificate, on synthetic (class-incremental, 3 tasks), mlp, memory 30, seed 0",
    "continuing after task 1",
    "task 2/3, about 4.0 s left  iteration 7  picked 56  criterion 32.11 %  errors 3  worst loss 1.250",
    "task 2/3  accuracy 90.00 %, largest bound 20.01 % (task 2), 2.0 s",
]


def test_a_run_in_a_log_is_a_line_per_task_and_one_after_a_long_silence(monkeypatch):
    assert watched(io.StringIO()).splitlines() == [*LINES[:3], LINES[4]]
    monkeypatch.setattr(console, "SILENCE", 0.0)
    assert watched(io.StringIO()).splitlines() == LINES


def test_a_run_on_a_terminal_has_a_bar_below_the_finished_tasks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = watched(Terminal())
    assert all(line in shown for line in [*LINES[:3], LINES[4]])
    assert "task 2/3, about 4.0 s left  iteration 7  picked 56" in shown  # the rest may be cut off
    assert shown.endswith("\x1b[2K")  # the bar is gone
