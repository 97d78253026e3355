"""One contract over every data set, read from small files of the right format."""

import os

import numpy as np
import pytest
from small_data_sets import WRITERS, cifar10_binary, mnist, values

from cop2l import streams
from cop2l.streams import DATASETS

TASKS = {
    "mnist": (5, 10, (1, 28, 28)),
    "fashion-mnist": (5, 10, (1, 28, 28)),
    "emnist-letters": (13, 26, (1, 28, 28)),
    "cifar10": (5, 10, (3, 32, 32)),
    "cifar100": (10, 100, (3, 32, 32)),
    "tinyimagenet": (40, 200, (3, 64, 64)),
    "imagenette": (5, 10, (3, 64, 64)),
    "imagewoof": (5, 10, (3, 64, 64)),
}


def test_every_data_set_is_under_contract():
    assert set(DATASETS) == set(WRITERS) == set(TASKS)
    assert set(streams.catalogue()) == set(streams.NAMES)


@pytest.mark.parametrize("name", DATASETS)
def test_contract(name, tmp_path, monkeypatch):
    WRITERS[name](tmp_path)
    monkeypatch.setenv("COP2L_DATA", str(tmp_path))
    tasks, classes, shape = TASKS[name]
    stream = streams.load(name, download=False)
    assert (len(stream), stream.classes, stream.scenario) == (tasks, classes, "class-incremental")
    assert [c for head in stream.heads for c in head] == list(range(classes))
    assert len(stream.description["class_names"]) == classes
    assert not stream.not_valid
    for part in (stream.train, stream.test):
        for (x, y, t), head in zip(part, stream.heads, strict=True):
            assert x.dtype == np.float32
            assert x.shape[1:] == shape
            assert len(x) == len(y)
            assert set(y.tolist()) == set(head)
            assert y.dtype == np.int64
            assert np.isfinite(x).all()
            assert part[t - 1].t == t
    again = streams.load(name, folder=tmp_path)
    assert again.description == stream.description
    assert (again[-1].x == stream[-1].x).all()
    task_incremental = streams.load(name, scenario="task-incremental", class_seed=3)
    assert task_incremental.heads != stream.heads
    assert sorted(c for head in task_incremental.heads for c in head) == list(range(classes))
    domain_incremental = streams.load(name, scenario="domain-incremental")
    assert domain_incremental.classes == classes // tasks
    assert all(set(y.tolist()) == set(range(classes // tasks)) for _, y, _ in domain_incremental)


@pytest.mark.parametrize("name", DATASETS)
def test_the_folder_of_the_files_themselves_will_do(name, tmp_path):
    place = WRITERS[name](tmp_path)
    assert len(streams.load(name, folder=place)) == TASKS[name][0]


def test_cifar100_in_20_tasks(tmp_path):
    WRITERS["cifar100"](tmp_path)
    stream = streams.load("cifar100", folder=tmp_path, tasks=20)
    assert len(stream) == 20
    assert stream.heads[1] == (5, 6, 7, 8, 9)
    names = DATASETS["cifar100"].names
    assert len(set(names)) == 100
    assert list(names) == sorted(names)


def test_pixels_are_scaled_by_the_published_constants(tmp_path):
    mnist(tmp_path)
    stream = streams.load("mnist", folder=tmp_path)
    raw = values(40, 28, 28, seed=40)[np.arange(40) % 10 < 2]
    expected = (raw / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(stream[0].x[:, 0], expected, atol=1e-6)


def test_plain_idx_files_and_the_shortcut_folder(tmp_path):
    mnist(tmp_path, "mnist", compress=False)
    assert len(streams.load("mnist", folder=tmp_path)) == 5


def test_letters_are_turned_upright_and_count_from_zero(tmp_path):
    WRITERS["emnist-letters"](tmp_path)
    data = streams.labelled("emnist-letters", folder=tmp_path)
    assert (data.x[:, 0] == values(52, 28, 28).swapaxes(1, 2)).all()
    assert data.y.tolist() == [i % 26 for i in range(52)]


def test_both_versions_of_cifar10_are_the_same_data(tmp_path):
    pickled = WRITERS["cifar10"](tmp_path)
    binary = cifar10_binary(tmp_path)
    first, second = (streams.labelled("cifar10", folder=place) for place in (pickled, binary))
    assert first.fingerprints() == second.fingerprints()
    assert (first.x[0].ravel() == values(20, 3072, seed=0)[0]).all()
    assert (first.x_test[3].ravel() == values(20, 3072, seed=5)[3]).all()


def test_pictures_in_files_are_decoded_once_and_mapped(tmp_path, private_home):
    WRITERS["imagenette"](tmp_path)
    first = streams.load("imagenette", folder=tmp_path, size=16)
    files = sorted((private_home / "pictures").iterdir())
    assert len(files) == 2
    assert first.train.x.shape == (20, 3, 16, 16)
    again = streams.load("imagenette", folder=tmp_path, size=16)
    assert sorted((private_home / "pictures").iterdir()) == files
    assert isinstance(again.train.x, np.memmap)
    assert again.description["size"] == 16
    native = streams.labelled("imagenette", folder=tmp_path)
    assert [native.x[0].shape, native.x[1].shape] == [(3, 30, 40), (3, 40, 30)]
    assert len(native.x[2:4]) == 2
    assert (
        native.fingerprints()["train"]
        == streams.labelled("imagenette", folder=tmp_path).fingerprints()["train"]
    )


def test_tinyimagenet_labels_are_in_sorted_order(tmp_path):
    place = WRITERS["tinyimagenet"](tmp_path)
    data = streams.labelled("tinyimagenet", folder=tmp_path)
    assert list(data.names) == sorted(data.names)
    for i in (0, 77, 199):
        assert data.x.sources[i].name.split("_")[0] == data.names[data.y[i]]
    lines = (place / "val" / "val_annotations.txt").read_text().splitlines()
    assert [data.names[label] for label in data.y_test] == [line.split("\t")[1] for line in lines]


def test_environment_variable_may_list_several_folders(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    mnist(tmp_path / "b")
    monkeypatch.setenv("COP2L_DATA", os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert len(streams.load("mnist")) == 5


def test_digits():
    pytest.importorskip("sklearn")
    stream = streams.load("digits")
    assert (len(stream), stream.classes, stream[0].x.shape[1:]) == (5, 10, (1, 8, 8))
    assert sum(len(y) for _, y, _ in stream) == 1438
    assert sum(len(y) for _, y, _ in stream.test) == 359
    assert stream[0].x.min() == -1
    assert stream[0].x.max() == 1
