"""Permuted and rotated pictures, shared and disjoint."""

import numpy as np
import pytest
from scipy.ndimage import rotate
from scipy.sparse import csr_array
from small_data_sets import WRITERS, mnist, values

from cop2l import streams
from cop2l.errors import UserError
from cop2l.streams.domains import Rotated, draw_angles, rotation
from cop2l.streams.scenarios import identity


@pytest.fixture
def folder(tmp_path):
    mnist(tmp_path, n=200)
    return tmp_path


@pytest.mark.parametrize("name", ["permuted-mnist", "rotated-mnist"])
def test_shared_is_marked_not_valid_and_disjoint_is_not(name, folder):
    shared = streams.load(name, folder=folder)
    disjoint = streams.load(name, folder=folder, images="disjoint")
    assert (len(shared), shared.classes, shared.scenario) == (10, 10, "domain-incremental")
    assert shared.name == name
    assert len(shared.not_valid) == 1
    assert "share examples" in shared.not_valid[0]
    assert shared[:2].not_valid
    assert not disjoint.not_valid
    assert [len(y) for _, y, _ in shared] == [200] * 10
    assert [len(y) for _, y, _ in disjoint] == [20] * 10
    assert [len(y) for _, y, _ in disjoint.test] == [20] * 10
    rows = np.concatenate(disjoint.train.rows)
    assert sorted(rows.tolist()) == list(range(200)), "every picture is in exactly one task"
    assert not streams.load(name, folder=folder, tasks=1).not_valid


def test_permuted_pixels(folder):
    stream = streams.load("permuted-mnist", folder=folder, seed=5)
    plain = streams.load("mnist", folder=folder, tasks=1)[0].x.reshape(200, -1)
    orders = [prepare.order for prepare in stream.train.prepare]
    assert len({tuple(order) for order in orders}) == 10
    for (x, _, _), (x_test, _, _), order in zip(stream, stream.test, orders, strict=True):
        assert x.shape == (200, 1, 28, 28)
        assert sorted(order.tolist()) == list(range(784))
        assert (x.reshape(200, -1) == plain[:, order]).all()
        assert x_test.shape == (20, 1, 28, 28)
    other = streams.load("permuted-mnist", folder=folder, seed=6)
    assert (other[0].x != stream[0].x).any()


def turned_by(degrees, picture):
    sources, weights = rotation(degrees, len(picture))
    return (weights * picture.ravel()[sources]).sum(axis=0).reshape(picture.shape)


def test_quarter_turns_are_exact():
    picture = values(28, 28).astype(np.float32)
    for turns in range(-2, 3):
        turned = turned_by(90 * turns, picture)
        assert (turned == np.rot90(picture, turns)).all()


@pytest.mark.parametrize("degrees", [-180, -90, -31, 0, 45, 161])
def test_rotated_bytes_are_those_of_a_sparse_product(degrees):
    """Published streams were made by scipy's sparse product in single precision: not one byte may differ."""
    pictures = values(50, 1, 28, 28)
    sources, weights = rotation(degrees, 28)
    rows = np.broadcast_to(np.arange(784), sources.shape)
    matrix = csr_array((weights.ravel(), (rows.ravel(), sources.ravel())), shape=(784, 784))
    expected = np.rint((matrix @ pictures.reshape(50, -1).T.astype(np.float32)).T).astype(np.uint8)
    assert (Rotated(identity, degrees, 28)(pictures).reshape(50, -1) == expected).all()


def test_angles_are_whole_degrees_from_the_seed():
    angles = draw_angles(5000, seed=1)
    assert min(angles) == -180
    assert max(angles) == 180
    assert draw_angles(10, 1) == angles[:10]
    assert draw_angles(10, 2) != angles[:10]


def test_rotated_stream_turns_the_pictures(folder):
    stream = streams.load("rotated-mnist", folder=folder, tasks=3)
    raw = values(200, 28, 28, seed=200)
    for task, degrees in zip(stream, stream.description["angles"], strict=True):
        expected = rotate(raw[7].astype(float), degrees, reshape=False, order=1, mode="grid-constant", cval=0)
        np.testing.assert_allclose(task.x[7, 0], (expected / 255 - 0.1307) / 0.3081, atol=0.008)


def test_domains_of_other_pictures(tmp_path):
    WRITERS["fashion-mnist"](tmp_path)
    WRITERS["cifar10"](tmp_path)
    for name in ("fashion-mnist", "cifar10"):
        stream = streams.load(name, folder=tmp_path, domains="permuted", tasks=2)
        assert stream.name == f"permuted-{name}"
        assert stream[0].x.shape[1:] == streams.load(name, folder=tmp_path)[0].x.shape[1:]
    assert streams.load("cifar10", folder=tmp_path, domains="rotated", tasks=2)[0].x.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": "share"}, "did you mean 'shared'"),
        ({"scenario": "class-incremental"}, "no choice of scenario"),
        ({"class_seed": 1}, "no choice"),
        ({"tasks": 0}, "tasks is 0; give a whole number from 1 to 200"),
    ],
)
def test_wrong_options(folder, options, message):
    with pytest.raises(UserError, match=message):
        streams.load("permuted-mnist", folder=folder, **options)


def test_tables_have_no_such_domains():
    with pytest.raises(UserError, match="did you mean 'permuted'"):
        streams.load("digits", domains="permutted")
