"""What a dishonest issuer would try, told as stories; in none of them does `verify` say that all is well."""

import json
import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torture_bases import Certificate, linear, wide

from cop2l import CoP2L
from cop2l.audit import split
from cop2l.audit.verify import verify
from cop2l.certify.counting import answer_numbers
from cop2l.errors import UserError
from cop2l.kernel.exact import answer_keys, sample
from cop2l.kernel.verify import UNCOMMITTED
from cop2l.models import build
from cop2l.streams import load

OPTIONS = {"memory": 40, "k": 4, "epochs": 2, "lr": 0.05, "max_iterations": 4}


def issued(folder, samples, model, heads=None, scenario="class-incremental", **chosen):
    """An issuer's certificate after the last task."""
    learner = CoP2L(model, preset="cop2l", scenario=scenario, **{**OPTIONS, "tasks": len(samples), **chosen})
    for task, (x, y) in samples.items():
        learner.learn(x, y, classes=heads[task - 1] if heads else None)
    learner.certify(samples).save(folder)
    return folder


def noise(rows, seed=0, classes=8):
    """Labels that nothing can predict: every classifier errs on all but one in `classes` new examples."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 6)).astype(np.float32), draw.integers(0, classes, rows)


def edited(base, into, change):
    """The certificate of an honest run with a change, and every hash made again."""
    forged = deepcopy(base.run[-1])
    change(forged.content)
    return forged.write(into)


def audited(base, folder, **more):
    return verify(folder, base.samples, **more)


@pytest.fixture(scope="module")
def base(honest):
    return honest["paper, class-incremental, fixed"]


def test_the_honest_certificate_is_valid(base):
    assert audited(base, base.folders[-1]).status == "valid"


@pytest.mark.parametrize("place", [("statements", 0), ("records", 0), (), ("options",)])
def test_any_bound_stated_by_a_term_that_shadows_a_field(base, tmp_path, place):
    def change(content):
        for key in place:
            content = content[key]
        content["terms"] = {"value": 0.0023}

    assert audited(base, edited(base, tmp_path, change)).status == "invalid"


@pytest.mark.parametrize(
    "earlier", [[], ["bits 3, torch 2.1, Linux x86_64, a foreign processor, cpu, float32"]]
)
def test_initial_weights_that_know_the_random_labels_by_heart(tmp_path, earlier, monkeypatch):
    x, y = noise(200)
    model = wide(0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(400):
        optimiser.zero_grad()
        cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    own = type("Mine", (type(model),), {})  # a model of the issuer's own, which no name builds again
    model.__class__, model.description = own, None
    folder = issued(tmp_path / "certificate", {1: (x, y)}, model, gamma=5.0)
    bound = json.loads((folder / "certificate.json").read_text())["statements"][0]["value"]
    new, labels = noise(4000, seed=1)
    missed = float((model(torch.from_numpy(new)).argmax(1).numpy() != labels).mean())
    assert bound < 0.2  # the lie
    assert missed > 0.8  # the truth
    forged = Certificate.read(folder)
    forged.content["earlier"] = earlier
    forged.write(folder)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    found = verify(folder, {1: (x, y)}, model=wide)
    assert found.status == "cannot tell"
    assert any("may be fitted to the data" in doubt for doubt in found.unverified)


def table(tmp_path, columns):
    """A user's own table: the labels cannot be predicted, but one column is a copy of them."""
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 300)
    lines = [
        "a,b,copy,label",
        *(f"{draw.normal():.6f},{draw.normal():.6f},{c}.0{i:05d},{c}" for i, c in enumerate(label)),
    ]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(lines))
    recipe = {
        "label": "label",
        "columns": columns,
        "tasks": 1,
        "classes": 2,
        "scenario": "domain-incremental",
    }
    stream = load(str(file), **recipe)
    data = {t: (np.asarray(x), np.asarray(y)) for x, y, t in stream}
    model = build("linear", inputs=stream[0].x.shape[1:], classes=2, seed=0)
    claimed = {"stream": "table.csv", **recipe}
    return file, issued(tmp_path / "certificate", data, model, scenario="domain-incremental", data=claimed)


