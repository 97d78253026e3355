"""Monitor: the claim that it watches, its counts and its file, and what it refuses."""

import copy
import json

import numpy as np
import pytest

from cop2l import Monitor
from cop2l.certificates.certificate import Certificate, read_certificate
from cop2l.errors import UserError
from cop2l.files import Lock
from cop2l.kernel.options import Options
from cop2l.monitor.evidence import log_evidence
from cop2l.monitor.feedback import read_feedback
from cop2l.text import FEEDBACK_ASSUMPTIONS, OF_AVERAGES, Names, monitor_report
from tests.kernel import folders

STATEMENTS = [
    {"family": "tasks", "task": 1, "subject": None, "kind": "holdout", "value": 0.1},
    {"family": "tasks", "task": 2, "subject": None, "kind": "holdout", "value": 0.2},
    {"family": "average", "task": 0, "subject": None, "kind": "holdout", "value": 0.125},
    {"family": "forgetting", "task": 1, "subject": "lost", "kind": "holdout", "value": 0.03},
    {"family": "forgetting", "task": 1, "subject": "net", "kind": "holdout", "value": 0.02},
    {"family": "forgetting", "task": None, "subject": None, "kind": "holdout", "value": 0.025},
    {"family": "classes", "task": 2, "subject": 3, "kind": "holdout", "value": 0.4},
    {"family": "groups", "task": 2, "subject": "north", "kind": "holdout", "value": 1.0},
]


def certificate(**changed) -> Certificate:
    content = folders.content(kind="holdout") | {"statements": copy.deepcopy(STATEMENTS)} | changed
    return Certificate(content, Options(kind="holdout", tasks=2, seed=3))


@pytest.mark.parametrize(
    "statement",
    [s for s in STATEMENTS if s["value"] < 1 and s["subject"] != "net"],
    ids=lambda statement: statement["family"] + str(statement["task"]),
)
def test_a_statement_is_found_by_family_task_and_subject(statement):
    monitor = Monitor(certificate(), statement["family"], statement["task"], statement["subject"])
    assert monitor.bound == statement["value"]
    assert monitor.statement == statement


def test_of_forgetting_what_was_lost_is_watched_and_by_its_own_errors(tmp_path):
    monitor = Monitor(certificate(), "forgetting", 1)
    assert monitor.statement["subject"] == "lost"
    # What was lost may exceed the net while both claims are true, and what is wrong now may have been wrong then.
    with pytest.raises(UserError, match="difference of two error rates"):
        Monitor(certificate(), "forgetting", 1, "net")
    with pytest.raises(UserError, match="Labels do not tell what was forgotten"):
        monitor.update_labels([1, 2], [1, 3])
    feedback = tmp_path / "feedback.csv"
    feedback.write_text("predicted,label\n1,2")
    with pytest.raises(UserError, match=r"Line 2 .* Labels do not tell what was forgotten"):
        read_feedback(feedback, monitor)
    feedback.write_text("error,predicted,label\n0,1,2")
    assert read_feedback(feedback, monitor) == [[0]]
    assert monitor.n == 0


def test_an_average_of_what_was_forgotten_says_so():
    monitor = Monitor(certificate(), "forgetting")
    assert "the share of the tasks, averaged, that was right" in monitor_report(monitor)
    assert OF_AVERAGES in monitor_report(monitor)
    assert OF_AVERAGES not in monitor_report(Monitor(certificate(), "forgetting", 1))


def test_a_bound_may_be_any_real_number():
    assert Monitor(np.float32(0.25), alpha=np.float64(0.5)).bound == 0.25
    with pytest.raises(UserError, match="no family named 'clases'; did you mean 'classes'"):
        Monitor(0.05, "clases", 1, 2)  # which would count all classes


def test_no_task_is_task_nought_and_a_class_may_be_text():
    assert Monitor(certificate(), "average").bound == 0.125
    assert Monitor(certificate(), "classes", 2, "3").bound == 0.4


@pytest.mark.parametrize(
    ("family", "task", "subject", "message"),
    [
        (
            "tasks",
            9,
            None,
            "claims nothing about tasks 9; it claims: tasks 1, tasks 2, average, forgetting 1",
        ),
        ("tasks", None, None, "claims nothing about tasks; it claims"),
        ("groups", 2, "south", r"claims nothing about groups 2 \(south\)"),
        ("groups", 2, "north", "at most 1; only one above 0 and below 1 can be monitored"),
    ],
)
def test_a_claim_that_is_not_there_or_says_nothing(family, task, subject, message):
    with pytest.raises(UserError, match=message):
        Monitor(certificate(), family, task, subject)


