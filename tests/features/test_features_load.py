"""Cached features as streams: by name, from memory maps, with what the backbone saw."""

import json

import numpy as np
import pytest

from cop2l.cli import main
from cop2l.errors import UserError
from cop2l.features import entries, find_entry, import_features, importing, load_stream
from cop2l.features.importing import names_from_file
from cop2l.features.load import not_valid
from cop2l.features.store import root
from cop2l.models.backbones import BACKBONES


def arrays(classes=10, rows=60, width=8, seed=0):
    draw = np.random.default_rng(seed)
    return {
        "x_train": draw.integers(-127, 128, (rows, width), np.int8),
        "y_train": draw.permutation(np.arange(rows) % classes).astype(np.uint8),
        "x_test": draw.integers(-127, 128, (2 * classes, width), np.int8),
        "y_test": (np.arange(2 * classes) % classes).astype(np.uint8),
        "scale": np.float32(0.125),
    }


def saved(folder, name="cifar10-dinov2-vits14-70.npz", **changes):
    content = {k: v for k, v in (arrays() | changes).items() if v is not None}
    np.savez_compressed(folder / name, **content)
    return folder / name


def test_an_import_is_a_stream(tmp_path):
    entry = import_features(saved(tmp_path))
    assert entry.name == "cifar10@dinov2-vits14-70"
    stream = load_stream(entry.name)
    content = arrays()
    assert (len(stream), stream.classes, stream.scenario) == (5, 10, "class-incremental")
    assert stream.heads == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert (stream.not_valid, stream.pretrained_on) == ((), BACKBONES["dinov2-vits14"].pretrained_on)
    for (x, y, t), test in zip(stream, stream.test, strict=True):
        inside = np.isin(content["y_train"], stream.heads[t - 1])
        rows = np.argsort(content["y_train"][inside], kind="stable")
        assert (x == content["x_train"][inside][rows] * content["scale"]).all()
        assert (y == content["y_train"][inside][rows]).all()
        assert set(test.y) == set(stream.heads[t - 1])
    assert stream.description["features"]["key"] == entry.key
    json.dumps(stream.description)


def test_the_name_of_features_runs(tmp_path, capsys):
    """`cop2l run DATA@BACKBONE-PX`, as docs/data.md says."""
    import_features(saved(tmp_path))
    out = tmp_path / "run"
    assert main(["run", "cifar10@dinov2-vits14-70", "method=finetuning", "epochs=1", "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text())["model"] == "linear"
    assert "average accuracy" in capsys.readouterr().out


def test_a_task_is_a_slice_of_the_memory_map(tmp_path):
    entry = import_features(saved(tmp_path))
    stream = load_stream(entry.name)
    for task in stream:
        assert isinstance(task.x, np.memmap)
        assert not task.x.flags.owndata
        assert task.x.dtype == np.float32
    before = (entry.folder / "x_train.npy").read_bytes()
    stream[0].x[:] = 7
    assert (entry.folder / "x_train.npy").read_bytes() == before


def test_other_cuts(tmp_path):
    import_features(saved(tmp_path, "cifar100-resnet18-64.npz", **arrays(classes=100, rows=300)))
    assert len(load_stream("cifar100@resnet18-64")) == 10
    assert len(load_stream("cifar100@resnet18-64", tasks=20)) == 20
    stream = load_stream("cifar100@resnet18-64", scenario="task-incremental", tasks=50, class_seed=3)
    assert stream.scenario == "task-incremental"
    assert stream.heads[0] != (0, 1)
    same = load_stream("cifar100@resnet18-64", images="shared", folder=None, seed=4, download=True)
    assert same.heads == load_stream("cifar100@resnet18-64").heads
    with pytest.raises(UserError, match="no option of a stream named 'task'; did you mean 'tasks'"):
        load_stream("cifar100@resnet18-64", task=20)
    for option, value in (("images", "disjoint"), ("folder", str(tmp_path))):
        with pytest.raises(
            UserError, match=f"does not take {option}; leave it out. It takes class_seed, examples, order,"
        ):
            load_stream("cifar100@resnet18-64", **{option: value})


def test_importing_twice_is_one_entry(tmp_path):
    first = import_features(saved(tmp_path))
    assert import_features(saved(tmp_path)).folder == first.folder
    assert len(list(entries())) == 1


def test_floats_need_no_scale(tmp_path):
    x = arrays()["x_train"].astype(np.float64) / 3
    entry = import_features(
        saved(tmp_path, x_train=x, x_test=arrays()["x_test"].astype(np.float16), scale=None)
    )
    assert (
        entry.part("train")[0] == x.astype(np.float32)[np.argsort(arrays()["y_train"], kind="stable")]
    ).all()


def test_several_entries_of_one_name_ask_for_a_choice(tmp_path):
    first = import_features(saved(tmp_path))
    second = import_features(saved(tmp_path, scale=np.float32(0.25)))
    with pytest.raises(UserError, match=f"#{first.key[:6]}") as caught:
        load_stream("cifar10@dinov2-vits14-70")
    assert f"#{second.key[:6]}" in str(caught.value)
    assert find_entry(f"cifar10@dinov2-vits14-70#{second.key[:6]}").key == second.key


def test_missing_features_say_which_command_makes_them():
    command = r"cop2l features cifar10 --backbone dinov2-vits14 --size 224$"
    with pytest.raises(UserError, match=command):
        load_stream("cifar10@dinov2-vits14-224")
    with pytest.raises(UserError, match=r"features cifar10 --limit 2000 --backbone dinov2-vits14 --size 70$"):
        load_stream("cifar10:2000@dinov2-vits14-70")
    with pytest.raises(UserError, match=r"no cached features .* \(DATA@BACKBONE-PX\)"):
        load_stream("cifar10@dinov2")


def test_damaged_entries_are_no_entries(tmp_path):
    entry = import_features(saved(tmp_path))
    file = entry.folder / "entry.json"
    whole = file.read_text()
    for text in ("{", "[]", "{}", json.dumps(json.loads(whole) | {"format": 99})):
        file.write_text(text)
        assert not list(entries())
    again = import_features(saved(tmp_path))
    assert again.folder == entry.folder
    x = entry.folder / "x_train.npy"
    x.write_bytes(x.read_bytes()[:500])
    with pytest.raises(UserError, match="damaged; delete the folder"):
        load_stream(again.name)


@pytest.mark.parametrize("dataset", ["tinyimagenet", "imagenette", "imagewoof", "imagenet"])
@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_every_backbone_saw_imagenet(dataset, backbone):
    (reason,) = not_valid(dataset, BACKBONES[backbone].pretrained_on)
    assert reason.startswith("The backbone saw this distribution's data")


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "mnist", "fashion-mnist", "digits"])
@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_no_backbone_saw_the_others(dataset, backbone):
    assert not_valid(dataset, BACKBONES[backbone].pretrained_on) == ()


