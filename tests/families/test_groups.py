"""Groups travel from a user's arrays, files and columns into certificates, and through the auditor's hands."""

import json

import numpy as np
import pytest
from family_runs import FAMILIES, GROUPS, QUICK, arrays, finished_run, write_data

import cop2l
from cop2l import CoP2L
from cop2l.certificates.certificate import read_certificate
from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.files import read_lines
from cop2l.models import build
from cop2l.streams import from_arrays, load

PICKING = {**QUICK, "method": "cop2l"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "mine.npz")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("runs") / "run", data, **PICKING)


def names_of(stream):
    """Which group each training row has, wherever the cut put it."""
    return {
        tuple(row): name
        for task, groups in zip(stream, stream.groups, strict=True)
        for row, name in zip(np.asarray(task.x), groups, strict=True)
    }


def expected():
    x, _, group = arrays()
    return {tuple(row): name for row, name in zip(x, group, strict=True)}


def test_names_stay_with_their_rows_through_cuts_slices_and_a_test_part():
    x, y, group = arrays()
    stream = from_arrays(x, y, x[:40], y[:40], groups=group, groups_test=group[:40], tasks=2)
    assert names_of(stream) == expected()
    assert names_of(stream[1:]) == {k: v for k, v in expected().items() if k in names_of(stream[1:])}
    assert [len(part) for part in stream[1:].groups] == [len(stream[1].y)]
    split = from_arrays(x, y, groups=group, tasks=2)
    assert [len(part) for part in split.test_groups] == [len(task.y) for task in split.test]
    assert names_of(split).items() <= expected().items()
    assert from_arrays(x, y, tasks=2).groups == ()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_names_the_groups_and_is_no_input(kind, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    x, y, group = arrays()
    table = pa.table({**{f"f{i}": x[:, i] for i in range(6)}, "label": y, "region": group})
    path = tmp_path / f"mine.{kind}"
    (csv.write_csv if kind == "csv" else parquet.write_table)(table, str(path))
    stream = load(path, group="region", tasks=2)
    assert stream[0].x.shape[1] == 6
    assert names_of(stream).items() <= expected().items()
    with pytest.raises(UserError, match=r"no column 'where'; choose with group= among"):
        load(path, group="where")


def test_the_auditor_counts_every_group_again(run, data, tmp_path):
    verdict = cop2l.verify(run, data, split={"tasks": 2})
    assert verdict.status == "valid", str(verdict)
    assert {s["family"] for s in verdict.statements} == set(FAMILIES)
    assert any('task 1, group "north"' in sentence for sentence in verdict.claim)
    by_task = tmp_path / "tasks.npz"
    stream = load(data, tasks=2)
    parts = {
        f"{k}_{t}": v for x, y, t in stream for k, v in zip("xyg", (x, y, stream.groups[t - 1]), strict=True)
    }
    np.savez(by_task, **parts)
    assert cop2l.verify(run, by_task).status == "valid"
    parts["g_1"] = np.array(["north" if name == "south" else "south" for name in parts["g_1"]])
    np.savez(by_task, **parts)
    assert "fingerprint" in " ".join(cop2l.verify(run, by_task).invalid)
    np.savez(by_task, **{name: value for name, value in parts.items() if name[0] != "g"})
    ungrouped = cop2l.verify(run, by_task)
    assert ungrouped.status == "cannot tell"
    assert "group" in " ".join(ungrouped.unverified).lower()


def test_counts_of_groups_are_those_of_the_data(run):
    record = read_certificate(run / "certificates" / "after-02").records[0]
    parts = {part["subject"]: part for part in record["parts"] if part["family"] == "groups"}
    assert sum(part["n"] for part in parts.values()) == record["n"]
    assert sum(part["errors"] for part in parts.values()) == record["errors"]
    assert set(parts) == set(GROUPS)
    rows = read_lines(run / "records.jsonl")[-1]["tasks"]
    assert set(rows[0]["test_groups"]) == set(GROUPS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": None, "group_test": None}, "Groups are claimed, but .* names none"),
        ({"group": np.array(["north"] * 239 + ["east"])}, "has the group 'east', which is not declared"),
        ({"group": np.array(["north"] * 7)}, "240 labels, 7 groups"),
    ],
)
def test_bad_groups_are_refused_before_anything_is_learned(changes, message, tmp_path):
    bad = write_data(tmp_path / "bad.npz", **changes)
    for more in ({**PICKING}, {"method": "replay", "holdout": 0.5, **QUICK}):
        with pytest.raises(UserError, match=message) as refusal:
            finished_run(tmp_path / "run", bad, **more)
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / "run" / "records.jsonl").exists()