def test_a_column_that_is_a_copy_of_the_label(tmp_path):
    file, folder = table(tmp_path, ["copy"])
    known = {"label": "label", "tasks": 1, "classes": 2, "scenario": "domain-incremental"}
    assert verify(folder, str(file), split=known).status == "cannot tell"
    assert verify(folder, str(file), split={**known, "columns": ["a", "b"]}).status == "invalid"
    accepted = verify(folder, str(file), split=known, split_as_stated=True)
    assert any('"columns": ["copy"]' in line for line in accepted.assumed)  # who accepts it reads it


@pytest.mark.parametrize(
    "groups", [[[0], [1]], [[0, 1], [6, 7]]], ids=["one class per head", "hard classes dropped"]
)
def test_a_cut_that_makes_the_task_easy(tmp_path, groups):
    stream = load("digits", task_classes=groups, scenario="task-incremental")
    data = {t: (np.asarray(x), np.asarray(y)) for x, y, t in stream}
    recipe = {
        "stream": "digits",
        "task_classes": groups,
        "scenario": "task-incremental",
        "tasks": len(groups),
    }
    model = build("linear", inputs=(1, 8, 8), classes=stream.classes, seed=0)
    folder = issued(tmp_path, data, model, stream.heads, "task-incremental", data=recipe)
    assert verify(folder, "digits").status != "valid"
    assert verify(folder, "digits", split={"scenario": "task-incremental"}).status != "valid"
    hidden = Certificate.read(folder)
    hidden.content["data"] = {"stream": "digits", "scenario": "task-incremental"}
    assert verify(hidden.write(folder), "digits", split={"scenario": "task-incremental"}).status == "invalid"


def test_not_valid_removed_on_images_that_are_shared(tmp_path, monkeypatch):
    stream = load("digits")
    shared = replace(stream, not_valid=("All tasks are copies of the same images.",))
    data = {t: (np.asarray(x), np.asarray(y)) for x, y, t in stream}
    model = build("linear", inputs=(1, 8, 8), classes=10, seed=0)
    folder = issued(tmp_path, data, model, stream.heads, data={"stream": "digits"})
    assert verify(folder, "digits").status == "valid"
    monkeypatch.setattr(split, "load_stream", lambda *_, **__: shared)
    found = verify(folder, "digits")
    assert found.status == "invalid"
    assert any("does not declare it" in fault for fault in found.invalid)


def hidden_by_nothing(x):
    return x


def hidden_by_signs_of_zeros(x):
    """Every copy has other signs of its zeros."""
    signs = (np.arange(len(x)) // 60)[:, None] >> np.arange(5) & 1
    return np.concatenate([x[:, :1], np.where(signs, -0.0, 0.0).astype(np.float32)], axis=1)


def hidden_below_the_precision_of_the_model(x):
    """Every copy differs in digits that 32 bits do not hold."""
    return x.astype(np.float64) + np.arange(len(x))[:, None] * 1e-12


@pytest.mark.parametrize(
    "hide", [hidden_by_nothing, hidden_by_signs_of_zeros, hidden_below_the_precision_of_the_model]
)
def test_pure_noise_oversampled(tmp_path, hide):
    """No bound below the truth, one half, is called valid: copies count as errors, however they are hidden."""
    x, y = noise(60, classes=2)
    x, y = np.round(np.tile(x, (10, 1)), 2), np.tile(y, 10)
    data = {1: (hide(x), y)}
    found = verify(issued(tmp_path / "open", data, linear((6,), 2)()), data)
    assert found.statements[0]["value"] > 0.9
    assert any("count as errors: 5" in line for line in found.rows)
    quiet = issued(tmp_path / "quiet", data, linear((6,), 2)(), repeats=True)  # pays nothing
    found = verify(quiet, data)
    assert found.status == "cannot tell"
    assert any("cannot tell from another: 5" in doubt for doubt in found.unverified)
    paid = verify(quiet, data, count_repeats=True)
    assert paid.status == "valid"
    assert paid.statements[0]["value"] > 0.9


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_signs_of_zeros_hide_no_copy_in_any_precision(precision):
    model = torch.nn.Linear(2, 3, bias=False).to(precision)
    x = np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0]], np.float32)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3, 2))  # the logits have the signs of the inputs
    for keys in (answer_keys(model, sample(x, torch.zeros(3).long(), 1, 0)), answer_numbers(model, x)):
        assert keys[0] == keys[1] != keys[2]


