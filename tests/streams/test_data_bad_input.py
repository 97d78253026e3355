"""Bad input: one clear sentence, and nothing half-written."""

import gzip
import pickle

import numpy as np
import pytest
from small_data_sets import WRITERS, idx, mnist, picture, python2_batch, values

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams.formats import unpickle


def refused(match, name, **options):
    with pytest.raises(UserError, match=match) as caught:
        streams.load(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))


def test_missing_folder_and_missing_files(tmp_path, monkeypatch):
    refused("no folder .*nowhere", "mnist", folder=tmp_path / "nowhere")
    refused("cop2l data get mnist", "mnist", folder=tmp_path)
    refused("cop2l data get cifar100", "cifar100", download=False)
    monkeypatch.setenv("COP2L_DATA", str(tmp_path / "nowhere"))
    refused("COP2L_DATA", "mnist")


def test_unknown_names_suggest_the_nearest(tmp_path):
    refused("did you mean 'fashion-mnist'", "fashionmnist")
    refused("did you mean 'cifar100'", "cifar-100")
    refused("choose one of: .*mnist", "zzzz")
    refused("did you mean 'class-incremental'", "mnist", scenario="class_incremental")
    refused("did you mean 'task_classes'", "mnist", task_class=1)
    refused("no file or folder", "data/mine.csv")
    refused("no file or folder", str(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("digits", {"task_classes": [0, 1]}, "disjoint lists of classes, by name or between 0 and 9"),
        (
            "digits",
            {"task_classes": [[0, 1], ["a"]]},
            "disjoint lists of classes, by name or between 0 and 9",
        ),
        ("digits", {"task_classes": []}, "disjoint lists of classes, by name or between 0 and 9"),
        ("digits", {"images": "disjoint"}, "for permuted and rotated domains alone; leave it out"),
        (
            "digits",
            {"folder": "x"},
            "does not take folder; leave it out. It takes class_seed, domains, examples, images, order,",
        ),
        (
            "synthetic",
            {"folder": "x"},
            "does not take folder; leave it out. It takes classes_per_task, dimensions,",
        ),
        (
            "synthetic",
            {"images": "disjoint"},
            "synthetic does not take images; leave it out. It takes classes_per_task,",
        ),
        ("permuted-mnist", {"domains": "rotated"}, "domains of permuted-mnist are permuted; leave out"),
        ("synthetic", {"n": "many"}, "n is 'many'; give a whole number"),
        ("synthetic", {"n": 2.5}, "n is 2.5; give a whole number"),
        ("own.csv", {"test_share": "half"}, "give a number, such as 0.2"),
        ("twice.csv", {}, "two columns named 'a'; rename one"),
        ("pictures", {"size": "large"}, "size is 'large'; give the side of the pictures in pixels"),
    ],
)
def test_options_of_another_kind_than_they_should_be(tmp_path, monkeypatch, name, options, match):
    monkeypatch.chdir(tmp_path)
    for animal in ("ape", "bee"):
        for i in range(5):
            picture(tmp_path / "pictures" / animal / f"{i}.png", 6, 6, i)
    (tmp_path / "own.csv").write_text("a,label\n" + "1,0\n2,1\n" * 5)
    (tmp_path / "twice.csv").write_text("a,a,label\n" + "1,2,0\n2,3,1\n" * 5)
    refused(match, tmp_path / name if (tmp_path / name).exists() else name, **options)