def test_a_learner_told_wrong_groups_loses_nothing():
    x, y, group = arrays()
    learner = CoP2L(
        build("linear", inputs=(6,), classes=4, seed=0),
        preset="picking",
        memory=40,
        claim=("tasks", "groups"),
        groups=GROUPS,
    )
    learner.learn(x, y, groups=group)
    before = next(iter(learner.model.state_dict().values())).clone()
    for bad in (None, group[:3], np.where(group == "north", "east", group)):
        with pytest.raises(UserError, match=r"[Gg]roup"):
            learner.learn(x, y, groups=bad)
    assert learner.tasks_seen == 1
    assert (next(iter(learner.model.state_dict().values())) == before).all()
    learner.learn(x, y, groups=group)
    assert learner.tasks_seen == 2


def test_groups_that_nobody_claims_are_refused():
    x, y, group = arrays()
    learner = CoP2L(build("linear", inputs=(6,), classes=4, seed=0), preset="picking", memory=40)
    with pytest.raises(UserError, match=r"none are claimed; leave them out, or .* groups=\('A', 'B'\)\.$"):
        learner.learn(x, y, groups=group)
    assert learner.tasks_seen == 0


def test_the_command_line_runs_grows_and_verifies_groups(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "mine.toml"
    config.write_text(f'stream = "{data}"\ntasks = 2\nmodel = "linear"\nmemory = 40\nanytime = true\n')
    run = ["run", "mine.toml", "claim=tasks,groups", "groups=north,south", "method=cop2l", "epochs=2"]
    assert main([*run, "scenario=class-incremental", "--out", "run"]) == 0
    assert "Of group north in task 1 at most" in capsys.readouterr().out
    assert main(["verify", "run", "--data", str(data), "--tasks", "2"]) == 0
    x, y, group = arrays(seed=1)
    np.savez("third.npz", x=x, y=y, group=group)
    np.savez("bare.npz", x=x, y=y)
    capsys.readouterr()
    assert main(["learn", "run", "--data", "bare.npz", "--out", "grown"]) != 0
    assert "names none; add an array or a column named group" in capsys.readouterr().err
    assert not (tmp_path / "grown").exists()
    assert main(["learn", "run", "--data", "third.npz", "--out", "grown", "--json"]) == 0
    issued = json.loads(capsys.readouterr().out)
    assert [record["task"] for record in issued["records"]] == [1, 2, 3]
    of_groups = [statement for statement in issued["statements"] if statement["family"] == "groups"]
    assert {(s["task"], s["subject"]) for s in of_groups} == {(t, g) for t in (1, 2, 3) for g in GROUPS}
    lines = ["a,b,c,d,e,f,label,group"]
    lines += [",".join(map(str, [*row, label, name])) for row, label, name in zip(x, y, group, strict=True)]
    (tmp_path / "fourth.csv").write_text("\n".join(lines))
    assert main(["learn", "grown", "--data", "fourth.csv"]) == 0
    assert "Of group south in task 4 at most" in capsys.readouterr().out
    assert main(["predict", "grown", "--data", "fourth.csv"]) == 0


def test_groups_that_look_like_numbers_are_names(tmp_path):
    _, y, _ = arrays()
    years = 2019 + np.arange(len(y)) % 3 // 2
    path = write_data(tmp_path / "years.npz", group=years, group_test=None)
    run = finished_run(tmp_path / "run", path, groups=[2019, 2020], **PICKING)
    claimed = read_certificate(run / "certificates" / "after-02").statements
    assert {s["subject"] for s in claimed if s["family"] == "groups"} == {"2019", "2020"}
    assert cop2l.verify(run, path, split={"tasks": 2}).status == "valid"
