"""Equal data, equal fingerprint, whatever holds it; any change shows."""

import numpy as np
import torch

from cop2l.streams import fingerprint

X = np.random.default_rng(0).normal(size=(50, 3, 4)).astype(np.float32)
Y = np.arange(50) % 7


def test_one_value_for_arrays_maps_tensors_and_other_layouts(tmp_path):
    np.save(tmp_path / "x.npy", X)
    expected = fingerprint(X, Y)
    for x in (
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        torch.from_numpy(X.copy()),
        np.asfortranarray(X),
        X.astype(">f4"),
        np.concatenate([X, X])[:50],
    ):
        assert fingerprint(x, Y) == expected
    for y in (Y.astype(np.uint8), Y.tolist(), torch.from_numpy(Y), Y.astype(np.int32)):
        assert fingerprint(X, y) == expected


def test_every_change_shows():
    values = {fingerprint(X, Y)}
    changed = X.copy()
    changed[31, 2, 1] = np.nextafter(changed[31, 2, 1], np.float32(9))
    for x, y in (
        (changed, Y),
        (X.astype(np.float64), Y),
        (X.reshape(50, 12), Y),
        (X[::-1], Y),
        (X[:49], Y[:49]),
        (X, np.roll(Y, 1)),
        (X[:0], Y[:0]),
    ):
        value = fingerprint(x, y)
        assert value not in values
        values.add(value)


def test_bfloat16():
    x = torch.arange(8.0).reshape(4, 2).to(torch.bfloat16)
    assert fingerprint(x, [0, 0, 1, 1]) == fingerprint(x.clone(), [0, 0, 1, 1])
    assert fingerprint(x, [0, 0, 1, 1]) != fingerprint(x + 1, [0, 0, 1, 1])
