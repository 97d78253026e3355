"""Rows that come again: found in every guise, told from honest repeats of discrete data, and void only what falls."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_cases import model_of

from cop2l import CoP2L, verify
from cop2l.cli import main
from cop2l.errors import Advice
from cop2l.learner.repeats import count_shared_rows, row_hashes, shared_row_findings
from cop2l.streams import synthetic
from cop2l.text import refuted_tasks

OPTIONS = {"memory": 60, "optimiser": "adam", "lr": 0.05, "epochs": 20, "max_iterations": 2}
ORDER = np.random.default_rng(5).permutation(300)


def clouds(seed, n=300):
    """Two classes that a line separates."""
    y = np.random.default_rng(seed).integers(0, 2, size=n)
    return np.random.default_rng(seed).normal(size=(n, 4)) + 4 * y[:, None] - 2, y


def a_learner(**changes):
    return CoP2L(model_of("linear", 2, inputs=4), **OPTIONS, **changes)


def reasons(learner, x, y):
    """What `learn` warns of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", Advice)
        learner.learn(x, y)
    return [str(warning.message) for warning in warned]


GUISES = {
    "again": lambda x, y: (x, y),
    "shuffled": lambda x, y: (x[ORDER], y[ORDER]),
    "without a row": lambda x, y: (x[1:], y[1:]),
    "cast": lambda x, y: (x[ORDER].astype(np.float32), y[ORDER].astype(np.int32)),
    "as a tensor": lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
    "a tenth of it": lambda x, y: tuple(
        np.concatenate(two) for two in zip((x[:30], y[:30]), clouds(9, 270), strict=True)
    ),
}


@pytest.mark.parametrize("guise", GUISES)
def test_rows_of_an_earlier_task_void_the_bounds_of_both(guise, tmp_path):
    learner, data = a_learner(claim=("tasks", "average")), {t: clouds(t) for t in (1, 2)}
    assert [reasons(learner, *data[t]) for t in data] == [[], []]
    learner.save(tmp_path)
    learner = CoP2L.load(tmp_path)  # the data is gone
    data[3] = GUISES[guise](*data[1])
    (reason,) = reasons(learner, *data[3])
    assert "rows of task 3 are rows of task 1 too" in reason
    certificate = learner.certify(data)
    assert certificate.not_valid == (reason,)
    assert certificate.bounds[1] == certificate.bounds[3] == certificate.statements[-1]["value"] == 1.0
    assert certificate.bounds[2] < 0.2  # the others stand
    assert (certificate.information(1), bool(certificate.information(2))) == ({}, True)
    certificate.save(tmp_path / "issued")
    verdict = verify(tmp_path / "issued", data)
    assert (verdict.status, len(verdict.invalid)) == ("invalid", 1)
    assert reason in verdict.invalid[0]


def test_copies_within_a_task(tmp_path):
    x, y = clouds(0)
    rows = np.arange(300)
    assert reasons(a_learner(), x[rows % 299], y[rows % 299]) == []  # a single one
    learner = a_learner()
    (said,) = reasons(learner, x[rows % 200], y[rows % 200])
    assert said.startswith("100 of the 300 rows of task 1 repeat another and count as errors")
    assert "declare repeats=True" in said
    learner.learn(*clouds(1))
    learner.save(tmp_path)
    data = {1: (x[rows % 200], y[rows % 200]), 2: clouds(1)}
    found = learner.certify(data)
    assert (1 / 3 < found.bounds[1] < 0.6, found.bounds[2] < 0.2, found.not_valid) == (True, True, ())
    with pytest.warns(Advice, match="Rows of task 1 repeat another, and its bound is 100 %"):
        gone = CoP2L.load(tmp_path).certify({2: data[2]})  # what nothing can count
    assert (gone.bounds[1], gone.bounds[2] < 0.2) == (1.0, True)
    paper = CoP2L(model_of("linear", 2, inputs=4), preset="paper", memory=60, tasks=1, max_iterations=2)
    reasons(paper, *data[1])
    with pytest.warns(Advice, match="of other kinds than kl"):
        assert paper.certify({1: data[1]}).bounds[1] == 1.0
    declared = a_learner(repeats=True)
    assert reasons(declared, *data[1]) == []
    declared.save(tmp_path)
    assert reasons(CoP2L.load(tmp_path), *clouds(1)) == []
    assert CoP2L.load(tmp_path).state.repeats


def test_a_copy_that_was_an_error_before_counts_as_lost(tmp_path):
    x, draws = np.repeat(clouds(1, 40)[0], 10, axis=0), np.random.default_rng(7)
    data = {1: (x, np.repeat(draws.integers(0, 2, 40), 10)), 2: clouds(2)}  # labels that nothing predicts
    learner = a_learner(claim=("tasks", "forgetting"), tasks=2)
    for task in data.values():
        learner.learn(*task)
    certificate = learner.certify(data)
    certificate.save(tmp_path)
    lost, gained = certificate.records[0]["parts"]
    assert learner.state.claim_columns[0]["wrong"].mean() > 0.2
    assert lost["subject"] == "lost"
    assert lost["errors"] >= lost["n"] - 40
    assert gained["errors"] <= 40
    assert verify(tmp_path, data).status == "valid"


