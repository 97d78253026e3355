"""The learner: interruption, months between tasks, wrong input, and certificates from any kind of data."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from certify_cases import NormedMLP, case_of, model_of, parameters, same_bits
from torch import nn

from cop2l.certify.certificate import Certificate, describe
from cop2l.certify.learner import CoP2L
from cop2l.certify.verify import verify
from cop2l.errors import UserError

HERE = Path(__file__).parent
SMALL = {
    "prior": 0.0, "buffer": "threshold", "k": 4, "epochs": 2, "lr": 0.05, "batch": 16, "memory": 24, "max_iterations": 5,
    "omega": 4.0,
}  # fmt: skip
WITNESS = {**SMALL, "buffer": "witness", "prior": 0.3, "prior_memory": 0.5, "prior_epochs": 2}


def a_case(scenario="class-incremental", sizes=(40, 35, 30)):
    return case_of(scenario, list(sizes), values=9)


def a_learner(case, kind="mlp", **more):
    return CoP2L(model_of(kind, case.classes), scenario=case.scenario, **{**SMALL, **more})


def learn(learner, case, tasks):
    for t in tasks:
        learner.learn(case.x[t - 1], case.y[t - 1], classes=case.heads[t - 1])
    return learner


def data_of(case):
    return {t: (case.x[t - 1], case.y[t - 1]) for t in range(1, case.tasks + 1)}


def text(certificate):
    return json.dumps(describe(certificate), sort_keys=True)


def state(learner):
    """Everything that must not change when something goes wrong."""
    return (
        parameters(learner.model),
        [(h.task, h.rows, h.iterations, h.first.tobytes(), h.picked.tobytes()) for h in learner.histories],
        [
            (part.row.tobytes(), part.x.numpy().tobytes())
            for part in [*learner.memory.candidates, *learner.memory.prior]
        ],
        text(learner.certificate) if learner.certificate else None,
        list(learner.trace),
        [module.training for module in learner.model.modules()],
        learner.tasks_seen,
    )


def unchanged(learner, before):
    now = state(learner)
    return same_bits(now[0], before[0]) and now[1:] == before[1:]


CONTINUE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_learner import a_case, learn
from cop2l.certify.learner import CoP2L
learner = CoP2L.load(sys.argv[2])
learn(learner, a_case("task-incremental"), [2])
learner.save(sys.argv[2])
"""


def test_saved_after_each_task_and_continued_by_other_processes(tmp_path):
    case = a_case("task-incremental")
    straight = learn(a_learner(case, **WITNESS), case, (1, 2, 3))
    learn(a_learner(case, **WITNESS), case, (1,)).save(tmp_path)
    subprocess.run([sys.executable, "-c", CONTINUE, str(HERE), str(tmp_path)], check=True)
    resumed = CoP2L.load(tmp_path)
    assert resumed.tasks_seen == 2
    learn(resumed, case, (3,))
    assert same_bits(parameters(resumed.model), parameters(straight.model))
    assert text(resumed.certificate) == text(straight.certificate)
    data = data_of(case)
    assert text(resumed.certify(data)) == text(straight.certify(data))
    assert np.array_equal(resumed.predict(case.x[0], task=1), straight.predict(case.x[0], task=1))


@pytest.mark.parametrize("buffer", ["uniform", "priority", "threshold"])
def test_saved_and_loaded_in_this_process(tmp_path, buffer):
    case = a_case()
    straight = learn(a_learner(case, "normed", buffer=buffer), case, (1, 2, 3))
    learn(a_learner(case, "normed", buffer=buffer), case, (1,)).save(tmp_path)
    for t in (2, 3):
        learner = CoP2L.load(tmp_path, model=NormedMLP(25, case.classes))
        learn(learner, case, (t,)).save(tmp_path)
    assert same_bits(parameters(learner.model), parameters(straight.model))
    assert text(learner.certificate) == text(straight.certificate)


