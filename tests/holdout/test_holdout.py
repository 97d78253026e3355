"""A hold-out withholds rows by marks, certifies by them alone, and is the same after an interruption or a restart."""

import numpy as np
import pytest
import torch
from torch import nn

from cop2l import Holdout, WeightedReplay, verify
from cop2l.bounds import anytime_log_delta, holdout_certificate
from cop2l.errors import Advice, UserError
from cop2l.kernel.exact import digest, kept_rows, withheld_rows
from cop2l.methods import method
from cop2l.methods.base import Learner
from cop2l.methods.replay import Replay
from cop2l.models import build
from cop2l.randomness import marks

CENTRES = 3 * np.eye(6)[[0, 2, 4]]


def task_of(number, rows=300, classes=(0, 1, 2)):
    """Rows about one centre for each class."""
    draw = np.random.default_rng(number)
    y = draw.choice(classes, rows)
    return (CENTRES[y] + draw.normal(size=(rows, 6))).astype(np.float32), y.astype(np.int64)


def linear(seed=0, classes=3):
    return build("linear", inputs=(6,), classes=classes, seed=seed)


def replay(model=None, **options):
    return Replay(
        model or linear(),
        **{"memory": 60, "epochs": 3, "lr": 0.1, "scenario": "domain-incremental", **options},
    )


class Recording(Learner):
    """Remembers what it is given, and predicts by a linear head that never learns."""

    def fit(self, x, y, t):
        self.given = [*getattr(self, "given", []), (x.clone(), y.clone())]


def learned(holdout, tasks=(1, 2, 3)):
    for t in tasks:
        holdout.learn(*task_of(t))
    return holdout


def state_of(holdout):
    """Everything that a later task or certificate depends on."""
    learner = holdout.learner
    return (
        digest(holdout.model.state_dict()),
        digest({**learner.buffer.columns, **learner.tensors}),
        learner.tasks_seen,
        list(learner.heads),
        [digest({"x": task.x, "y": task.y}) for task in holdout.state.tasks],
        list(holdout.state.not_valid),
        getattr(holdout.model, "description", None),
    )


def test_the_method_gets_the_rows_whose_mark_is_not_below_the_share_and_no_other():
    holdout = Holdout(Recording(linear(), scenario="domain-incremental"), holdout=0.3, scale=False)
    for t in (1, 2):
        x, y = task_of(t)
        holdout.learn(x, y)
        mask = marks(0, "holdout", t, n=300) < np.uint64(0.3 * 2.0**64)
        given_x, given_y = holdout.learner.given[-1]
        assert np.array_equal(given_x.numpy(), x[~mask])
        assert np.array_equal(given_y.numpy(), y[~mask])
        assert np.array_equal(holdout.state.tasks[-1].x.numpy(), x[mask])


def test_without_data_all_rows_of_the_newest_task_certify_and_of_others_those_with_the_smallest_marks():
    holdout = learned(Holdout(replay(), keep_withheld=80))
    certificate = holdout.certify()
    log_delta = anytime_log_delta(np.log(0.05), 3)
    for t, record in enumerate(certificate.records, 1):
        (x, y), mask = task_of(t), withheld_rows(300, t, 0.5, 0)
        rows = np.flatnonzero(mask)
        if t < 3:
            order = np.argsort(marks(0, "holdout", t, n=300)[rows])
            rows = np.sort(rows[order[:40]])
        errors = int((holdout.predict(x[rows]).numpy() != y[rows]).sum())
        assert (record["n"], record["errors"]) == (len(rows), errors)
        assert certificate.bounds[t] == float(holdout_certificate(len(rows), errors, 3, log_delta))
    assert holdout.memory_used == holdout.learner.memory_used + 80 + certificate.records[2]["n"]


def test_with_the_data_of_all_tasks_every_withheld_row_certifies():
    holdout = learned(Holdout(replay(), keep_withheld=20, tasks=3))
    certificate = holdout.certify({t: task_of(t) for t in (1, 2, 3)})
    assert [r["n"] for r in certificate.records] == [
        int(withheld_rows(300, t, 0.5, 0).sum()) for t in (1, 2, 3)
    ]
    with pytest.raises(UserError, match="Give the data of all tasks"):
        holdout.certify({1: task_of(1)})
    with pytest.raises(UserError, match="not what it was learned from"):
        holdout.certify({t: task_of(4) for t in (1, 2, 3)})


def test_after_each_task_the_first_certificate_decides_which_rows_certify(tmp_path):
    data = {t: task_of(t) for t in (1, 2, 3)}
    holdout = learned(Holdout(replay(), keep_withheld=20))
    first = holdout.certify()
    holdout.save(tmp_path)
    for one in (holdout, Holdout.load(tmp_path)):
        with pytest.raises(UserError, match="a second one would spend delta"):
            one.certify(data)
        assert one.certify().statements == first.statements
    holdout.learn(*task_of(4))
    holdout.certify(data | {4: task_of(4)})