def test_incomplete_family_is_not_found(tmp_path):
    place = mnist(tmp_path)
    (place / "t10k-labels-idx1-ubyte.gz").unlink()
    refused("was not found in", "mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (lambda good: good[:100], "corrupt or truncated gzip"),
        (lambda good: good[:-9], "corrupt or truncated gzip"),
        (
            lambda good: good[:200] + bytes([good[200] ^ 255]) + good[201:],
            "corrupt or truncated gzip|IDX|announces",
        ),
        (lambda _: b"<html>not found</html>", "corrupt or truncated gzip"),
        (lambda _: gzip.compress(b"hello"), "not an IDX file"),
        (lambda _: gzip.compress(b""), "not an IDX file"),
        (lambda good: gzip.compress(gzip.decompress(good)[:-3]), "announces"),
        (lambda _: gzip.compress(idx(values(39, 28, 28))), "does not fit its file of labels"),
        (lambda _: gzip.compress(idx(values(40, 27, 27))), "differ in size"),
        (lambda _: gzip.compress(idx(values(40))), "does not fit"),
    ],
)
def test_wrong_idx_file(tmp_path, content, match):
    file = mnist(tmp_path) / "train-images-idx3-ubyte.gz"
    file.write_bytes(content(file.read_bytes()))
    refused(match, "mnist", folder=tmp_path)


def test_labels_outside_the_label_set(tmp_path):
    place = mnist(tmp_path)
    (place / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(40, 10, np.uint8))))
    refused("labels that MNIST does not have", "mnist", folder=tmp_path)


def test_a_class_without_training_examples(tmp_path):
    place = mnist(tmp_path)
    (place / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(40, dtype=np.uint8) % 8)))
    refused("Task 5 of mnist would have no training example", "mnist", folder=tmp_path)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (lambda good: good[:50], "truncated or not a pickle"),
        (lambda good: good[:-1], "truncated or not a pickle"),
        (lambda _: b"", "truncated or not a pickle"),
        (lambda _: b"<html>", "truncated or not a pickle"),
        (lambda _: pickle.dumps([1, 2]), "not a CIFAR batch"),
        (lambda _: pickle.dumps({"data": Evil()}), "builtins.print, which no CIFAR file does"),
        (lambda _: pickle.dumps({"data": np.array([Evil()], object)}), "objects|print"),
        (lambda _: pickle.dumps({"labels": [1]}), "not the CIFAR batch"),
        (lambda _: pickle.dumps({"data": values(3, 3072), "labels": [1, 2]}, 2), "not the CIFAR batch"),
        (lambda _: pickle.dumps({"data": values(3, 3071), "labels": [1, 2, 3]}, 2), "not the CIFAR batch"),
        (lambda _: pickle.dumps({"data": values(3, 3072), "labels": "abc"}, 2), "not the CIFAR batch"),
        (lambda _: python2_batch(values(20, 3072), [11] * 20), "labels that CIFAR-10 does not have"),
    ],
)
def test_wrong_pickle(tmp_path, capsys, content, match):
    file = WRITERS["cifar10"](tmp_path) / "data_batch_3"
    file.write_bytes(content(file.read_bytes()))
    refused(match, "cifar10", folder=tmp_path)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_that_this_python_writes_are_read_too(tmp_path, protocol):
    batch = {
        b"data": values(3, 3072),
        "labels": [1, 2, 3],
        "batch_label": "one of one",
        "filenames": [b"a", b"b", b"c"],
    }
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol))
    content = unpickle(tmp_path / "batch")
    assert (content.pop(b"data") == batch.pop(b"data")).all()
    assert content == batch


def test_truncated_binary_batch(tmp_path):
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    for name in ("train", "test"):
        (place / f"{name}.bin").write_bytes(bytes(2 * 3074 - 1))
    refused("truncated", "cifar100", folder=tmp_path)