def test_overlap_marks_the_stream(tmp_path):
    import_features(saved(tmp_path, "imagenette-dinov2-vits14-224.npz"))
    stream = load_stream("imagenette@dinov2-vits14-224")
    assert len(stream.not_valid) == 1
    assert stream[:2].not_valid == stream.not_valid


def test_an_unknown_past_is_not_valid(tmp_path):
    file = saved(tmp_path, "cifar10-mynet-70.npz")
    import_features(file, dataset="cifar10")
    (reason,) = load_stream("cifar10@mynet-70").not_valid
    assert "not known" in reason
    import_features(file, dataset="cifar10", backbone="named", size=32, pretrained_on=["Places365"])
    assert load_stream("cifar10@named-32").not_valid == ()
    import_features(file, dataset="cifar10", backbone="cheat", size=32, pretrained_on=["CIFAR-10"])
    (reason,) = load_stream("cifar10@cheat-32").not_valid
    assert "trained on CIFAR-10, which is this data set" in reason


def test_names_are_read_off_the_file(tmp_path, monkeypatch):
    assert names_from_file(tmp_path / "cifar10-dinov2-vits14-224.npz") == ("cifar10", "dinov2-vits14", 224)
    assert names_from_file(tmp_path / "a-b-resnet50-imagenet-64.npz") == ("a-b", "resnet50-imagenet", 64)
    assert names_from_file(tmp_path / "a-b-c-64.npz", dataset="a") == ("a", "b-c", 64)
    assert names_from_file(tmp_path / "a-b-c-64.npz", backbone="c") == ("a-b", "c", 64)
    assert names_from_file(tmp_path / "x.npz", "a", "b", 3) == ("a", "b", 3)
    with pytest.raises(UserError, match="add the data set and --backbone and --size"):
        names_from_file(tmp_path / "x.npz")
    with pytest.raises(UserError, match="add the data set and --backbone, or"):
        names_from_file(tmp_path / "my-net-64.npz")
    monkeypatch.setattr(importing, "_backbone_names", lambda: ("net", "my-net"))
    assert names_from_file(tmp_path / "a-my-net-64.npz") == ("a", "my-net", 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "both inputs and labels"),
        (
            {"x_train": np.zeros((60, 2, 2)), "x_test": np.zeros((20, 2, 2))},
            "give one row of features per example",
        ),
        ({"y_train": np.zeros(59, np.uint8)}, "one of each per example"),
        ({"y_train": np.full(60, 0.5, np.float32)}, "a whole number or a name"),
        ({"x_test": np.zeros((20, 9), np.int8)}, "give both the same form"),
        ({"y_test": np.full(20, 10)}, "'10' is not one of the 10 classes"),
        ({"x_train": np.full((60, 8), np.nan), "x_test": np.zeros((20, 8)), "scale": None}, "not finite"),
    ],
)
def test_bad_files_leave_nothing_behind(changes, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        import_features(saved(tmp_path, **changes))
    assert "\n" not in str(caught.value)
    assert not root().exists() or not list(root().iterdir())


def test_a_table_with_gaps_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    lines = [f"{i},{'' if i == 3 else i / 2},{i % 2}" for i in range(20)]
    file = tmp_path / "a-b-8.csv"
    file.write_text("\n".join(["p,q,label", *lines]))
    with pytest.raises(UserError, match=r"Column 'q' of \S+a-b-8.csv has missing values"):
        import_features(file, dataset="a", backbone="b", size=8)


def test_one_name_of_what_the_backbone_saw_is_one_name(tmp_path):
    file = saved(tmp_path, "imagenette-resnet18-64.npz")
    assert import_features(file, pretrained_on="ImageNet-1k").about["pretrained_on"] == ["ImageNet-1k"]
    assert load_stream("imagenette@resnet18-64").not_valid
    assert import_features(file, pretrained_on="Places365").about["pretrained_on"] == ["Places365"]