def test_a_fixed_number_of_tasks_has_one_certificate_at_its_end():
    holdout = learned(Holdout(replay(), tasks=2), (1,))
    with pytest.raises(UserError, match="fixed in advance"):
        holdout.certify()
    holdout.learn(*task_of(2))
    assert len(holdout.certify().bounds) == 2
    with pytest.raises(UserError, match="all were learned"):
        holdout.learn(*task_of(3))


@pytest.mark.parametrize("later", [False, True])
def test_copies_of_learned_rows_count_as_errors_when_the_learned_rows_are_gone(later):
    """In the same task, or in a later one that learns a few rows of an earlier task."""
    x, y = task_of(1)
    mask = withheld_rows(300, 1, 0.5, 0)
    if later:
        holdout = learned(Holdout(replay(), scale=False), (1,))
        x2, y2 = task_of(2)
        rows = np.flatnonzero(~withheld_rows(300, 2, 0.5, 0))[:3]
        x2[rows], y2[rows] = x[mask][:3], y[mask][:3]
        holdout.learn(x2, y2)
    else:
        copies = np.flatnonzero(mask)[:3]
        x[copies], y[copies] = x[~mask][:3], y[~mask][:3]
        holdout = Holdout(replay(), scale=False)
        holdout.learn(x, y)
    right = int((holdout.predict(x[mask]).numpy() == y[mask]).sum())
    copied = holdout.state.tasks[0].copied
    assert copied.sum() == 3
    record = holdout.certify().records[0]
    wrong_or_copied = (holdout.predict(x[mask]).numpy() != y[mask]) | copied
    assert record["errors"] == wrong_or_copied.sum() > len(y[mask]) - right - 1


def test_rows_that_tasks_share_void_their_bounds():
    holdout = learned(Holdout(replay()), (1,))
    with pytest.warns(Advice, match="withheld rows of task 1 are rows that task 2 learned from"):
        holdout.learn(*task_of(1))
    assert set(holdout.certify().bounds.values()) == {1.0}


def test_rows_that_two_tasks_withhold_void_means_alone():
    holdout = learned(Holdout(replay(), claim=("tasks", "average")), (1,))
    (x, y), (x2, y2) = task_of(1), task_of(2)
    mask, mask2 = withheld_rows(300, 1, 0.5, 0), withheld_rows(300, 2, 0.5, 0)
    x2[np.flatnonzero(mask2)[:40]], y2[np.flatnonzero(mask2)[:40]] = x[mask][:40], y[mask][:40]
    with pytest.warns(Advice, match="no average over these tasks holds"):
        holdout.learn(x2, y2)
    values = {s["family"]: s["value"] for s in holdout.certify().statements}
    assert values["average"] == 1.0 > values["tasks"]


def test_all_families_survive_saving(tmp_path):
    """Forgetting needs which withheld rows were wrong just after their task, kept or not."""
    options = {
        "claim": ("tasks", "average", "forgetting", "classes", "groups"),
        "groups": ("a", "b"),
        "tasks": 2,
    }
    names, before = {}, None
    holdout = Holdout(replay(epochs=1), keep_withheld=30, **options)
    for t in (1, 2):
        x, y = task_of(t)
        names[t] = np.where(np.arange(300) % 3 == 0, "a", "b")
        holdout.learn(x, y, classes=(0, 1, 2), groups=names[t])
        if t == 1:
            before = holdout.predict(x).numpy() != y
        holdout.save(tmp_path)
        holdout = Holdout.load(tmp_path)
    certificate = holdout.certify()
    (x, y), rows = task_of(1), kept_rows(withheld_rows(300, 1, 0.5, 0), 1, 30, 0)
    now = holdout.predict(x).numpy() != y
    parts = {(p["family"], p["subject"]): p for p in certificate.records[0]["parts"]}
    assert parts["forgetting", "lost"]["errors"] == int((now & ~before)[rows].sum())
    assert parts["forgetting", "gained"]["errors"] == int((before & ~now)[rows].sum())
    assert parts["groups", "a"]["n"] == int((names[1] == "a")[rows].sum())
    assert parts["classes", 2]["errors"] == int((now & (y == 2))[rows].sum())


@pytest.mark.processes
def test_a_class_that_only_withheld_rows_have_counts_as_errors(tmp_path):
    x, y = task_of(1)
    mask = withheld_rows(300, 1, 0.5, 0)
    y[~mask & (y == 2)] = 0
    holdout = Holdout(replay(), scale=False)
    holdout.learn(x, y)
    assert holdout.learner.heads == [(0, 1)]
    certificate = holdout.certify()
    assert certificate.records[0]["errors"] >= int((y[mask] == 2).sum()) > 0
    certificate.save(tmp_path)
    assert verify(tmp_path, {1: (x, y)}).status == "valid"
    with pytest.raises(UserError, match="Only withheld rows of task 1 have the class 2"):
        Holdout(replay(linear(1)), claim=("classes",)).learn(x, y)


