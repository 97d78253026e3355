"""The learner: one certificate per time, interruption, months between tasks, wrong input, and any kind of data."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_cases import NormedMLP, case_of, model_of, parameters, same_bits, standing
from torch import nn

import cop2l
from cop2l.certificates.certificate import read_certificate, table_cells
from cop2l.errors import UserError
from cop2l.kernel.checking import check_certificates
from cop2l.learner.cop2l import CoP2L
from cop2l.learner.presets import PRESETS

HERE = Path(__file__).parent
SMALL = {
    "buffer": "threshold", "k": 4, "epochs": 2, "lr": 0.05, "batch": 16, "memory": 40, "max_iterations": 5,
    "omega": 4.0, "stop": "none", "grid": False,
}  # fmt: skip
UNIFORM = {**SMALL, "buffer": "uniform", "optimiser": "adam", "lr": 0.01}


def a_case(scenario="class-incremental", sizes=(40, 35, 30)):
    return case_of(scenario, list(sizes), values=9, copies=False)


def a_learner(case, kind="mlp", **changes):
    return CoP2L(
        model_of(kind, case.classes), preset="picking", scenario=case.scenario, **{**SMALL, **changes}
    )


def learn(learner, case, tasks):
    for t in tasks:
        learner.learn(case.x[t - 1], case.y[t - 1], classes=case.heads[t - 1])
    return learner


def data_of(case, last=None):
    return {t: pair for t, pair in case.data.items() if t <= (last or case.tasks)}


def text(certificate):
    """All that it says, but for the hashes of files that are written only when it is saved."""
    said = {key: value for key, value in certificate.content.items() if key not in ("files", "digest")}
    return json.dumps(said, sort_keys=True)


def state(learner):
    """Everything that must not change when something goes wrong."""
    return (
        standing(learner.engine),
        learner.state.heads,
        learner.state.fingerprints,
        learner.state.machines,
        learner.state.issued_statements,
        text(learner.certificate) if learner.certificate else None,
        list(learner.engine.trace),
        [module.training for module in learner.model.modules()],
        learner.tasks_seen,
    )


# ---- one certificate per time


def test_a_number_of_tasks_fixed_in_advance_gives_one_certificate_after_the_last():
    case = a_case()
    learner = a_learner(case, tasks=3)
    for t in (1, 2):
        learn(learner, case, (t,))
        with pytest.raises(
            UserError, match=f"The claim is for 3 tasks, fixed in advance, and {t} were learned"
        ):
            learner.certify(data_of(case, t))
        assert learner.certificate is None
    certificate = learn(learner, case, (3,)).certify(data_of(case))
    assert sorted(certificate.bounds) == [1, 2, 3]
    assert certificate.options.tasks == 3


def test_anytime_gives_one_certificate_after_each_task():
    case = a_case()
    learner, issued = a_learner(case), []
    for t in (1, 2, 3):
        learn(learner, case, (t,))
        issued.append(learner.certify(data_of(case, t)))
        assert learner.certificate is issued[-1]
        assert sorted(issued[-1].bounds) == list(range(1, t + 1))
    fixed = learn(a_learner(case, tasks=3), case, (1, 2, 3)).certify(data_of(case))
    assert all(fixed.bounds[t] < issued[-1].bounds[t] for t in (1, 2, 3) if issued[-1].bounds[t] < 1)
    assert "of this run, one after each task at most" in str(issued[-1])
    assert "of this run" not in str(fixed)


@pytest.mark.parametrize("options", [SMALL, UNIFORM], ids=["threshold", "uniform"])
def test_a_second_certificate_with_other_data_is_refused_and_the_same_one_is_not(tmp_path, options):
    case = a_case()
    learner = learn(a_learner(case, **options), case, (1, 2))
    data = data_of(case, 2)
    first = text(learner.certify({1: data[1]}))
    assert text(learner.certify({1: data[1]})) == first
    for other in (data, {2: data[2]}):
        with pytest.raises(UserError, match="After task 2 a certificate was issued already"):
            learner.certify(other)
    assert text(learner.certificate) == first
    learner.save(tmp_path)
    loaded = CoP2L.load(tmp_path)
    with pytest.raises(UserError, match="issued already"):
        loaded.certify(data)
    assert text(loaded.certify({1: data[1]})) == first
    learn(loaded, case, (3,))
    assert loaded.certificate is None
    assert len(loaded.certify(data_of(case)).bounds) == 3


def test_the_buffer_kind_is_one_certificate_with_or_without_data():
    case = a_case()
    learner = learn(
        CoP2L(model_of("mlp", case.classes), preset="picking", kind="buffer", **SMALL), case, (1, 2)
    )
    assert learner.certify().bounds == learner.certify(data_of(case, 2)).bounds


def test_a_bound_from_memory_alone_is_pointed_out():
    case = a_case()
    from_memory, at_hand = (
        learn(a_learner(case), case, (1,)).certify(data) for data in (None, data_of(case, 1))
    )
    assert "on the old examples still in memory, and are larger; 'cop2l plan' says" in str(from_memory)
    assert "cop2l plan" not in str(at_hand)
    (record,) = from_memory.records
    assert table_cells(from_memory)[1][1] == record["selected"] < record["n"] == table_cells(at_hand)[1][1]


def test_the_certificate_that_was_issued_is_not_changed_by_learning_on(tmp_path):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    certificate = learner.certify(data_of(case, 1))
    certificate.save(tmp_path / "before")
    learn(learner, case, (2, 3))
    certificate.save(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes(), file.name


# ---- on disk


CONTINUE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_learner import a_case, learn
from cop2l.learner.cop2l import CoP2L
learner = CoP2L.load(sys.argv[2])
learn(learner, a_case("task-incremental"), [2])
learner.save(sys.argv[2])
"""