def test_tinyimagenet_with_parts_missing(tmp_path):
    place = WRITERS["tinyimagenet"](tmp_path)
    (place / "val" / "images" / "val_3.JPEG").unlink()
    refused("val_3.JPEG", "tinyimagenet", folder=tmp_path)
    (place / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99999999\n")
    refused("does not fit wnids.txt", "tinyimagenet", folder=tmp_path)
    (place / "val" / "val_annotations.txt").unlink()
    refused("lacks wnids.txt with 200 classes or val_annotations.txt", "tinyimagenet", folder=tmp_path)


def test_pictures_of_mixed_sizes_and_broken_ones(tmp_path, private_home):
    for i in range(6):
        picture(tmp_path / "train" / "ape" / f"{i}.png", 6, 6, i)
        picture(tmp_path / "train" / "bee" / f"{i}.png", 6, 6 + (i == 3), i)
        picture(tmp_path / "test" / "bee" / f"{i}.png", 6, 6, i)
    refused("resize all with size=, such as size=64", tmp_path)
    assert not list(private_home.rglob("pictures/*")), "nothing half-written"
    assert streams.load(tmp_path, size=4)[0].x.shape[2:] == (4, 4)
    (tmp_path / "train" / "bee" / "3.png").write_bytes(
        (tmp_path / "train" / "bee" / "2.png").read_bytes()[:60]
    )
    refused("3.png is not a readable picture", tmp_path)
    (tmp_path / "train" / "bee" / "3.png").write_bytes(b"hello")
    refused("3.png is not a readable picture", tmp_path, size=5)
    refused("in pixels", tmp_path, size=0)
    refused("size resizes pictures in files, which digits does not have", "digits", size=5)


def test_folders_that_hold_no_data(tmp_path):
    refused("holds no arrays, tables or pictures", tmp_path)
    (tmp_path / "ape").mkdir()
    refused("holds no arrays, tables or pictures", tmp_path)
    for part, name in (("train", "ape"), ("train", "bee"), ("test", "cat")):
        picture(tmp_path / "own" / part / name / "1.png", 6, 6, 0)
    refused("The class cat has no training pictures", tmp_path / "own")
    refused("leave out folder", tmp_path / "own", folder=tmp_path)
    refused("leave out label", "digits", label="y")


def test_wrong_files(tmp_path):
    for name, match in (
        ("a.npz", "not a readable .npz"),
        ("a.parquet", "not a readable .parquet"),
        ("a.txt", "is no data file"),
        ("a.csv", "no column 'label'"),
    ):
        (tmp_path / name).write_bytes(b"one,two\n1,2\n")
        refused(match, tmp_path / name)
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2)))
    refused("both inputs and labels", tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.array([{"a": 1}], object), y=np.zeros(1))
    refused("not a readable .npz", tmp_path / "c.npz")
    archive = (tmp_path / "b.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(archive[: len(archive) // 2])
    refused("not a readable .npz", tmp_path / "d.npz")
    with (tmp_path / "e.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    refused("not a readable .npz", tmp_path / "e.npz")
    (tmp_path / "archive.npy").write_bytes(archive)
    refused("not a readable .npy", tmp_path / "archive.npy")
    np.savez(tmp_path / "f.npz", x=np.float32(1), y=np.zeros(3, int))
    refused("one row per example", tmp_path / "f.npz")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    refused("y.npy", tmp_path)
    (tmp_path / "y.npy").write_bytes(b"hello")
    refused("y.npy is not a readable", tmp_path)


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        ("a,b,label\n" + "1,2,0\n3,,1\n" * 5, {}, "missing values"),
        ("a,b,label\n" + "1,2,0\n3,x,1\n" * 5, {}, "known in advance"),
        ("a,b,label\n1,2,0\n3,4\n", {}, "not a readable .csv"),
        ("label\n0\n1\n", {}, "no column of inputs"),
        ("a,label\n1,0\n2,1\n", {"columns": ["z"]}, "no column 'z'"),
        ("a,label\n1,0\n2,1\n", {"domain": "site"}, "no column 'site'"),
        ("a,label\n1,0\n2,\n", {}, "'label' .* missing values"),
        ("", {}, "not a readable .csv file"),
        ("a,label\ncaf\u00e9,1\n", {}, "write it again as UTF-8"),
        ("h\u00f6he,label\n1,1\n", {}, "write it again as UTF-8"),
    ],
)
def test_wrong_tables(tmp_path, rows, options, match):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text(rows, encoding="latin-1")
    refused(match, tmp_path / "a.csv", **options)