@pytest.mark.parametrize("bound", [0, 1, 0.0, 1.0, -0.1, 1.5, float("nan"), float("inf"), True, None, [0.1]])
def test_bounds_that_cannot_be_watched(bound):
    with pytest.raises(UserError):
        Monitor(bound)


@pytest.mark.parametrize("alpha", [0, 1, -1, 2, float("nan"), "0.01", None, True])
def test_alphas_that_are_refused(alpha):
    with pytest.raises(UserError, match="alpha must be"):
        Monitor(0.05, alpha=alpha)


def test_counts_evidence_and_a_latched_alarm(tmp_path):
    assert "is at most 12.34567 %." in monitor_report(Monitor(0.1234567))  # not rounded down
    monitor = Monitor(0.05, alpha=0.01, state=tmp_path / "state.json")
    assert (monitor.n, monitor.errors, monitor.evidence, monitor.alarm) == (0, 0, pytest.approx(1), False)
    assert not monitor.update([0, 1, 0])
    assert repr(monitor) == "Monitor(at most 5.01 %, 1 wrong of 3, no alarm)"
    assert not monitor.update(np.array([False, True]))
    assert monitor.log_evidence == float(log_evidence(0.05, 5, 2))
    assert monitor.update([1] * 10)
    assert monitor.as_dict()["alarmed_at"] == 15
    assert monitor.evidence >= 100
    for _ in range(20):
        assert monitor.update([0] * 200)  # however good it is later
    assert monitor.evidence < 100
    again = Monitor(0.05, alpha=0.01, state=tmp_path / "state.json")
    assert again.as_dict() == monitor.as_dict()
    assert again.alarm
    assert (again.n, again.errors, again.as_dict()["batches"]) == (4015, 12, 23)


def test_it_says_since_when_the_evidence_is_largest():
    monitor = Monitor(0.2)
    for errors in [1] * 30 + [12] * 5:
        monitor.update([1] * errors + [0] * (20 - errors))
    assert monitor.alarm
    assert monitor.errors / monitor.n < 0.2  # the good time before does not excuse it
    assert monitor.as_dict()["since"] == [600, 30]
    assert "Most of it since example 600: 60 errors in 100." in monitor_report(monitor)


def test_the_order_inside_a_batch_does_not_matter_and_a_batch_is_looked_at_at_its_end():
    first, second = Monitor(0.05), Monitor(0.05)
    first.update([1] * 4 + [0] * 396)  # four errors in a row, alone, would be an alarm
    second.update([0] * 396 + [1] * 4)
    assert first.evidence == second.evidence
    assert not first.alarm
    hasty = Monitor(0.05)
    hasty.update([1] * 4)
    assert hasty.alarm


def test_labels():
    monitor = Monitor(certificate(), task=1)
    monitor.update_labels(np.array([0, 1, 2, 3]), [0, 1, 3, 3])
    assert (monitor.n, monitor.errors) == (4, 1)
    named = Monitor(0.1)
    named.update_labels(["cat", "dog"], ["cat", "cat"])
    assert (named.n, named.errors) == (2, 1)


@pytest.mark.parametrize(
    "errors",
    [[], [0, 2], [0.5], ["1"], "101", [None], [float("nan")], 3, [[0, 1]], np.ones((2, 2)), {"a": 1}],
)
def test_what_is_not_feedback_changes_nothing(tmp_path, errors):
    path = tmp_path / "state.json"
    monitor = Monitor(0.05, state=path)
    monitor.update([0, 1])
    before = path.read_bytes()
    with pytest.raises(UserError):
        monitor.update(errors)
    assert path.read_bytes() == before
    assert (monitor.n, monitor.errors) == (2, 1)


@pytest.mark.parametrize(
    ("predicted", "true"),
    [
        ([0, 1], [0]),
        ([0], [4]),
        ([0], [-1]),
        ([0.5], [0]),
        ([0], ["0"]),
        ([None], [0]),
        ([True], [1]),
        ([], []),
        ([""], [""]),
    ],
)
def test_what_is_not_a_label_changes_nothing(predicted, true):
    monitor = Monitor(certificate(), task=1)  # its model has classes 0 to 3
    with pytest.raises(UserError):
        monitor.update_labels(predicted, true)
    assert monitor.n == 0