def test_saved_after_each_task_and_continued_by_other_processes(tmp_path):
    case = a_case("task-incremental")
    straight = learn(a_learner(case), case, (1, 2, 3))
    learn(a_learner(case), case, (1,)).save(tmp_path)
    subprocess.run([sys.executable, "-c", CONTINUE, str(HERE), str(tmp_path)], check=True)
    resumed = CoP2L.load(tmp_path)
    assert resumed.tasks_seen == 2
    learn(resumed, case, (3,))
    assert standing(resumed.engine) == standing(straight.engine)
    assert text(resumed.certify(data_of(case))) == text(straight.certify(data_of(case)))
    assert np.array_equal(resumed.predict(case.x[0], task=1), straight.predict(case.x[0], task=1))


@pytest.mark.parametrize("options", [SMALL, UNIFORM], ids=["threshold", "uniform"])
def test_saved_and_loaded_in_this_process(tmp_path, options):
    case = a_case()
    straight = learn(a_learner(case, "normed", **options), case, (1, 2, 3))
    learn(a_learner(case, "normed", **options), case, (1,)).save(tmp_path)
    learner = CoP2L.load(tmp_path, model=NormedMLP(25, case.classes))
    learn(learner, case, (2,)).save(tmp_path)
    learner = a_learner(case, "normed", **options)
    learner.restore(tmp_path)
    learn(learner, case, (3,))
    assert standing(learner.engine) == standing(straight.engine)
    assert same_bits(learner.state.theta_0, straight.state.theta_0)
    assert text(learner.certify(data_of(case))) == text(straight.certify(data_of(case)))
    learner.save(tmp_path)
    again = CoP2L.load(tmp_path, model=NormedMLP(25, case.classes))
    assert state(again)[:6] == state(learner)[:6]
    again.certificate.save(tmp_path / "copy")
    assert read_certificate(tmp_path / "copy").content == read_certificate(tmp_path / "certificate").content


def test_a_run_directory_is_loaded_through_its_state(tmp_path):
    case = a_case()
    learner = learn(a_learner(case), case, (1, 2))
    learner.save(tmp_path / "run" / "state")
    loaded = CoP2L.load(tmp_path / "run")
    assert standing(loaded.engine) == standing(learner.engine)


