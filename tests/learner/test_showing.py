"""What a person sees of a learner, a certificate and a stream."""

import re
from dataclasses import replace

import numpy as np
import pytest
from learner_cases import model_of

from cop2l import CoP2L, verify
from cop2l.methods import method
from cop2l.streams import load
from cop2l.text import percent

OPTIONS = {"memory": 40, "max_iterations": 2, "k": 4, "tasks": 1}


@pytest.fixture
def learner():
    learner = CoP2L(
        model_of("mlp", 2, inputs=3),
        preset="picking",
        **OPTIONS,
        not_valid=["the <b>sample</b> is not random"],
    )
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    learner.learn(x, (x[:, 0] > 0).astype(int))
    learner.certify({1: (x, (x[:, 0] > 0).astype(int))})
    return learner


def test_reprs_are_short(learner):
    kept = learner.memory_used
    assert repr(learner) == f"CoP2L(mlp, class-incremental, tasks learned: 1 of 1, memory {kept} of 40)"
    said = repr(learner.certificate)
    assert said.startswith("Certificate(1 task, error at most ")
    assert said.endswith(" % on every task, preference, NOT VALID)")
    stream = load("synthetic", tasks=2, n=50)
    assert repr(stream) == "Synthetic('synthetic', class-incremental, 2 tasks, 4 classes)"
    assert repr(stream[0]) == f"Task(1, {len(stream[0].y)} examples of shape (4,))"
    other = method("replay")(model_of("mlp", 2, inputs=3), memory=9)
    assert repr(other) == "Replay(MLP, class-incremental, tasks learned: 0, memory 0 of 9)"


def test_a_certificate_with_gaps_does_not_speak_of_every_task():
    options = {**OPTIONS, "tasks": 2, "preset": "paper"}
    learner, y = CoP2L(model_of("mlp", 2, inputs=3), **options), np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    learner.learn(x, y)
    learner.learn(x + 1, y)
    assert "% on 1 of them, kl)" in repr(learner.certify({2: (x + 1, y)}))


def test_html_holds_the_table_and_is_escaped(learner):
    html = learner._repr_html_()
    bound = str(learner.certificate).splitlines()[2].split()[4]
    assert re.search(rf'<td style="[^"]*font-weight:700">{re.escape(bound)} %</td>', html)
    assert ">40</td>" not in html
    assert "not random" in html
    assert "the &lt;b&gt;sample&lt;/b&gt; is" in html
    assert html.count("<table") == html.count("</table>") == 2
    assert "Certificate, NOT VALID" in html
    assert "Certified:" not in html
    sound = replace(
        learner.certificate, content=learner.certificate.content | {"not_valid": []}
    )._repr_html_()
    assert (
        f"Certified: at most {percent(max(learner.certificate.bounds.values()))} error on every task" in sound
    )


def test_a_verdict_is_short_and_in_a_notebook_says_first_what_is_wrong(learner, tmp_path):
    learner.certificate.save(tmp_path)
    verdict = verify(tmp_path)
    assert (
        repr(verdict)
        == f"Verdict(invalid, 1 statement, {len(verdict.invalid)} invalid, {len(verdict.unverified)} unverified)"
    )
    shown = verdict._repr_html_()
    assert "the &lt;b&gt;sample&lt;/b&gt; is" in shown
    assert shown.index("Invalid") < shown.index("<summary>Wrong") < shown.index("<summary>Checked")
    assert '<details style="margin:.3em 0" open><summary>Wrong' in shown
    assert str(verdict).startswith("INVALID: do not rely on this certificate.")