@pytest.mark.parametrize("name", ["weighted-replay", "replay", "slda", "ranpac", "icarl"])
def test_an_interrupted_task_leaves_everything_as_it_was(name, monkeypatch):
    def new():
        options = {} if name in ("slda", "ranpac") else {"epochs": 2}
        options |= {"random_features": 30} if name == "ranpac" else {}
        return Holdout(method(name)(linear(), memory=40, **options), keep_withheld=50)

    def streams(t):
        return task_of(t, classes=(0, 1) if t == 1 else (2,))

    straight, stopped = new(), new()
    original, failing = Holdout._errors, [True]

    def interrupted(self, *arguments):
        if self is stopped and failing[0]:
            raise KeyboardInterrupt  # after the method has learned
        return original(self, *arguments)

    monkeypatch.setattr(Holdout, "_errors", interrupted)
    for t in (1, 2):
        before, torch_state = state_of(stopped), torch.get_rng_state()
        failing[0] = True
        with pytest.raises(KeyboardInterrupt):
            stopped.learn(*streams(t))
        assert state_of(stopped) == before
        assert torch.equal(torch.get_rng_state(), torch_state)
        failing[0] = False
        stopped.learn(*streams(t))
        straight.learn(*streams(t))
        assert state_of(stopped)[:5] == state_of(straight)[:5]


def test_the_scale_comes_from_learned_rows_of_the_first_task_alone():
    x, y = task_of(1)
    x *= np.float32([1, 10, 100, 1000, 1, 1])
    mask, models = withheld_rows(300, 1, 0.5, 0), []
    for withheld in (1, 50):
        changed = x.copy()
        changed[mask] *= withheld
        for model in (linear(), nn.Linear(6, 3)):
            torch.nn.init.zeros_(model.weight) if isinstance(model, nn.Linear) else None
            holdout = Holdout(replay(model))
            holdout.learn(changed, y)
            models.append(holdout.model)
    assert torch.equal(models[0].scale.factor, models[2].scale.factor)
    assert torch.equal(models[1].scale.factor, models[3].scale.factor)
    assert models[0].scale.factor[0] > 50 * models[0].scale.factor[2]


@pytest.mark.parametrize(
    ("build_learner", "sentence"),
    [
        (lambda: linear(), "A hold-out wraps a method"),
        (lambda: learned(Holdout(replay()), (1,)), "which certifies itself"),
        (lambda: learned(Holdout(replay()), (1,)).learner, "has learned 1 tasks already"),
    ],
)
def test_what_is_no_new_method_is_refused(build_learner, sentence):
    with pytest.raises(UserError, match=sentence):
        Holdout(build_learner())


def test_changed_parameters_are_refused():
    holdout = learned(Holdout(replay()), (1,))
    holdout.model.head.weight.data += 1
    for act in (lambda: holdout.learn(*task_of(2)), holdout.certify, lambda: holdout.save("nowhere")):
        with pytest.raises(UserError, match="parameters were changed after task 1"):
            act()


def test_kept_rows_can_be_forgotten():
    holdout = learned(Holdout(replay(), keep_withheld=0), (1, 2))
    with pytest.raises(UserError, match="No withheld row of task 1 is kept"):
        holdout.certify()
    assert len(holdout.certify({t: task_of(t) for t in (1, 2)}).bounds) == 2
    other = learned(Holdout(replay(linear(5))), (1, 2))
    other.forget_withheld()
    assert other.memory_used == other.learner.memory_used


# ---- verify


@pytest.fixture(scope="module")
def kept_certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    learned(
        Holdout(
            WeightedReplay(linear(), memory=40, epochs=3, scenario="domain-incremental"), keep_withheld=60
        )
    ).certify().save(folder)
    return folder


@pytest.mark.processes
def test_kept_rows_are_verified_from_whole_tasks(kept_certificate):
    verdict = verify(kept_certificate, {t: task_of(t) for t in (1, 2, 3)})
    assert verdict.status == "valid", verdict
    assert any("near-copy" in sentence for sentence in verdict.assumed)


@pytest.mark.processes
def test_with_files_of_past_tasks_gone_the_others_are_counted_again(kept_certificate, tmp_path):
    verdict = verify(kept_certificate, {3: task_of(3)})
    assert verdict.status == "cannot tell"
    assert "The data of task 1 was not given." in verdict.unverified
    assert any("of task 3 were counted again" in sentence for sentence in verdict.checked)
    x, y = task_of(3)
    y[np.flatnonzero(withheld_rows(300, 3, 0.5, 0))[0]] ^= 1
    assert verify(kept_certificate, {3: (x, y)}).status == "invalid"


@pytest.mark.processes
def test_whole_tasks_of_a_file_are_split_by_the_checker(tmp_path):
    holdout = learned(Holdout(replay(), tasks=2), (1, 2))
    holdout.certify().save(tmp_path / "certificate")
    columns = {f"{name}_{t}": column for t in (1, 2) for name, column in zip("xy", task_of(t), strict=True)}
    np.savez(tmp_path / "all.npz", **columns)
    assert verify(tmp_path / "certificate", tmp_path / "all.npz").status == "valid"