def test_double_precision_is_saved_and_loaded(tmp_path):
    case = a_case()
    learner = CoP2L(model_of("mlp", case.classes).double(), preset="picking", **SMALL)
    learn(learner, case, (1,)).save(tmp_path)
    loaded = CoP2L.load(tmp_path)
    assert same_bits(parameters(loaded.model), parameters(learner.model))
    learn(learner, case, (2,))
    assert standing(learn(loaded, case, (2,)).engine) == standing(learner.engine)
    data = data_of(case, 2)
    learner.certify(data).save(tmp_path / "double")
    verdict = check_certificates([tmp_path / "double"], data, model_of("mlp", case.classes).double())
    assert verdict.exit_code == 0, str(verdict)


def test_restore_refuses_what_does_not_fit_and_changes_nothing(tmp_path):
    case = a_case()
    learn(a_learner(case, not_valid=["a reason."]), case, (1,)).save(tmp_path)
    refused = {
        "another k;": a_learner(case, k=5),
        "another lr, delta;": a_learner(case, lr=0.1, delta=0.01),
        "another commitment;": a_learner(case, commitment="0" * 64),
        "another scenario;": CoP2L(
            model_of("mlp", case.classes), preset="picking", scenario="domain-incremental", **SMALL
        ),
        "does not fit the saved learner": a_learner(case, "linear"),
        "saved learner: look at its parameter head.bias": CoP2L(
            model_of("mlp", case.classes).double(), preset="picking", **SMALL
        ),
    }
    for message, learner in refused.items():
        before = state(learner)
        with pytest.raises(UserError, match=message) as caught:
            learner.restore(tmp_path)
        assert "\n" not in str(caught.value)
        assert state(learner) == before
    with pytest.raises(UserError, match="There is no saved learner"):
        CoP2L.load(tmp_path / "nowhere")


def test_a_model_of_the_users_own_must_be_given_again(tmp_path):
    case = a_case()
    learn(a_learner(case, "normed"), case, (1,)).save(tmp_path)
    with pytest.raises(UserError, match="a model of your own; pass it"):
        CoP2L.load(tmp_path)


def test_a_certificate_of_another_time_is_not_taken_for_its_own(tmp_path):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    learner.certify(data_of(case, 1))
    learner.save(tmp_path)
    assert text(CoP2L.load(tmp_path).certificate) == text(learner.certificate)
    learn(learner, case, (2,)).save(tmp_path)
    assert CoP2L.load(tmp_path).certificate is None
    unrelated = learn(a_learner(case, seed=1), case, (1,))  # another run with as many tasks, saved over it
    unrelated.save(tmp_path)
    assert CoP2L.load(tmp_path).certificate is None
    unrelated.certify(data_of(case, 1))
    unrelated.save(tmp_path)
    assert text(CoP2L.load(tmp_path).certificate) == text(unrelated.certificate)
    (tmp_path / "certificate").rename(tmp_path / "spare")
    learner.save(tmp_path)
    (tmp_path / "spare").rename(tmp_path / "certificate")
    assert CoP2L.load(tmp_path).certificate is None


def test_a_kill_between_learner_and_certificate_loses_nothing(tmp_path, monkeypatch):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    learner.certify(data_of(case, 1))
    learner.save(tmp_path)
    learn(learner, case, (2,))
    certificate = learner.certify(data_of(case, 2))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cop2l.certificates.certificate.write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            learner.save(tmp_path)
    loaded = CoP2L.load(tmp_path)
    assert (loaded.tasks_seen, loaded.certificate) == (2, None)
    with pytest.raises(UserError, match="issued already"):
        loaded.certify()
    assert text(loaded.certify(data_of(case, 2))) == text(certificate)


