"""`cop2l monitor`: the three forms of feedback, batches, exit codes, and refusals that lose nothing."""

import json

import pytest

from cop2l.cli import main
from cop2l.monitor.feedback import read_feedback
from cop2l.monitor.monitor import Monitor
from tests.kernel import folders


@pytest.fixture
def say(tmp_path, capsys):
    """Monitor a bound of 10 % with some feedback; returns the exit code and the output."""

    def run(text, *arguments, claim="0.1"):
        feedback = tmp_path / "feedback.csv"
        feedback.write_text(text)
        code = main(["monitor", claim, *arguments, "--state", str(tmp_path / "state.json"), str(feedback)])
        return code, capsys.readouterr()

    return run


@pytest.fixture
def state(tmp_path):
    return lambda: Monitor(0.1, state=tmp_path / "state.json")


@pytest.mark.parametrize(
    "text",
    [
        "0\n1\n0\n",
        "\n0\n1\n0",
        "error\n0\n1\n0\n",
        "\ufeffid, Error\na,0\nb,1\nc,0\n",
        "predicted,label\n3,3\n3,4\n0,0\n",
        'label,predicted,note\ncat,cat,"a, b"\ncat,dog,\ndog,dog,\n',
    ],
)
def test_the_three_forms(say, state, text):
    code, shown = say(text)
    assert (code, shown.err) == (0, "")
    assert "NO ALARM" in shown.out
    assert "This monitor is never begun again" in shown.out
    assert (state().n, state().errors, state().as_dict()["batches"]) == (3, 1, 1)


def test_blank_lines_or_a_number_end_a_batch(say, state):
    say("0\n1\n\n\n0\n0\n")
    assert (state().n, state().as_dict()["batches"]) == (4, 2)
    say("0\n0\n\n0\n0\n0\n", "--batch", "2")
    assert (state().n, state().as_dict()["batches"]) == (9, 5)


def test_an_alarm_is_exit_code_1_and_stays(say, state):
    code, shown = say("1\n" * 20)
    assert code == 1
    assert "ALARM: the claim is refuted at level 0.01" in shown.out
    code, shown = say("0\n" * 500)
    assert code == 1
    assert "It came after 20 examples, and stays" in shown.out
    assert state().n == 520


def test_json(say):
    code, shown = say("1\n0\n", "--json")
    state = json.loads(shown.out)
    assert code == 0
    assert (state["n"], state["errors"], state["alarm"], state["alpha"]) == (2, 1, False, 0.01)
    assert state["verdict"].startswith("NO ALARM")
    assert len(state["assumptions"]) == 4


BAD = {
    "0\n2\n": "cannot be counted: An error is 0 or 1, not '2'",
    "error\n0\n\nyes\n": "cannot be counted: An error is 0 or 1, not 'yes'",
    "predicted,label\n1,\n": "cannot be counted: The labels are whole numbers or names; not 1 or ''",
    "predicted,label\n1,cat\n": "Line 2",
    "predicted,label\n1\n": "cannot be counted: It has 1 columns",
    "predicted,true\n1,1\n": "cannot be counted: It has 2 columns",
    "": "no feedback for this claim",
    "error\n": "no feedback for this claim",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_feedback_is_one_sentence_exit_code_3_and_no_loss(say, state, text):
    say("0\n1\n")
    code, shown = say(text)
    assert code == 3
    assert shown.out == ""
    assert BAD[text] in shown.err
    assert shown.err.count("\n") == 1
    assert state().n == 2


def test_bad_options(say):
    for arguments, sentence in {
        ("--alpha", "2"): "alpha must be",
        ("--batch", "0"): "--batch must be at least 1",
    }.items():
        code, shown = say("0\n", *arguments)
        assert code == 3
        assert sentence in shown.err
    with pytest.raises(SystemExit) as end:
        say("0\n", "--nonsense")
    assert end.value.code == 3


@pytest.mark.parametrize("claim", ["1", "0", "1.5", "nowhere"])
def test_bad_claims(say, claim):
    code, shown = say("0\n", claim=claim)
    assert code == 3
    assert shown.err.startswith("cop2l: ")
    assert shown.err.count("\n") == 1


def test_a_missing_file_and_an_empty_look(tmp_path, capsys):
    common = ["monitor", "0.1", "--state", str(tmp_path / "s.json")]
    for missing in (str(tmp_path / "missing.csv"), ""):
        assert main([*common, missing]) == 3
        assert "cannot be read" in capsys.readouterr().err
    assert main(common) == 0
    assert "0 examples" in capsys.readouterr().out


def test_a_growing_log_is_counted_once(say, state):
    say("error\n0\n1\n", "--whole")
    say("error\n0\n1\n0\n0\n1\n", "--whole", "--batch", "2")
    assert (state().n, state().errors, state().as_dict()["batches"]) == (5, 2, 3)
    code, _ = say("error\n0\n1\n0\n0\n1\n", "--whole")
    assert code == 0
    assert state().n == 5
    for other in ("error\n0\n1\n", "error\n0\n0\n0\n0\n1\n"):
        code, shown = say(other, "--whole")
        assert code == 3
        assert "does not begin with the 5 examples and 2 errors" in shown.err


def test_rows_of_other_tasks_groups_and_classes_are_left_out(tmp_path, capsys):
    statements = [
        {"family": "tasks", "task": task, "subject": None, "kind": "holdout", "value": 0.5} for task in (1, 2)
    ]
    holdout = folders.content(kind="holdout") | {"method": "replay", "settings": {}, "statements": statements}
    folder = folders.write(tmp_path / "one", holdout)
    feedback = tmp_path / "all.csv"
    feedback.write_text("task,predicted,label\n1,0,0\n2,3,2\n2,2,2\n1,1,0\n2,2,3\n")
    arguments = ["--task", "2", "--state", str(tmp_path / "s.json"), str(feedback), "--json"]
    assert main(["monitor", str(folder), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["errors"]) == (3, 2)
    assert main(["monitor", str(folder), "--task", "7", "--state", "x", str(feedback)]) == 3
    assert "claims nothing about tasks 7" in capsys.readouterr().err
    feedback.write_text("task,predicted,label\n2,0,9\n")
    assert main(["monitor", str(folder), *arguments]) == 3
    assert "The labels are 0, 1, 2, 3; not 0 or 9" in capsys.readouterr().err
    folder = folders.write(tmp_path / "named", holdout | {"data": {"class_names": ["1", "2", "5", "09"]}})
    arguments[3] = str(tmp_path / "named.json")
    feedback.write_text("predicted,label\n5,5\n1,09\n")
    assert main(["monitor", str(folder), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["errors"] == 1
    feedback.write_text("predicted,label\n5,5\n2,9\n")
    assert main(["monitor", str(folder), *arguments]) == 3
    assert "Line 3" in (said := capsys.readouterr().err)
    assert "The labels are 1, 2, 5, 09; not '2' or '9'" in said


def test_rows_of_a_group_and_of_a_class(tmp_path):
    feedback = tmp_path / "feedback.csv"
    feedback.write_text("group,predicted,label\nnorth,1,1\nsouth,1,2\nnorth,2,1")
    assert read_feedback(feedback, Monitor(0.1, "groups", 1, "north")) == [[0, 1]]
    assert read_feedback(feedback, Monitor(0.1, "classes", 1, 2)) == [[1]]
    assert read_feedback(feedback, Monitor(0.1, "average")) == [[0, 1, 1]]