def test_double_precision_is_saved_and_loaded(tmp_path):
    case = a_case()
    learner = CoP2L(model_of("mlp", case.classes).double(), **SMALL)
    learn(learner, case, (1,)).save(tmp_path)
    loaded = CoP2L.load(tmp_path)
    assert same_bits(parameters(loaded.model), parameters(learner.model))
    learn(learner, case, (2,))
    assert text(learn(loaded, case, (2,)).certificate) == text(learner.certificate)
    data = {t: data_of(case)[t] for t in (1, 2)}
    verdict = verify(learner.certify(data).save(tmp_path / "double"), data)
    assert verdict.exit_code == 0, str(verdict)


def test_restore_refuses_other_options_and_other_models(tmp_path):
    case = a_case()
    learn(a_learner(case), case, (1,)).save(tmp_path)
    with pytest.raises(UserError, match=r"other options \(k\)"):
        a_learner(case, k=5).restore(tmp_path)
    with pytest.raises(UserError, match="does not fit"):
        a_learner(case, "linear").restore(tmp_path)
    with pytest.raises(UserError, match="no saved learner"):
        CoP2L.load(tmp_path / "nowhere")
    (tmp_path / "learner.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="damaged"):
        CoP2L.load(tmp_path)


def test_a_certificate_older_than_the_learner_is_not_taken_for_its_own(tmp_path):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    old = learner.certificate
    learn(learner, case, (2,)).save(tmp_path)
    old.save(tmp_path / "certificate")
    assert CoP2L.load(tmp_path).certificate is None


@pytest.mark.parametrize(
    "options", [SMALL, {**SMALL, "buffer": "uniform"}, WITNESS], ids=["threshold", "uniform", "witness"]
)
@pytest.mark.parametrize("at", [0, 2])
def test_an_interruption_leaves_the_learner_as_it_was(options, at):
    case = a_case()
    learner = learn(a_learner(case, "normed", **options), case, (1, 2))
    before = state(learner)

    def interrupt(event):
        if event["iteration"] == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(case.x[2], case.y[2], progress=interrupt)
    assert unchanged(learner, before)
    straight = learn(a_learner(case, "normed", **options), case, (1, 2, 3))
    learn(learner, case, (3,))
    assert same_bits(parameters(learner.model), parameters(straight.model))
    assert text(learner.certificate) == text(straight.certificate)


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
    assert unchanged(learner, before)


def nan(x):
    x = x.copy()
    x[3, 2] = np.nan
    return x


WRONG = {
    "not a number": (lambda x, y: (nan(x), y), {}, "NaN"),
    "infinite": (lambda x, y: (np.where(x > 0, np.inf, x), y), {}, "infinite"),
    "too wide": (lambda x, y: (np.hstack([x, x]), y), {}, "cannot take inputs of shape"),
    "no first dimension": (lambda x, y: (np.float32(1.0), y), {}, "first dimension"),
    "objects": (lambda x, y: (np.array([["a"], [None]], object), y[:2]), {}, "array of numbers"),
    "fewer labels": (lambda x, y: (x, y[:-1]), {}, "as many"),
    "no examples": (lambda x, y: (x[:0], y[:0]), {}, "empty"),
    "label too large": (lambda x, y: (x, y + 100), {}, "Labels must be 0 to"),
    "label negative": (lambda x, y: (x, y - 100), {}, "Labels must be 0 to"),
    "labels not integers": (lambda x, y: (x, y.astype(np.float32)), {}, "integer"),
    "labels of truth": (lambda x, y: (x, y > 0), {}, "integer"),
    "labels in two dimensions": (lambda x, y: (x, y[:, None]), {}, "one-dimensional"),
    "ragged": (lambda x, y: ([[1.0], [1.0, 2.0]], y[:2]), {}, "array of numbers"),
    "labels too long for 64 bits": (lambda x, y: (x, [2**70] * len(y)), {}, "integer"),
    "labels as texts": (lambda x, y: (x, np.array(["a"] * len(y))), {}, "integer"),
    "class beyond the head": (lambda x, y: (x, y), {"classes": (0, 99)}, "outputs of the model"),
    "label outside its head": (lambda x, y: (x, y), {"classes": (0,)}, "outside the task's own classes"),
    "head of nothing": (lambda x, y: (x, y), {"classes": ()}, "outputs of the model"),
}


@pytest.mark.parametrize(("change", "more", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_sentence_and_changes_nothing(change, more, message):
    case = a_case()
    learner = learn(a_learner(case), case, (1,))
    before = state(learner)
    x, y = change(case.x[1], case.y[1])
    with pytest.raises(ValueError, match=message) as caught:
        learner.learn(x, y, **more)
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip().endswith((".", ")"))
    assert unchanged(learner, before)


def test_wrong_constructions_and_wrong_times():
    case = a_case("task-incremental")
    with pytest.raises(UserError, match="scenario"):
        CoP2L(model_of("mlp", 4), scenario="class incremental")
    with pytest.raises(UserError, match="did you mean 'omega'"):
        a_learner(case, omaga=3.0)
    with pytest.raises(UserError, match="no parameters"):
        CoP2L(nn.Flatten())
    with pytest.raises(UserError, match="no parameters"):
        CoP2L(model_of("mlp", 4).requires_grad_(False))
    with pytest.raises(UserError, match="smaller than the number of tasks"):
        a_learner(case, memory=2, tasks=3)
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
    with pytest.raises(UserError, match="use k=2 or more"):
        learn(a_learner(case, "normed", k=1), case, (1,))
    with pytest.raises(UserError, match="takes every example"):
        a_learner(case, prior=0.999999).learn(case.x[0][:2], case.y[0][:2], classes=case.heads[0])


BAD_OPTIONS = [
    {"k": 0}, {"k": 2.5}, {"k": True}, {"lr": -1}, {"delta": 1.0}, {"prior": 1}, {"buffer": "fifo"}, {"gamma": float("nan")},
    {"claim": "kl tight"}, {"buffer": "uniform", "claim": "preference"}, {"buffer": "threshold", "claim": "combined"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_OPTIONS, ids=str)
def test_wrong_options(bad):
    with pytest.raises(UserError) as caught:
        CoP2L(model_of("linear", 2), **{**SMALL, **bad})
    assert "\n" not in str(caught.value)


def test_arrays_memory_maps_lists_and_blocks_give_the_same_certificate(tmp_path):
    case = a_case()
    data = data_of(case)
    maps = {}
    for t, (x, y) in data.items():
        np.save(tmp_path / f"x{t}.npy", x)
        maps[t] = (np.load(tmp_path / f"x{t}.npy", mmap_mode="r"), y)
    learner = learn(a_learner(case), case, (1, 2, 3))
    reference = text(learner.certify(data))

    def blocks(t, size):
        x, y = maps[t]
        return lambda: (
            (x[start : start + size], y[start : start + size]) for start in range(0, len(y), size)
        )

    for given in (
        {t: (torch.from_numpy(x), torch.from_numpy(y)) for t, (x, y) in data.items()},
        {t: (x, y.tolist()) for t, (x, y) in data.items()},
        {t: (x, y.astype(np.uint8)) for t, (x, y) in data.items()},
        maps,
        {t: blocks(t, 7) for t in data},
        {1: data[1], 2: maps[2], 3: blocks(3, 16)},
    ):
        assert text(learner.certify(given)) == reference
    mapped = a_learner(case)
    for t in data:
        mapped.learn(*maps[t], classes=case.heads[t - 1])
    assert text(mapped.certify(data)) == reference
    tensors = a_learner(case)
    for t, (x, y) in data.items():
        tensors.learn(torch.from_numpy(x), torch.from_numpy(y), classes=case.heads[t - 1])
    assert text(tensors.certify(maps)) == reference


@pytest.mark.parametrize("options", [SMALL, WITNESS, {**SMALL, "prior": 0.3, "prior_memory": 0.4, "prior_epochs": 1}],
                         ids=["threshold", "witness", "threshold and prior part"])  # fmt: skip
@pytest.mark.parametrize("scenario", ["class-incremental", "task-incremental"])
def test_the_buffer_certificate_needs_no_data(options, scenario):
    """From memory alone: the same counts and bounds as with all the data at hand, after every task."""
    case = a_case(scenario, (80, 80, 80))
    learner = a_learner(case, **{**options, "memory": 60})
    for t in range(1, case.tasks + 1):
        learn(learner, case, (t,))
        alone = learner.certify()
        full = learner.certify({s: data_of(case)[s] for s in range(1, t + 1)})
        for gone, counted in zip(alone.tasks, full.tasks, strict=True):
            assert gone.errors is None
            assert gone.missed is None
            assert (gone.selected, gone.compressed) == (counted.selected, counted.compressed)
            assert set(gone.bounds) == {"buffer"}
            assert gone.bounds["buffer"] == counted.bounds["buffer"]
            assert alone.bound(gone.task).kind == "buffer"
            assert full.bound(gone.task).kind == learner.options.claim
    assert any(0 < record.compressed < record.selected for record in full.tasks)


def test_without_data_and_marks_there_is_no_bound():
    case = a_case()
    learner = learn(a_learner(case, buffer="uniform"), case, (1, 2))
    assert learner.certificate.bound(1) is None
    assert learner.certificate.bound(2).kind == "kl-tight"
    assert "data not at hand" in str(learner.certificate)


def test_wrong_data_is_refused():
    case = a_case()
    learner = learn(a_learner(case), case, (1, 2))
    before = state(learner)
    x, y = case.x[0], case.y[0]
    other = x.copy()
    other[5, 1] += 1
    label = y.copy()
    label[0] = 1 - label[0]
    for data, message in (
        ({1: (other, y)}, "fingerprint"),
        ({1: (x, label)}, "fingerprint"),
        ({1: (x[::-1], y[::-1])}, "fingerprint"),
        ({1: (x.astype(np.float64), y)}, "fingerprint"),
        ({1: (x[:-1], y[:-1])}, "39 examples"),
        ({1: (np.vstack([x, x]), np.concatenate([y, y]))}, "more than the 40"),
        ({1: (np.vstack([x, x]), y)}, "80 inputs but 40 labels"),
        ({1: (case.x[1], case.y[1])}, "35 examples"),
        ({3: (x, y)}, "no task 3"),
        ({"1": (x, y)}, "no task 1"),
    ):
        with pytest.raises(UserError, match=message):
            learner.certify(data)
        assert unchanged(learner, before)


def test_portable_certificates_warn_and_need_all_data():
    case = a_case()
    learner = learn(a_learner(case), case, (1, 2))
    data = data_of(case)
    with pytest.warns(UserWarning, match="leave the house"):
        certificate = learner.certify({1: data[1], 2: data[2]}, portable=True)
    wanted = np.union1d(learner.histories[0].first, learner.histories[0].second)
    assert certificate.examples["1/row"].tolist() == wanted.tolist()
    assert np.array_equal(certificate.examples["1/x"], case.x[0][wanted])
    with (
        pytest.warns(UserWarning, match="leave the house"),
        pytest.raises(UserError, match="task 1's is missing"),
    ):
        learner.certify({2: data[2]}, portable=True)


def test_saving_a_certificate_never_deletes_anything_else(tmp_path):
    case = a_case()
    certificate = learn(a_learner(case), case, (1,)).certificate
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a certificate"):
        certificate.save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").exists()
    first = certificate.save(tmp_path / "certificate")
    assert text(Certificate.load(certificate.save(first))) == text(certificate)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["certificate", "thesis"]


def test_the_trace_and_the_table():
    case = a_case()
    events = []
    learner = a_learner(case)
    learner.learn(case.x[0], case.y[0], progress=events.append)
    assert [event["iteration"] for event in events] == list(range(len(events)))
    assert learner.trace == events
    assert sum(event["kept"] for event in learner.trace) == 1
    assert [e["iteration"] for e in learner.trace if e["kept"]] == [learner.histories[0].iterations]
    assert "error <=" in str(learner.certificate)
    assert "preference" in str(learner.certificate)
    assert learner.memory_used == len(learner.memory.candidates[0])


def test_declared_reasons_travel_with_the_certificate(tmp_path):
    case = a_case()
    learner = CoP2L(model_of("mlp", case.classes), not_valid=["the backbone saw the data."], **SMALL)
    learn(learner, case, (1,)).save(tmp_path)
    certificate = CoP2L.load(tmp_path).certificate
    assert not certificate.valid
    assert "NOT VALID: the backbone saw the data." in str(certificate)
    verdict = verify(tmp_path / "certificate", {1: data_of(case)[1]})
    assert verdict.exit_code == 1
    assert [level.status for level in verdict.levels] == ["holds"] * 4
    assert "declares itself not valid" in str(verdict)