def test_reasons_survive_and_are_joined(tmp_path):
    """What was once declared cannot be taken back by saving and restoring."""
    case = a_case()
    learn(a_learner(case, not_valid=["the backbone saw the data."]), case, (1,)).save(tmp_path)
    learner = a_learner(case, not_valid=["tasks share pictures."])
    learner.restore(tmp_path)
    assert learner.state.not_valid == ("the backbone saw the data.", "tasks share pictures.")
    without = a_learner(case)
    without.restore(tmp_path)
    assert without.state.not_valid == CoP2L.load(tmp_path).state.not_valid == ("the backbone saw the data.",)
    certificate = learner.certify(data_of(case, 1))
    certificate.save(tmp_path / "certificate")
    assert (
        certificate.not_valid
        == read_certificate(tmp_path / "certificate").not_valid
        == learner.state.not_valid
    )
    assert "NOT VALID: the backbone saw the data." in str(certificate)
    assert "hold at once" not in str(certificate)
    verdict = check_certificates([tmp_path / "certificate"], data_of(case, 1), model_of("mlp", case.classes))
    assert verdict.exit_code == 1
    assert "declares itself not valid" in str(verdict)
    assert '"tasks share pictures."' in str(verdict)
    learner.save(tmp_path)
    again = a_learner(case)
    again.restore(tmp_path)
    assert again.state.not_valid == learner.state.not_valid


# ---- interruption


@pytest.mark.parametrize("options", [SMALL, UNIFORM], ids=["threshold", "uniform"])
@pytest.mark.parametrize("at", [0, 2])
def test_an_interruption_leaves_the_learner_as_it_was(options, at):
    case = a_case()
    learner = learn(a_learner(case, "normed", **options), case, (1, 2))
    learner.certify(data_of(case, 2))
    before = state(learner)

    def interrupt(event):
        if event["iteration"] == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(case.x[2], case.y[2], progress=interrupt)
    assert state(learner) == before
    straight = learn(a_learner(case, "normed", **options), case, (1, 2, 3))
    learn(learner, case, (3,))
    assert standing(learner.engine) == standing(straight.engine)
    assert text(learner.certify(data_of(case))) == text(straight.certify(data_of(case)))


def test_an_interruption_in_the_middle_of_an_update():
    case = a_case()
    learner = learn(a_learner(case, "normed"), case, (1,))
    before, calls = state(learner), 0

    def interrupt(module, inputs):
        nonlocal calls
        calls += module.training
        if calls == 7:
            raise KeyboardInterrupt

    hook = learner.model.head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        learn(learner, case, (2,))
    hook.remove()
    assert state(learner) == before


# ---- wrong input


def nan(x):
    x = x.copy()
    x[3, 2] = np.nan
    return x


WRONG = {
    "not a number": (lambda x, y: (nan(x), y), {}, "NaN"),
    "infinite": (lambda x, y: (np.where(x > 0, np.inf, x), y), {}, "infinite"),
    "too wide": (lambda x, y: (np.hstack([x, x]), y), {}, "takes inputs of shape .25,., not .50,."),
    "no first dimension": (lambda x, y: (np.float32(1.0), y), {}, "first dimension"),
    "objects": (lambda x, y: (np.array([["a"], [None]], object), y[:2]), {}, "array of numbers"),
    "fewer labels": (lambda x, y: (x, y[:-1]), {}, "as many"),
    "no examples": (lambda x, y: (x[:0], y[:0]), {}, "empty"),
    "label too large": (lambda x, y: (x, y + 100), {}, "Labels must be 0 to"),
    "label negative": (lambda x, y: (x, y - 100), {}, "Labels must be 0 to"),
    "labels not integers": (lambda x, y: (x, y.astype(np.float32)), {}, "class numbers"),
    "labels of truth": (lambda x, y: (x, y > 0), {}, "class numbers"),
    "labels in two dimensions": (lambda x, y: (x, y[:, None]), {}, "one-dimensional"),
    "ragged": (lambda x, y: ([[1.0], [1.0, 2.0]], y[:2]), {}, "array of numbers"),
    "labels too long for 64 bits": (lambda x, y: (x, [2**70] * len(y)), {}, "class numbers"),
    "labels as texts": (lambda x, y: (x, np.array(["a"] * len(y))), {}, "class numbers"),
    "class beyond the head": (lambda x, y: (x, y), {"classes": (0, 99)}, "outputs of the model"),
    "label outside its head": (lambda x, y: (x, y), {"classes": (0,)}, "outside the task's own classes"),
    "head of nothing": (lambda x, y: (x, y), {"classes": ()}, "outputs of the model"),
    "classes as a text": (lambda x, y: (x, y), {"classes": "01"}, "classes must be class numbers"),
    "half a class": (lambda x, y: (x, y), {"classes": 2.5}, "classes must be class numbers"),
    "no rows": (lambda x, y: (x[:, 0], y), {}, "takes inputs of shape .25,., not .+ one row per example"),
}