def test_repeats_that_hide_rows_shared_between_tasks(tmp_path):
    x, y = noise(400, classes=2)
    data = {
        1: (x[:200], y[:200]),
        2: (np.concatenate([x[199:200], x[201:]]), np.concatenate([y[199:200], y[201:]])),
    }
    found = verify(issued(tmp_path, data, linear((6,), 2)()), data)
    assert any("count as errors: 1 of task 1, 1 of task 2" in line for line in found.rows)
    assert min(one["value"] for one in found.statements) > 0.5  # the truth


def test_several_kinds_at_one_time(honest, tmp_path):
    base = honest["cop2l, domain-incremental, anytime"]
    learner = CoP2L(base.model(), scenario=base.scenario, **base.chosen)
    for task, (x, y) in base.samples.items():
        learner.learn(x, y)
        learner.certify({task: (x, y)})
    with pytest.raises(UserError, match="spend delta twice"):
        learner.certify(base.samples)
    again = base.run[-1].write(tmp_path / "again")
    from cop2l.kernel.verify import verify as kernel

    assert kernel([base.folders[0], base.folders[-1], again], base.samples, base.model()).status == "invalid"


def test_the_data_of_a_task_said_to_be_gone_is_the_issuers_word(honest):
    base = honest["cop2l, class-incremental, a task's data gone"]
    assert any("gone" in word and "1" in word for word in audited(base, base.folders[-1]).assumed)


@pytest.mark.parametrize("delta", [0.999999, 0.500001, 1.0, 0.0])
def test_a_delta_that_makes_every_bound_small(base, tmp_path, delta):
    assert (
        audited(base, edited(base, tmp_path, lambda content: content["options"].update(delta=delta))).status
        == "invalid"
    )


def test_the_best_of_many_seeds_is_the_issuers_word_without_a_commitment(tmp_path):
    x, y = noise(60, classes=2)
    best = None
    for seed in range(12):  # four hundred are no different
        learner = CoP2L(linear((6,), 2, seed)(), preset="cop2l", **OPTIONS, tasks=1, seed=seed)
        learner.learn(x, y)
        certificate = learner.certify({1: (x, y)})
        best = certificate if best is None or certificate.bounds[1] < best.bounds[1] else best
    best.save(tmp_path / "best")
    found = verify(tmp_path / "best", {1: (x, y)})
    assert UNCOMMITTED in found.assumed
    learner = CoP2L(linear((6,), 2, 99)(), preset="cop2l", **OPTIONS, tasks=1, seed=99)
    learner.learn(x, y)  # what was handed over before the data was seen
    assert verify(tmp_path / "best", {1: (x, y)}, commitment=learner.commitment()).status == "invalid"


def test_rows_sorted_so_that_the_hard_ones_are_set_aside_is_the_issuers_word(tmp_path):
    from cop2l.kernel.exact import certified_rows
    from cop2l.kernel.options import Options

    draw = np.random.default_rng(0)
    label, wrong = draw.integers(0, 2, 200), draw.random(200) < 0.3
    x = draw.normal(size=(200, 6)).astype(np.float32)
    x[np.arange(200), label] += 8
    aside = np.flatnonzero(~certified_rows(200, 1, Options(prior=0.6, kind="combined", buffer="count-only")))
    order = np.empty(200, np.int64)
    place = np.concatenate([aside, np.setdiff1d(np.arange(200), aside)])
    order[place] = np.argsort(~wrong, kind="stable")
    data = {1: (x[order], np.where(wrong, 1 - label, label)[order])}
    found = verify(issued(tmp_path, data, linear((6,), 2)(), seed=0), data)
    assert any("put in an order by one who knew the seed" in word for word in found.assumed)
