"""What a person sees of a learner, a certificate and a stream; and progress on terminals, in notebooks and in pipes."""

import sys
import types

import numpy as np
import pytest
from certify_cases import model_of

from cop2l import CoP2L
from cop2l.certify import bar
from cop2l.methods import method
from cop2l.streams import load

OPTIONS = {"memory": 40, "prior_epochs": 2, "max_iterations": 2, "k": 4, "tasks": 1}


@pytest.fixture
def learner():
    learner = CoP2L(model_of("mlp", 2, inputs=3), **OPTIONS, not_valid=["the <b>sample</b> is not random"])
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    learner.learn(x, (x[:, 0] > 0).astype(int))
    learner.certify({1: (x, (x[:, 0] > 0).astype(int))})
    return learner


def test_reprs_are_short(learner):
    kept = learner.memory_used
    assert repr(learner) == f"CoP2L(mlp, class-incremental, 1 of 1 tasks learned, memory {kept} of 40)"
    said = repr(learner.certificate)
    assert said.startswith("Certificate(1 task, error at most ")
    assert said.endswith(" % on every task, preference, NOT VALID)")
    stream = load("synthetic", tasks=2, n=50)
    assert repr(stream) == "Synthetic('synthetic', class-incremental, 2 tasks, 4 classes)"
    assert repr(stream[0]) == f"Task(1, {len(stream[0].y)} examples of shape (4,))"
    other = method("replay")(model_of("mlp", 2, inputs=3), memory=9)
    assert repr(other) == "Replay(MLP, class-incremental, 0 tasks learned, memory 0 of 9)"


def test_a_certificate_with_gaps_does_not_speak_of_every_task():
    options = {**OPTIONS, "tasks": 2, "preset": "paper"}
    learner, y = CoP2L(model_of("mlp", 2, inputs=3), **options), np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    learner.learn(x, y)
    learner.learn(x + 1, y)
    assert "% on 1 of them, kl)" in repr(learner.certify({2: (x + 1, y)}))


def test_html_holds_the_table_and_is_escaped(learner):
    found = learner._repr_html_()
    bound = str(learner.certificate).splitlines()[1].split()[5]
    assert f"<td>{bound} %</td>" in found
    assert "<td>40</td>" not in found
    assert "not random" in found
    assert "the &lt;b&gt;sample&lt;/b&gt; is" in found
    assert found.count("<table>") == found.count("</table>") == 2


def shown_by(learn, capsys, progress):
    learn(progress)
    return capsys.readouterr().err


def learn(progress):
    learner = CoP2L(model_of("mlp", 2, inputs=3), **OPTIONS)
    learner.learn(np.eye(60, 3, dtype=np.float32), np.arange(60) % 2, progress=progress)


def test_lines_in_a_pipe_only_if_asked(capsys):
    assert shown_by(learn, capsys, None) == shown_by(learn, capsys, False) == ""
    lines = shown_by(learn, capsys, True).splitlines()
    assert lines[0].startswith("task 1  iteration 0  picked 0  worst loss ")
    replay = method("replay")(model_of("mlp", 2, inputs=3), epochs=5)
    replay.learn(np.eye(6, 3, dtype=np.float32), np.arange(6) % 2, progress=True)
    assert [line.split("  ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "epoch 1/5", "epoch 2/5", "epoch 4/5", "epoch 5/5",
    ]  # fmt: skip


def test_a_line_that_changes_in_a_notebook(capsys, monkeypatch):
    seen = []
    handle = types.SimpleNamespace(update=lambda data, raw: seen.append(data["text/plain"]))
    shell = types.SimpleNamespace(kernel=object())
    display = types.SimpleNamespace(display=lambda *_, **__: handle)
    monkeypatch.setitem(
        sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    learn(None)
    assert seen[0].startswith("task 1  iteration 0")
    del shell.kernel  # IPython on a terminal that is none
    assert not bar.in_notebook()
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    learn(None)
    assert "iteration" in capsys.readouterr().err