@pytest.mark.parametrize(
    ("n", "levels", "dimensions"), [(50, 5, 4), (500, 5, 4), (2000, 9, 4), (500, 5, 2), (500, 3, 2)]
)
def test_discrete_data_repeats_honestly(n, levels, dimensions):
    for seed in range(5):
        hashes = []
        for x, _, t in synthetic(n=n, levels=levels, dimensions=dimensions, seed=seed):
            rows = row_hashes(x, torch.zeros(1), 0)
            assert [*shared_row_findings(t, rows, hashes)] == []
            hashes.append(rows)
        assert count_shared_rows(
            np.random.default_rng(0).permutation(hashes[0])[1:], hashes[0]
        )  # and learned twice does not


def test_counts_of_independent_draws_are_not_mistaken():
    draws = np.random.default_rng(0)
    for n, m in ((1000, 1000), (100, 5000)):
        for cells in (100, 10**4, 10**6):
            tries = [draws.integers(0, cells, n + m).astype(np.uint64) for _ in range(100)]
            assert sum(count_shared_rows(one[:n], one[n:]) > 0 for one in tries) <= 2


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64", "uint8"])
def test_rows_of_every_type_are_told_apart(kind):
    x = np.arange(5000 * 3).reshape(5000, 3) % 251
    x = np.concatenate([x, np.arange(5000)[:, None] // 251], 1).astype(kind)
    hashes = row_hashes(x, torch.zeros(1), 0)
    assert len(np.unique(hashes)) == 5000
    assert (hashes == row_hashes(torch.from_numpy(x), torch.zeros(1), 0)).all()
    assert not np.isin(hashes, row_hashes(x, torch.zeros(1), 1)).any()  # the key
    fine = np.random.default_rng(0).normal(size=(50, 3))
    assert (
        row_hashes(fine, torch.zeros(1), 0) == row_hashes(fine.astype(np.float32), torch.zeros(1), 0)
    ).all()
    assert (
        row_hashes(fine, torch.zeros(1).double(), 0)
        != row_hashes(fine.astype(np.float32), torch.zeros(1).double(), 0)
    ).all()


@pytest.mark.parametrize(("scenario", "classes"), [("task-incremental", [1]), ("domain-incremental", None)])
def test_one_class_per_task(scenario, classes):
    learner, (x, y) = a_learner(scenario=scenario), clouds(0)
    with pytest.warns(Advice, match="one class"):
        learner.learn(x[y == 1], y[y == 1], classes=classes)
    assert "one class" in learner.certify({1: (x[y == 1], y[y == 1])}).not_valid[0]


@pytest.mark.parametrize(
    "method", [("method=cop2l", "max_iterations=2"), ("method=slda", "model=linear", "holdout=0.4")]
)
def test_a_run_says_first_that_it_disowns_its_claim(method, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = clouds(0)
    np.savez(
        "own.npz",
        x=np.concatenate([x, x[ORDER]]),
        y=np.concatenate([y, y[ORDER]]),
        domain=np.repeat([0, 1], 300),
    )
    assert main(["run", "own.npz", *method, "--out", "run"]) == 0
    out = capsys.readouterr()
    assert out.out.index("NOT VALID: ") < out.out.index("certified on")
    assert "certified error" not in out.out + out.err
    assert json.loads(Path("run/summary.json").read_text())["not_valid"]
    assert main(["show", "run"]) == 0
    assert capsys.readouterr().out.startswith("NOT VALID: ")
    assert main(["verify", "run", "--data", "own.npz"]) == 1
    assert capsys.readouterr().out.startswith(
        "INVALID: do not rely on this certificate.\nWrong:\n  The certificate declares itself not valid: "
    )
    assert main(["report", "run", "--out", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert page.index("Certificates not valid: ") < page.index("<h1>")
    assert "Certified" not in page[page.index("<h1>") : page.index("</h1>")]


def test_a_test_part_that_refutes_the_claim_is_a_reason():
    row = {"task": 1, "test_error": 0.2, "test_n": 500, "bounds": {"preference": 0.1, "kl": 0.1}}
    (reason,) = refuted_tasks([row], "preference")
    assert reason.startswith(
        "The test part refutes the claim. Task 1: the test error, 20.00 %, is above the claim, 10.01 %"
    )
    assert refuted_tasks([row | {"bounds": {"kl": 0.0}}], "kl")  # the p-value is 0
    assert refuted_tasks([row | {"test_error": 0.11}], "preference") == refuted_tasks([row], None) == []
