import json
from pathlib import Path

import numpy as np
import pytest

from cop2l.cli import main
from cop2l.experiments import grid, learners
from cop2l.learner.cop2l import CoP2L
from cop2l.text import percent

RUN = [
    "method=cop2l",
    "data.n=100",
    "architecture.hidden=16",
    "memory=30",
    "epochs=5",
    "lr=0.3",
    "scenario=domain-incremental",
]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run of two tasks, whose learner can learn more, and the files of three tasks."""
    folder = tmp_path_factory.mktemp("life")
    assert main(["run", "synthetic", *RUN, "tasks=2", "anytime=true", "--out", str(folder / "run")]) == 0
    stream = learners.load_stream(
        grid.single_run(grid.read_configuration("synthetic"), grid.overrides([*RUN, "tasks=3"]))
    )
    for x, y, t in stream:
        np.savez(folder / f"{t}.npz", x=x, y=y)
    x, y, _ = stream[2]
    rows = np.column_stack([x[:, :2], y, x[:, 2:]])
    np.savetxt(folder / "3.csv", rows, delimiter=",", header="a,b,kind,c,d", comments="")
    np.save(folder / "unlabelled.npy", stream.test[2].x)
    np.savez(folder / "test.npz", x=stream.test[2].x, y=stream.test[2].y)
    return folder, stream


def test_learn_adds_a_task_and_a_certificate_and_predict_uses_it(before, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, stream = before
    capsys.readouterr()
    arguments = ["learn", str(folder / "run"), "--data", str(folder / "3.npz"), "--out", "grown"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("Learned task 3; saved in grown.\n")
    assert "With probability at least 95 %" in out

    # The library does the same.
    learner = CoP2L.load(folder / "run" / "state")
    learner.learn(stream[2].x, stream[2].y)
    assert Path("grown/learner.safetensors").exists()
    grown = CoP2L.load("grown")
    assert all(
        np.array_equal(mine, theirs)
        for mine, theirs in zip(
            learner.model.state_dict().values(), grown.model.state_dict().values(), strict=True
        )
    )
    kinds = [statement["kind"] for statement in grown.certificate.statements]
    assert kinds == ["buffer", "buffer", "preference"]  # the data of the first two is gone
    rows = [line.split() for line in out.splitlines()[2:5]]
    sizes = [
        str(record[name])
        for record, name in zip(grown.certificate.records, ("selected", "selected", "n"), strict=True)
    ]
    assert [row[1] for row in rows] == sizes

    assert main(["report", "grown", "--out", "report.html"]) == 0
    assert capsys.readouterr().out == "report.html: 0 runs and 1 saved learner on one page\n"
    page = Path("report.html").read_text()
    assert "<h3><code>grown</code></h3>" in page
    assert "<span>cop2l</span> <span>verify</span> <span>grown</span>" in page
    assert f"at most {percent(max(grown.certificate.bounds.values()))} error on every task" in page

    assert main(["predict", "grown", "--data", str(folder / "unlabelled.npy")]) == 0
    printed = capsys.readouterr()
    expected = grown.predict(stream.test[2].x).tolist()
    assert [int(line) for line in printed.out.split()] == expected
    assert printed.err == ""

    assert main(["predict", "grown", "--data", str(folder / "test.npz"), "--out", "classes.npy"]) == 0
    right = np.mean(np.array(expected) == stream.test[2].y)
    assert capsys.readouterr().err == f"accuracy {100 * right:.2f} % on 200 examples\n"
    assert np.load("classes.npy").tolist() == expected
    assert main(["predict", "grown", "--data", str(folder / "test.npz"), "--out", "classes.txt"]) == 0
    assert Path("classes.txt").read_text().split() == ["predicted", *map(str, expected)]


def test_earlier_tasks_are_certified_by_their_archived_data(before, tmp_path, capsys):
    folder, _ = before
    capsys.readouterr()
    arguments = ["learn", str(folder / "run"), "--data", str(folder / "3.csv"), "--label", "kind", "--json"]
    arguments += ["--archive", f"1={folder / '1.npz'}", "--out", str(tmp_path / "grown")]
    assert main(arguments) == 0
    issued = json.loads(capsys.readouterr().out)
    assert [statement["kind"] for statement in issued["statements"]] == ["preference", "buffer", "preference"]


def test_a_saved_learner_grows_in_place_and_a_baseline_too(before, tmp_path, capsys):
    folder, _ = before
    state = tmp_path / "learner"
    CoP2L.load(folder / "run" / "state").save(state)
    assert main(["learn", str(state), "--data", str(folder / "3.npz")]) == 0
    assert CoP2L.load(state).tasks_seen == 3
    run = [
        "run",
        "synthetic",
        "data.n=100",
        "scenario=domain-incremental",
        "tasks=2",
        "method=replay",
        "holdout=0",
    ]
    assert main([*run, "--out", str(tmp_path / "replay")]) == 0
    capsys.readouterr()
    replay = str(tmp_path / "replay")
    assert main(["learn", replay, "--data", str(folder / "3.npz"), "--out", str(tmp_path / "more")]) == 0
    assert capsys.readouterr().out == f"Learned task 3; saved in {tmp_path / 'more'}.\n"
    assert main(["predict", str(tmp_path / "more"), "--data", str(folder / "test.npz")]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["learn", "{run}", "--data", "{3.npz}"],
            "belongs to a run, which must not change; name a new folder",
        ),
        (["learn", "{nowhere}", "--data", "{3.npz}"], "There is no saved learner in"),
        (["learn", "{stopped}", "--data", "{3.npz}"], "There is no saved learner in"),
        (["learn", "{run}", "--out", "x", "--data", "{4.npz}"], "There is no file"),
        (["learn", "{run}", "--out", "x", "--data", "{unlabelled.npy}"], "has no labels; add y"),
        (["learn", "{run}", "--out", "x", "--data", "{3.csv}"], "has no labels"),
        (
            ["learn", "{run}", "--out", "x", "--data", "{3.npz}", "--classes", "a"],
            "classes must be class numbers",
        ),
        (
            ["learn", "{run}", "--out", "x", "--data", "{3.npz}", "--classes", "0,9"],
            "classes must name outputs of the model",
        ),
        (["learn", "{run}", "--out", "x", "--data", "{3.npz}", "--archive", "one"], "as T=PATH"),
        (
            ["learn", "{run}", "--out", "x", "--data", "{3.npz}", "--archive", "²={1.npz}"],
            "no earlier task ²",
        ),
        (["predict", "{run}", "--data", "{none.npz}"], "without examples; give at least one"),
        (["predict", "{run}", "--data", "{bad.npz}"], "is not a readable .npz file of plain arrays"),
    ],
)
def test_wrong_input_gets_one_sentence_and_exit_code_2(
    before, tmp_path, monkeypatch, capsys, arguments, sentence
):
    folder, _ = before
    monkeypatch.chdir(tmp_path)
    (folder / "bad.npz").write_bytes(b"PK nonsense")
    np.savez(folder / "none.npz", x=np.zeros((0, 4)), y=np.zeros(0, int))
    (folder / "stopped").mkdir(exist_ok=True)
    (folder / "stopped" / "lock").write_text("of a run that did not begin")
    places = [argument.replace("{", f"{folder}/").replace("}", "") for argument in arguments]
    capsys.readouterr()
    assert main(places) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert not Path("x").exists()


@pytest.mark.parametrize("number", ["0", "3", "9"])
def test_data_of_a_task_that_is_none_is_refused_before_anything_is_learned(
    before, tmp_path, monkeypatch, capsys, number
):
    folder, _ = before
    monkeypatch.setattr(CoP2L, "learn", None)
    arguments = ["--data", str(folder / "3.npz"), "--archive", f"{number}={folder / '1.npz'}"]
    capsys.readouterr()
    assert main(["learn", str(folder / "run"), *arguments, "--out", str(tmp_path / "x")]) == 2
    said = f"cop2l: There is no earlier task {number}; the learner has learned 2 tasks.\n"
    assert capsys.readouterr().err == said