def test_a_state_of_another_monitor_is_refused(tmp_path):
    path = tmp_path / "state.json"
    Monitor(certificate(), task=1, state=path).update([0])
    before = path.read_bytes()
    for claim, task, alpha in (
        (certificate(threads=2), 1, 0.01),
        (certificate(), 2, 0.01),
        (certificate(), 1, 0.02),
    ):
        with pytest.raises(UserError, match="belongs to a monitor of another certificate, claim or alpha"):
            Monitor(claim, task=task, alpha=alpha, state=path)
    assert Monitor(certificate(), task=1, state=path).n == 1
    assert path.read_bytes() == before


def test_a_certificate_is_the_same_in_memory_and_in_its_folder(tmp_path):
    folder = folders.write(tmp_path / "certificate", folders.content(kind="holdout"))
    certificate, path = read_certificate(folder), tmp_path / "state.json"
    Monitor(certificate, task=1, state=path).update([1])
    assert Monitor(folder, task=1, state=path).n == 1
    assert Monitor(str(folder), task=1, state=path).n == 1
    fresh = Certificate(
        {k: v for k, v in certificate.content.items() if k not in ("files", "digest")}, certificate.options
    )
    assert Monitor(fresh, task=1, state=path).n == 1


def test_damage_is_seen(tmp_path):
    path = tmp_path / "state.json"
    Monitor(0.05, state=path).update([1, 0])
    intact = path.read_text()
    for spoiled in (intact.replace('"errors": 1', '"errors": 0'), intact[:50], "{}", "", '{"n": 1}'):
        path.write_text(spoiled)
        with pytest.raises(UserError, match="damaged"):
            Monitor(0.05, state=path)
    path.write_text(intact)
    assert Monitor(0.05, state=path).n == 2


def test_two_monitors_of_one_state_add_up_and_do_not_write_at_once(tmp_path):
    path = tmp_path / "state.json"
    first, second = Monitor(0.05, state=path), Monitor(0.05, state=path)
    first.update([0, 1])
    second.update([0])
    first.update([0])
    assert (first.n, first.errors, Monitor(0.05, state=path).n) == (4, 1, 4)
    with (
        Lock(tmp_path / ".state.json.lock", "busy"),
        pytest.raises(UserError, match="written by another monitor"),
    ):
        second.update([1])
    assert Monitor(0.05, state=path).n == 4


def test_what_could_not_be_written_was_not_counted(tmp_path, monkeypatch):
    monitor = Monitor(0.05, state=tmp_path / "state.json")
    monitor.update([0])

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr("cop2l.monitor.monitor.write_json", full)
    with pytest.raises(OSError, match="no space"):
        monitor.update([1])
    assert (monitor.n, monitor.errors) == (1, 0)


def test_the_state_stays_small(tmp_path):
    path = tmp_path / "state.json"
    monitor = Monitor(0.3)
    for _ in range(999):
        monitor.update([0, 1, 0])
    monitor.path = path
    monitor.update([0, 1, 0])
    assert json.loads(path.read_text())["n"] == 3000
    assert path.stat().st_size < 10_000
    assert len(json.loads(path.read_text())["starts"]) < 100


def test_the_report_says_what_it_means_and_what_it_rests_on():
    monitor = Monitor(certificate(), "average")
    assert "NO ALARM" in monitor_report(monitor)
    monitor.update([1] * 20)
    report = monitor_report(monitor)
    assert "averaged over the tasks is at most 12.50 %" in report
    assert "refuted at level 0.01. Either it was wrong from the start or the data has drifted" in report
    for sentence in (*FEEDBACK_ASSUMPTIONS, OF_AVERAGES):
        assert sentence in report


def test_tasks_and_classes_of_a_file_go_by_their_names(tmp_path):
    file = tmp_path / "named.csv"
    file.write_text("task,predicted,label\nGenf,cat,cat\nBern,cat,dog\nGenf,cat,dog\n2,cat,dog\n")
    of_task, of_class = Monitor(0.1, task=2), Monitor(0.1, "classes", 2, 1)
    for monitor in (of_task, of_class):
        monitor.names, monitor._labels = Names(["Bern", "Genf"], ["cat", "dog"]), [["cat", "dog"]]
    assert read_feedback(file, of_task) == [[0, 1, 1]]
    assert read_feedback(file, of_class) == [[1, 1]]
    file.write_text("predicted,label,label\ncat,cat,dog\n")
    with pytest.raises(UserError, match="two columns of one name"):
        read_feedback(file, of_task)
    file.write_text("task,predicted,label\nGent,cat,cat\n")
    with pytest.raises(UserError, match="There is no task named 'Gent'; choose one of: 'Bern', 'Genf'"):
        read_feedback(file, of_task)