@pytest.mark.parametrize(("change", "arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_sentence_and_changes_nothing(change, arguments, message):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    before = state(learner)
    x, y = change(case.x[1], case.y[1])
    with pytest.raises(ValueError, match=message) as caught:
        learner.learn(x, y, **arguments)
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip().endswith((".", ")"))
    assert state(learner) == before


def test_wrong_constructions_and_wrong_times():
    case = a_case("task-incremental")
    with pytest.raises(UserError, match="scenario"):
        CoP2L(model_of("mlp", 4), preset="picking", scenario="class incremental")
    with pytest.raises(UserError, match="did you mean 'omega'"):
        a_learner(case, omaga=3.0)
    with pytest.raises(UserError, match=r"must be a torch module, such as .* not 'mlp'"):
        CoP2L("mlp", preset="picking")
    with pytest.raises(UserError, match="There is no preset named 3"):
        CoP2L(model_of("mlp", 4), preset=3)
    with pytest.raises(UserError, match="no parameters"):
        CoP2L(nn.Flatten(), preset="picking")
    with pytest.raises(UserError, match="no parameters"):
        CoP2L(model_of("mlp", 4).requires_grad_(False), preset="picking")
    with pytest.raises(UserError, match="memory=2 is less than the number of tasks, 3"):
        a_learner(case, memory=2, tasks=3)
    with pytest.raises(UserError, match="did you mean 'paper'"):
        CoP2L(model_of("mlp", 4), preset="papers")
    learner = a_learner(case)
    with pytest.raises(UserError, match="learn a task first"):
        learner.certify()
    with pytest.raises(UserError, match="needs its own classes"):
        learner.learn(case.x[0], case.y[0])
    with pytest.raises(UserError, match="give task=1"):
        learner.predict(case.x[0])
    learn(learner, case, (1,))
    for task in (None, 0, 2, "1"):
        with pytest.raises(UserError, match="give task=1"):
            learner.predict(case.x[0], task=task)
    short = learn(a_learner(case, memory=1, buffer="uniform"), case, (1,))
    with pytest.raises(UserError, match="smaller than the number of tasks"):
        learn(short, case, (2,))
    done = learn(a_learner(case, tasks=1), case, (1,))
    with pytest.raises(UserError, match="all were learned"):
        learn(done, case, (2,))
    with pytest.raises(UserError, match=r"Training diverged at task 1, iteration .* lower lr"):
        learn(a_learner(case, lr=1e12), case, (1,))


BAD_OPTIONS = [
    {"k": 0}, {"k": 2.5}, {"k": True}, {"lr": -1}, {"delta": 1.0}, {"buffer": "fifo"}, {"gamma": float("nan")},
    {"kind": "kl tight"}, {"buffer": "uniform", "kind": "preference"}, {"kind": "combined"},
    {"claim": ()}, {"claim": ("tasks", "tasks")}, {"claim": "tasks"}, {"grid": 1}, {"grid": True, "max_iterations": None},
    {"tasks": 0}, {"seed": 2**63}, {"batch": 2**17}, {"memory": "many"}, {"buffer": ["uniform"]},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_OPTIONS, ids=str)
def test_wrong_options(bad):
    with pytest.raises(UserError) as caught:
        CoP2L(model_of("linear", 2), preset="picking", **{**SMALL, **bad})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert any(name in str(caught.value) for name in bad)


# ---- any kind of data


@pytest.mark.parametrize("scenario", ["class-incremental", "task-incremental"])
def test_the_certificate_of_the_memory_needs_no_data(scenario, monkeypatch):
    """From memory alone: the same counts and bounds as with all the data at hand, after every task; but for repeated rows."""
    monkeypatch.setattr("cop2l.learner.counting.declared_draws", lambda *_: True)
    case = a_case(scenario, (60, 60, 60))
    without_data, with_data = (a_learner(case, memory=120) for _ in range(2))
    for t in range(1, case.tasks + 1):
        certificate = learn(without_data, case, (t,)).certify()
        expected = learn(with_data, case, (t,)).certify(data_of(case, t))
        for record, expected_record in zip(certificate.records, expected.records, strict=True):
            assert (record["errors"], record["errors_not_picked"]) == (None, None)
            assert {**record, "errors": 0, "errors_not_picked": 0} == {
                **expected_record,
                "errors": 0,
                "errors_not_picked": 0,
            }
            assert expected.information(record["task"])["buffer"] == certificate.bounds[record["task"]]
        assert {statement["kind"] for statement in certificate.statements} == {"buffer"}
        assert {statement["kind"] for statement in expected.statements} == {without_data.options.kind}
    assert any(0 < record["compressed"] < record["selected"] for record in expected.records)


def test_without_data_and_marks_there_is_no_bound():
    case = a_case()
    learner = learn(a_learner(case, **UNIFORM), case, (1, 2))
    with pytest.raises(UserError, match="Without the data of any task there is nothing to certify from"):
        learner.certify()
    certificate = learner.certify({2: case.data[2]})
    assert [(one["task"], one["kind"]) for one in certificate.statements] == [(2, "kl")]
    assert "its data was gone" in str(certificate)


def test_wrong_data_is_refused():
    case = a_case()
    learner = learn(a_learner(case), case, (1, 2))
    before = state(learner)
    x, y = case.x[0], case.y[0]
    changed = x.copy()
    changed[5, 1] += 1
    for data, message in (
        ({1: (changed, y)}, "fingerprint"),
        ({1: (x[:-1], y[:-1])}, "fingerprint"),
        (
            {1: (np.vstack([x, x]), np.concatenate([y, y]))},
            "80 inputs and 80 labels from row 0 on; it was learned from 40",
        ),
        ({1: (np.vstack([x, x]), y)}, "80 inputs and 40 labels from row 0 on"),
        (
            {1: lambda: iter([(x[:20], y[:20]), (x[20:], y[20:]), (x[:1], y[:1])])},
            "1 inputs and 1 labels from row 40 on",
        ),
        ({1: (case.x[1], case.y[1])}, "fingerprint"),
        ({1: (x, y.astype(float))}, "class numbers"),
        ([(x, y)], "by the numbers of its tasks"),
        ({1: x}, r"must be \(x, y\)"),
        ({1: (x, y, 1)}, r"must be \(x, y\)"),
        ({3: (x, y)}, "no task 3"),
        ({0: (x, y)}, "no task 0"),
        ({"1": (x, y)}, "no task 1"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            learner.certify(data)
        assert "\n" not in str(caught.value)
        assert state(learner) == before


@pytest.mark.parametrize("buffer", ["uniform", "threshold"])
def test_a_task_whose_data_is_none_is_one_without_data(buffer):
    """Its errors are not counted, and none must not be claimed."""
    case = a_case()
    certificates = [
        learn(a_learner(case, buffer=buffer), case, (1, 2)).certify(data)
        for data in ({1: None, 2: (case.x[1], case.y[1])}, {2: (case.x[1], case.y[1])})
    ]
    assert text(certificates[0]) == text(certificates[1])
    assert certificates[0].records[0]["errors_not_picked"] is None
    assert 1 not in certificates[0].bounds or certificates[0].claimed[1].keys() == {"buffer"}


def test_a_certificate_is_written_again_only_with_its_tensors(tmp_path):
    case = a_case()
    certificate = learn(a_learner(case), case, (1,)).certify(data_of(case, 1))
    certificate.save(tmp_path)
    read = read_certificate(tmp_path)
    assert (read.bounds, read.records, read.options) == (
        certificate.bounds,
        certificate.records,
        certificate.options,
    )
    with pytest.raises(UserError, match="copy its folder"):
        read.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (tmp_path / "theta.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match=r"theta.safetensors was changed"):
        read_certificate(tmp_path)


def test_the_trace_and_the_table():
    case = a_case()
    events = []
    learner = learn(a_learner(case, stop="preference"), case, (1,))
    learner.learn(case.x[1], case.y[1], progress=events.append)
    assert [event["iteration"] for event in events] == list(range(len(events)))
    assert learner.engine.trace == events
    assert max(e["iteration"] for e in events if e["least"]) == learner.engine.sets[1].iterations
    shown = str(learner.certify(data_of(case, 2)))
    assert "error <=" in shown
    assert "preference" in shown
    assert "With probability at least 95 % over the draw of the data" in shown
    assert learner.memory_used == sum(map(len, learner.engine.buffer))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset):
    case = a_case()
    learner = CoP2L(model_of("mlp", case.classes), preset=preset, memory=40, epochs=1, max_iterations=3)
    certificate = learn(learner, case, (1,)).certify(data_of(case, 1))
    assert certificate.kind == {"paper": "kl", "picking": "preference"}[preset]
    assert "kl" in {certificate.kind, *certificate.information(1)}
    assert certificate.kind not in certificate.information(1)
    for strange in (0, 2, -1, "1"):
        with pytest.raises(UserError, match=f"no task {strange!r}; the certificate has the tasks 1 to 1"):
            certificate.information(strange)


def test_the_users_data_and_the_layout_of_the_weights():
    """Weights in another memory layout are brought into the plain one; the data is left alone."""
    case = a_case()
    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        learner = CoP2L(model_of("cnn", case.classes).to(memory_format=layout), preset="picking", **SMALL)
        before = [x.copy() for x in case.x]
        ends.append(standing(learn(learner, case, (1, 2)).engine))
        assert all(np.array_equal(one, other) for one, other in zip(case.x, before, strict=True))
    assert ends[0] == ends[1]


class Masked(nn.Module):
    """A model with a buffer that is not in its state_dict."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.act, self.head = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, x):
        if not hasattr(self, "ones"):  # as caches are made when they are first used
            self.register_buffer("ones", torch.ones(8), persistent=False)
        return self.head(self.act(self.layer(x)) * self.mask * self.ones)


def masked_learner():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    return CoP2L(Masked(), preset="picking", k=2, memory=10, max_iterations=2), x, (x[:, 0] > 0).long()


@pytest.mark.parametrize(
    "change",
    [
        lambda learner: learner.model.head.bias.data.add_(1),
        lambda learner: setattr(learner.model, "head", nn.Linear(8, 2)),
    ],
)
@pytest.mark.parametrize("then", ["first learn", "certify", "learn", "save"])
def test_a_model_changed_by_hand_is_refused(tmp_path, change, then):
    learner, x, y = masked_learner()
    if then != "first learn":
        learner.learn(x, y)
    head, theta = learner.model.head, copy.deepcopy(learner.model.state_dict())
    change(learner)
    acts = {"certify": lambda: learner.certify({1: (x, y)}), "save": lambda: learner.save(tmp_path / "run")}
    act = acts.get(then, lambda: learner.learn(x + 9, y))
    when = "the learner was made" if then == "first learn" else "task 1 was learned"
    with pytest.raises(UserError, match=f"changed after {when}"):
        act()
    learner.model.head = head
    learner.model.load_state_dict(theta)
    act()


def test_a_model_that_is_changed_while_its_data_is_read_is_refused():
    learner, x, y = masked_learner()
    learner.learn(x, y)

    def blocks():
        with torch.no_grad():
            learner.model.head.bias.add_(1)
        yield x, y

    with pytest.raises(UserError, match="were changed after task 1"):
        learner.certify({1: blocks})


class Counted(Masked):
    """Every 50th answer is another one."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x) * (-1 if self.calls % 50 == 0 else 1)


@pytest.mark.parametrize("number", [int, np.int64])
def test_a_model_that_counts_its_calls_is_refused(number):
    _, x, y = masked_learner()
    learner = CoP2L(Counted(number(0)), preset="picking", k=2, memory=10, max_iterations=2)
    with pytest.raises(UserError, match="'calls' changes as the model runs"):
        learner.learn(x, y)
    assert learner.tasks_seen == 0


class Running(Masked):
    """A running mean that is not in the state_dict: going back to an earlier iteration does not undo it."""

    def __init__(self, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("mean", torch.zeros(4), persistent=False)
        else:
            self.mean = torch.zeros(4)

    def forward(self, x):
        if self.training:
            self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return super().forward(x - self.mean)


@pytest.mark.parametrize("buffer", [True, False])
def test_a_running_mean_that_is_not_in_the_state_dict_is_refused(buffer):
    _, x, y = masked_learner()
    model = Running(buffer)
    with pytest.raises(UserError, match="outside its state_dict that changes its answers"):
        CoP2L(model, preset="picking", k=2, memory=10, max_iterations=2).learn(x, y)
    assert not (buffer and model.mean.any())


class Extra(Masked):
    def get_extra_state(self):
        return {"version": 1}


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(UserError, match="'_extra_state' in its state_dict, which is no tensor"):
        CoP2L(Extra(), preset="picking")


def test_a_model_in_use_is_not_taken_for_a_changed_one():
    learner, x, y = masked_learner()
    learner.model(x)
    learner.learn(x, y)
    learner.model.train().requires_grad_(False).to("cpu")
    learner.model.register_forward_hook(lambda *_: None)
    learner.model(x), learner.predict(x)
    learner.certify({1: (x, y)})
    copy.deepcopy(learner).certify({1: (x, y)})
    with pytest.raises(UserError, match="put requires_grad back"):
        learner.learn(x + 9, y)
    learner.model.requires_grad_(True)
    learner.learn(x + 9, y)


def test_blocks_that_are_read_into_the_same_memory_are_counted_one_by_one():
    learner, x, y = masked_learner()
    learner.learn(x, y)
    rows, labels = torch.empty(2, 4), torch.empty(2, dtype=torch.int64)

    def blocks():
        for start in range(0, len(x), 2):
            yield rows.copy_(x[start : start + 2]), labels.copy_(y[start : start + 2])

    expected = learner.certify({1: (x, y)}).content["records"]
    assert expected[0]["errors_not_picked"] > 0
    assert learner.certify({1: blocks}).content["records"] == expected


def test_learning_without_gradients_is_refused():
    learner, x, y = masked_learner()
    with torch.no_grad(), pytest.raises(UserError, match="needs gradients"):
        learner.learn(x, y)


def test_compiled_and_coarse_models_are_refused():
    model = Masked()
    with pytest.raises(UserError, match="convert it"):
        CoP2L(Masked().bfloat16(), preset="picking")
    model.compile(backend="eager")
    for compiled in (model, nn.Sequential(torch.compile(nn.Linear(4, 2), backend="eager"))):
        with pytest.raises(UserError, match="not compiled"):
            CoP2L(compiled, preset="picking")


def test_what_was_frozen_by_hand_is_frozen_again(tmp_path):
    case = a_case()
    model = model_of("mlp", case.classes)
    model.hidden.requires_grad_(False)
    learner = CoP2L(model, preset="picking", k=2, memory=10, max_iterations=2)
    learner.learn(case.x[0], case.y[0])
    learner.save(tmp_path / "learner")
    again = CoP2L.load(tmp_path / "learner")
    assert again.state.trained == ["head.weight", "head.bias"]
    assert again.description == learner.description
    data = {1: (case.x[0], case.y[0])}
    again.certify(data).save(tmp_path / "certificate")
    assert cop2l.verify(tmp_path / "certificate", data=data).invalid == []
    with pytest.raises(UserError, match="trains other parameters"):
        CoP2L.load(tmp_path / "learner", model_of("mlp", case.classes))


def test_integers_and_real_numbers_are_not_mixed():
    _, x, y = masked_learner()
    learner = CoP2L(model_of("mlp", 2, inputs=4), preset="picking", k=2, memory=10, max_iterations=2)
    learner.learn(x, y)
    with pytest.raises(UserError, match="give all tasks one type"):
        learner.learn((9 * x.abs()).to(torch.uint8), y)
