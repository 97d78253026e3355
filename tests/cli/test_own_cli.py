"""Own data on the command line: run by its path, verified, and with a configuration from `cop2l init`."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cop2l.cli import main
from cop2l.experiments import grid
from cop2l.experiments.saved_learner import Exported
from cop2l.files import read_json

pytestmark = pytest.mark.usefixtures("somewhere")
STEP = "lr=0.003"
AS_TYPED = ("--tasks", "1", "--scenario", "class-incremental")


def arrays(scale=1.0):
    """240 examples of four separate clouds."""
    y = np.arange(240) % 4
    centres = 4 * np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    x = centres[y] + np.random.default_rng(0).normal(size=(240, 3)) / 2
    return (scale * x).astype(np.float32), y


def table(path):
    """The clouds as a table with named labels, a region and a remark."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    x, y = arrays()
    columns = {name: x[:, i] for i, name in enumerate(("length", "width", "depth"))}
    columns |= {"remark": ["fine"] * 240, "region": ["north", "south"] * 120}
    write = csv.write_csv if path.endswith(".csv") else parquet.write_table
    write(pa.table({**columns, "target": [f"kind {label}" for label in y]}), path)


def error_sentence(capsys):
    """The sentence on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(".")
    return line


def wild():
    """The clouds with columns of other scales, one of them far from 0, and a heavy-tailed column of noise."""
    x, y = arrays()
    noise = np.exp(4 * np.random.default_rng(1).normal(size=240))
    return np.column_stack([x * [1e-4, 1.0, 1e5] + [0, 300, 0], noise]).astype(np.float32), y


@pytest.mark.parametrize("make", [arrays, wild])
def test_arrays_are_run_by_their_path_and_verified(make, capsys):
    x, y = make()
    Path("own").mkdir()
    np.savez("own/clouds.npz", x=x, y=y)
    assert main(["run", "own/clouds.npz", "--out", "here"]) == 0
    config, summary = read_json("here/config.json"), read_json("here/summary.json")
    assert (config["name"], config["stream"], config["tasks"]) == ("clouds", "own/clouds.npz", 1)
    assert (config["model"], config["method"], config["holdout"]) == ("mlp", "weighted-replay", 0.5)
    assert (config["scale"], config["options"]["lr"]) == (["fitted"], 0.001)
    printed = capsys.readouterr()
    assert "Warning" not in printed.err
    assert min(summary["matrix"][-1]) > 0.9
    assert max(row["bounds"]["holdout"] for row in summary["tasks"]) < 0.25
    assert main(["verify", "here", "--data", "own/clouds.npz", *AS_TYPED]) == 0
    np.savez("own/clouds.npz", x=x[::-1], y=y)
    assert main(["verify", "here", "--data", "own/clouds.npz", *AS_TYPED]) == 1
    capsys.readouterr()


@pytest.mark.parametrize("path", ["clouds.csv", "clouds.parquet"])
def test_columns_label_and_groups_of_a_table(path, capsys):
    table(path)
    chosen = ["label=target", "columns=length,width,depth", "group=region", STEP]
    assert main(["run", path, *chosen, "claim=groups", "groups=north,south", "--out", "here"]) == 0
    config = read_json("here/config.json")
    assert config["data"] == {"label": "target", "columns": ["length", "width", "depth"], "group": "region"}
    capsys.readouterr()
    flags = ["--label", "target", "--columns", "length,width,depth", "--group", "region", *AS_TYPED]
    assert main(["verify", "here", "--data", path, *flags, "--json"]) == 0
    assert {s["family"] for s in json.loads(capsys.readouterr().out)["statements"]} == {"groups"}


def test_text_is_run_verified_learned_further_and_predicted(capsys):
    phrases = ("cheap thin screw", "solid oak table", "sweet red apple", "fast quiet train")
    lines = [f"{phrases[i % 4]} of item{i:03d},{i % 4}" for i in range(240)]
    Path("reviews.csv").write_text("\n".join(["review,label", *lines]))
    flags = ["text=review", "text_size=512", "anytime=true", STEP]
    assert main(["run", "reviews.csv", *flags, "--out", "here"]) == 0
    assert min(read_json("here/summary.json")["matrix"][-1]) > 0.9
    flags = ["--text", "review", "--text-size", "512", *AS_TYPED]
    assert main(["verify", "here", "--data", "reviews.csv", *flags]) == 0
    new_lines = [f"{phrases[i % 2]} again item{i:03d},{i % 2}" for i in range(60)]
    Path("more.csv").write_text("\n".join(["review,label", *new_lines]))
    as_text = ["--data", "more.csv"]  # the run knows which column is text
    assert main(["learn", "here", *as_text, "--out", "next"]) == 0
    capsys.readouterr()
    assert main(["predict", "next", *as_text, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.9
    assert main(["export", "next", "--to", "service"]) == 0
    capsys.readouterr()
    assert main(["predict", "service", "--data", "more.csv", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert main(["predict", "next", "--data", "more.csv", "--json"]) == 0
    assert exported == json.loads(capsys.readouterr().out)
    rows = [{"review": line.partition(",")[0]} for line in new_lines[:4]]
    assert Exported("service").predict_names(rows) == exported["classes"][:4]
    capsys.readouterr()
    for command in (["learn", "service", *as_text, "--out", "new"], ["export", "service", "--to", "new"]):
        assert main(command) == 2
        assert "a saved learner or, to predict, an export" in error_sentence(capsys)
    Path("other.csv").write_text("remark,label\ngood,1\n")
    assert main(["predict", "next", "--data", "other.csv"]) == 2
    assert (
        "lacks 'review' and has also 'remark'; give the columns that were learned: review."
        in error_sentence(capsys)
    )


def test_a_configuration_for_text(capsys):
    Path("reviews.csv").write_text("review,label\n" + "\n".join(f"good {i},{i % 2}" for i in range(40)))
    assert main(["init", "reviews.csv"]) == 0
    assert tomllib.loads(Path("reviews.toml").read_text())["data"] == {"label": "label", "text": ["review"]}
    capsys.readouterr()


def test_a_domain_makes_the_tasks():
    x, y = arrays()
    np.savez("clouds.npz", x=x, y=y, domain=np.arange(240) // 80)
    assert main(["run", "clouds.npz", STEP, "--out", "here"]) == 0
    config = read_json("here/config.json")
    assert (config["scenario"], config["tasks"]) == ("domain-incremental", 3)


def test_what_is_typed_wins_over_the_neutral_settings():
    np.savez("clouds.npz", **dict(zip("xy", arrays(), strict=True)))
    chosen = grid.single_run(
        grid.read_configuration("clouds.npz"), grid.overrides(["method=cop2l", "model=linear", "lr=.1"])
    )
    assert (chosen.model, chosen.architecture) == ("linear", {})
    assert (chosen.scale, chosen.options) == (("fitted",), {"lr": 0.1})
    replay = grid.single_run(
        grid.read_configuration("clouds.npz"), grid.overrides(["method=replay", "scale=0,0.5"])
    )
    assert (replay.scale, replay.options) == ((0.0, 0.5), {"lr": 0.1})
    assert grid.single_run(grid.read_configuration("clouds.npz"), grid.overrides(["scale=none"])).scale == ()


def test_other_methods_have_the_same_scale(capsys):
    x, y = wild()
    np.savez("clouds.npz", x=x, y=y)
    scales = []
    for name in ("weighted-replay", "replay"):
        assert main(["run", "clouds.npz", f"method={name}", "holdout=0.2", "--out", name]) == 0
        state = load_file(f"{name}/state/method.safetensors")
        scales.append(next(v for key, v in state.items() if key.endswith("scale.factor")))
        assert main(["verify", name, "--data", "clouds.npz", *AS_TYPED]) == 0
    assert (scales[0] == scales[1]).all()
    capsys.readouterr()


def test_what_is_set_can_be_committed_to(capsys):
    np.savez("clouds.npz", **dict(zip("xy", wild(), strict=True)))
    assert main(["commit", "clouds.npz"]) == 0
    assert main(["run", "clouds.npz", "--commitment", "commitment.json", "--out", "here"]) == 0
    assert main(["verify", "here", "--data", "clouds.npz", *AS_TYPED, "--commitment", "commitment.json"]) == 0
    capsys.readouterr()


def test_inputs_are_scaled_by_given_constants(capsys):
    x, y = arrays(1000.0)
    np.savez("clouds.npz", x=x, y=y)
    assert main(["run", "clouds.npz", "scale=0,0.001", STEP, "--out", "here"]) == 0
    assert min(read_json("here/summary.json")["matrix"][-1]) > 0.9
    assert read_json("here/environment.json")["model"]["scale"] == [0.0, 0.001]
    assert main(["verify", "here", "--data", "clouds.npz", *AS_TYPED]) == 0
    assert '"scale": [0.0, 0.001]' in capsys.readouterr().out


def test_a_name_is_a_configuration_and_a_path_is_data():
    Path("digits").mkdir()
    np.save("digits/x.npy", arrays()[0])
    np.save("digits/y.npy", arrays()[1])
    np.savez("clouds@home.npz", x=arrays()[0], y=arrays()[1])
    assert grid.single_run(grid.read_configuration("digits")).stream == "digits"
    assert grid.single_run(grid.read_configuration("digits")).memory == 200
    assert grid.single_run(grid.read_configuration("./digits")).stream == "./digits"
    assert grid.single_run(grid.read_configuration("./digits")).memory == 2000
    assert grid.single_run(grid.read_configuration("clouds@home.npz")).model == "mlp"


def test_a_class_is_reserved_and_comes_later(capsys):
    x, y = arrays()
    np.savez("early.npz", x=x[y < 3], y=y[y < 3])
    np.savez("late.npz", x=x[y == 3], y=y[y == 3])
    flags = ["classes=4", "task_classes=[[0, 1], [2]]", "anytime=true", STEP, "--out", "early"]
    assert main(["run", "early.npz", *flags]) == 0
    assert main(["learn", "early", "--data", "late.npz", "--out", "late", "--classes", "3"]) == 0
    assert "Learned task 3" in capsys.readouterr().out


def test_names_of_classes_and_columns_come_from_the_run(capsys):
    """Permuted columns are reordered by name."""
    table("clouds.csv")
    flags = ["columns=length,width,depth", "label=target", "anytime=true", STEP, "--out", "here"]
    assert main(["run", "clouds.csv", *flags]) == 0
    lines = [line.split(",") for line in Path("clouds.csv").read_text().splitlines()]
    Path("turned.csv").write_text("\n".join(",".join(line[::-1]) for line in lines))
    capsys.readouterr()
    for state, file in (("here", "clouds.csv"), ("here", "turned.csv"), ("here/state", "turned.csv")):
        assert main(["predict", state, "--data", file]) == 0
        printed = capsys.readouterr()
        assert set(printed.out.splitlines()) == {f"kind {label}" for label in range(4)}
        assert float(printed.err.split()[1]) > 90
    assert main(["predict", "here", "--data", "turned.csv", "--json", "--probabilities"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["names"] == ["kind 0", "kind 1", "kind 2", "kind 3"]
    assert answer["classes"] == [answer["names"][number] for number in answer["numbers"]]
    assert [int(np.argmax(row)) for row in answer["probabilities"]] == answer["numbers"]

    assert main(["learn", "here", "--data", "turned.csv", "--out", "later"]) == 0
    assert main(["learn", "later", "--data", "clouds.csv"]) == 0  # in place: they stay there, too
    capsys.readouterr()
    assert main(["predict", "later", "--data", "turned.csv", "--probabilities"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "predicted,kind 0,kind 1,kind 2,kind 3"
    assert {row.split(",")[0] for row in rows} == {f"kind {label}" for label in range(4)}
    Path("narrow.csv").write_text("length,width\n1,2\n")
    assert main(["predict", "here", "--data", "narrow.csv"]) == 2
    assert "lacks 'depth'; give the columns that were learned: length, width, depth." in error_sentence(
        capsys
    )


def test_gaps_categories_and_the_order_of_tasks(capsys):
    """The learned rows of the first task fix the width of a table with gaps; tasks are named in the order of the file."""
    rng, lines = np.random.default_rng(0), ["age;size;city;branch;label"]
    for branch in ("Bern", "Zürich", "Genf"):
        for i in range(150):
            label, noise = i % 2, rng.normal()
            age = "" if i % 7 == 0 else f"{20 + 30 * label + noise:.2f}".replace(".", ",")
            lines.append(
                f"{age};{f'{rng.normal():.6f}'.replace('.', ',')};{('Rom', 'Ulm')[label]};{branch};{('no', 'yes')[label]}"
            )
    Path("people.csv").write_text("\n".join(lines))
    assert main(["run", "people.csv", "domain=branch", STEP, "anytime=true", "--out", "here"]) == 0
    kept = read_json("here/environment.json")["stream"]
    assert kept["task_names"] == ["Bern", "Zürich", "Genf"]
    age, _, city = kept["inputs"]["columns"]
    assert (age["kind"], age["indicator"], city["values"]) == ("number", True, ["Rom", "Ulm"])
    assert 'task 3/3 ("Genf")  accuracy' in (live := capsys.readouterr().out)
    assert '\n2 ("Zürich")  ' in live
    assert read_json("here/summary.json")["task_names"] == ["Bern", "Zürich", "Genf"]
    assert main(["show", "here"]) == 0
    assert '2 ("Zürich")' in capsys.readouterr().out
    Path("feedback.csv").write_text("task,error\nBern,1\nGenf,0\nGenf,1\n")
    assert main(["monitor", "here", "--task", "Genf", "--state", "state.json", "feedback.csv", "--json"]) == 0
    assert (watched := json.loads(capsys.readouterr().out))["statement"]["task"] == 3
    assert (watched["n"], watched["errors"]) == (2, 1)
    assert main(["monitor", "here", "--task", "Chur", "--state", "state.json"]) == 3
    assert "no task named 'Chur'; choose one of: 'Bern', 'Zürich', 'Genf'" in capsys.readouterr().err
    assert main(["report", "here", "--out", "page.html"]) == 0
    assert ">2 (&#34;Zürich&#34;)</td>" in Path("page.html").read_text()  # in the tables of the figures
    assert "the best of up to a million settings" in Path("page.html").read_text()
    turned = [";".join(line.split(";")[::-1]) for line in lines]  # columns are known by their names
    Path("turned.csv").write_text("\n".join(turned))
    assert main(["export", "here", "--to", "service", "--data", "people.csv"]) == 0
    assert 'The error rate on task 2 ("Zürich") is at most' in capsys.readouterr().out
    Path("ragged.csv").write_text(f"{Path('people.csv').read_text()}\n1;2")
    assert main(["predict", "here", "--data", "ragged.csv"]) == 2
    assert "not a readable .csv file (Expected 5 columns, got 2: 1;2)" in capsys.readouterr().err
    flags = ["--domain", "branch", "--scenario", "domain-incremental", "--tasks", "3"]
    for file in ("people.csv", "turned.csv"):
        assert main(["verify", "here", "--data", file, *flags]) == 0
        assert '"Genf"' in capsys.readouterr().out
    Path("fewer.csv").write_text("\n".join(line.partition(";")[2] for line in lines))
    assert main(["verify", "here", "--data", "fewer.csv", *flags]) == 1
    assert "lacks the columns ['age']" in capsys.readouterr().out
    Path("other.csv").write_text(Path("people.csv").read_text().replace("Genf", "Gent"))
    assert main(["verify", "here", "--data", "other.csv", *flags]) == 1
    assert "The names of the tasks are not those of the data." in capsys.readouterr().out
    Path("new.csv").write_text("city;size;age\nRom;0;\nUlm;0;51,0\nParis;0;20,5\n")
    assert main(["predict", "here", "--data", "new.csv"]) == 0
    assert capsys.readouterr().out.split() == ["no", "yes", "no"]
    later = Path("people.csv").read_text().splitlines()[:151]
    Path("later.csv").write_text("\n".join(later).replace("Bern", "Chur").replace(",", ",1"))
    Path("genf.csv").write_text("\n".join([lines[0], *(line for line in lines if "Genf" in line)]))
    assert main(["learn", "here", "--data", "later.csv", "--out", "grown", "--classes", "no,maybe"]) == 2
    assert "no class named 'maybe'; choose one of: 'no', 'yes'" in capsys.readouterr().err
    for file, names in (("people.csv", "'Bern', 'Zürich', 'Genf'"), ("later.csv", "")):
        grown = ["--out", "grown", "--archive", "Bern=genf.csv"]
        assert main(["learn", "here", "--data", file, *grown]) == 2  # not what Bern was
        assert main(["learn", "here", "--data", file, *grown[:2]]) == (2 if names else 0)
        assert names in (printed := capsys.readouterr()).err
    assert '\n  4 ("Chur")  ' in printed.out
    Path("bad.csv").write_text("city;size;age\nRom;0;1e1\nUlm;0;old\n")
    assert main(["predict", "grown", "--data", "bad.csv"]) == 2
    assert "holds numbers, but 'old' in row 2" in capsys.readouterr().err
    listed = ["task_order=Genf,Bern,Zürich", "domain=branch", STEP, "--out", "there"]
    assert main(["run", "people.csv", *listed]) == 0
    assert read_json("there/environment.json")["stream"]["task_names"] == ["Genf", "Bern", "Zürich"]


def test_a_run_that_cannot_begin_leaves_nothing_behind(capsys):
    table("clouds.csv")
    Path("mine").mkdir()
    for folder in ("runs/new", "mine"):
        assert main(["run", "clouds.csv", "--out", folder]) == 2
        assert "no column 'label'" in error_sentence(capsys)
    assert not Path("runs/new").exists()
    assert list(Path("mine").iterdir()) == []


def test_pictures_are_resized_and_one_task_is_one(capsys):
    pillow = pytest.importorskip("PIL.Image")
    for number in range(40):
        folder = Path("pictures") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(np.full((8, 8), number + 100 * (number % 2), np.uint8)).save(
            folder / f"{number}.png"
        )
    assert main(["run", "pictures", "size=12", "--out", "here"]) == 0
    assert "(class-incremental, 1 task)" in capsys.readouterr().out
    assert read_json("here/config.json")["data"]["size"] == 12
    assert main(["predict", "here", "--data", "pictures/b"]) == 0  # pictures without labels
    assert len(capsys.readouterr().out.split()) == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "own/none.npz"], "no file or folder own/none.npz; give the path of your data"),
        (["run", "none.csv"], "no file or folder none.csv"),
        (["run", "clouds.csv"], "no column 'label'; choose with label= among: length, width"),
        (["run", "clouds.csv", "label=target", "columns=length", "tasks=3"], "or list the classes of each task with task_"),
        (["run", "mnist", "label=target"], "mnist has fixed labels and a test part; leave out label"),
        (["run", "clouds.csv", "scale=1"], "scale is 1.0; give fitted, or a shift and a factor"),
        (["run", "clouds.csv", "method=cop2l", "prepare=0"], "All examples certify, so none can scale the inputs"),
        (["run", "clouds.csv", "gamma=high"], "gamma"),
        (["run", "clouds.csv", "label=target", "columns=length", "architecture.scale=fitted"], "scale out, or set scale=."),
        (["run", "clouds.csv", "label=target", "columns=length", "architecture.classes=3"], "leave architecture.classes out."),
        (["init", "none.csv"], "no file or folder none.csv; give the path of your data"),
        (["init", "notes.txt"], "notes.txt is no data file; write .npz"),
        (["init", "days.csv"], "days.csv has no column of numbers, arrays, pictures or text beside 'label'"),
        (["init", "."], ". holds no arrays, tables or pictures"),
        (["init", "clouds.csv", "--out", "my.ini"], "name it my.toml rather than my.ini"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence(arguments, sentence, capsys):
    table("clouds.csv")
    Path("notes.txt").write_text("nothing")
    Path("days.csv").write_text("day,label\n2026-01-01,1\n2026-01-02,0\n")
    assert main(arguments) == 2
    assert sentence in error_sentence(capsys)
    assert not list(Path().glob("*.toml"))


@pytest.mark.parametrize("path", ["clouds.csv", "clouds.parquet"])
def test_init_writes_what_runs(path, capsys):
    table(path)
    assert main(["init", path]) == 0
    assert capsys.readouterr().out == "Wrote clouds.toml; read it, then: cop2l run clouds.toml\n"
    text = Path("clouds.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text) == {
        "base": "_own",
        "stream": path,
        "data": {"label": "target"},
    }
    assert '# text = ["remark", "region"]' in text
    assert main(["run", "clouds.toml", STEP, "--out", "here"]) == 0
    assert min(read_json("here/summary.json")["matrix"][-1]) > 0.9


def test_every_line_of_it_that_is_commented_out_can_be_used():
    np.savez("clouds.npz", **dict(zip("xy", arrays(), strict=True)))
    assert main(["init", "clouds.npz", "--out", "my.toml"]) == 0
    text = Path("my.toml").read_text(encoding="utf-8")
    assert "#   x: float32 (240, 3)\n#   y: int64 (240,)\n" in text
    lines = [line.removeprefix("# ") if "=" in line or "[" in line else line for line in text.splitlines()]
    Path("used.toml").write_text("\n".join(lines), encoding="utf-8")
    chosen = grid.single_run(grid.read_configuration("used.toml"))
    assert (chosen.tasks, chosen.data["classes"], chosen.options) == (2, ["A", "B"], {"lr": 0.001})


def test_init_reads_no_values_and_overwrites_nothing(capsys):
    written = []
    for scale in (1.0, 1000.0):
        x, y = arrays(scale)
        np.savez("clouds.npz", x=x, y=y)
        assert main(["init", "clouds.npz", "--out", "my.toml"]) == 0
        written.append(Path("my.toml").read_text(encoding="utf-8"))
        Path("my.toml").unlink()
    assert written[0] == written[1]
    Path("my.toml").write_text("mine")
    capsys.readouterr()
    assert main(["init", "clouds.npz", "--out", "my.toml"]) == 2
    assert "my.toml exists already; remove it, or name another file with --out." in error_sentence(capsys)
    assert Path("my.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("a,Class,b", "Class"),
        ("a,b,c", "COLUMN"),
        ("y,label,c", "label"),
        ('a,"odd ""name""",label', "label"),
    ],
)
def test_the_label_is_guessed_by_name_and_type(header, label):
    pytest.importorskip("pyarrow")
    Path("some.csv").write_text(f"{header}\n1,2,0\n3,4,1\n")
    assert main(["init", "some.csv"]) == 0
    text = Path("some.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["data"] == {"label": label}
    assert ('candidates: ["a", "b", "c"]' in text) == (label == "COLUMN")


def test_the_folders_that_init_knows():
    pytest.importorskip("pyarrow")
    Path("tables").mkdir()
    Path("tables/train.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    for name in ("cat", "dog"):
        Path("pets/train", name).mkdir(parents=True)
        Path("pets/train", name, "1.png").write_bytes(b"")
    assert main(["init", "tables/"]) == 0
    assert main(["init", "pets"]) == 0
    assert "#   'label': int64" in Path("tables.toml").read_text()
    assert "#   pictures of the class 'dog'" in Path("pets.toml").read_text()


def test_a_column_of_arrays_is_the_input_alone():
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x, y = arrays()
    parquet.write_table(pa.table({"number": y, "point": list(x), "label": y}), "points.parquet")
    assert main(["init", "points.parquet"]) == 0
    assert grid.single_run(grid.read_configuration("points.toml")).data == {
        "label": "label",
        "columns": ["point"],
    }
    assert main(["run", "points.toml", STEP, "--out", "here"]) == 0
