"""The scale of the inputs: what is fitted to rows, and that a layer takes raw inputs."""

import numpy as np
import pytest
import torch

from cop2l.errors import UserError
from cop2l.kernel.exact import sample
from cop2l.kernel.scale import LIMIT, MIN_ROWS, fit_scale
from cop2l.models import build


def fitted(x):
    """The constants that these rows give."""
    return fit_scale(sample(torch.as_tensor(x), torch.zeros(len(x)), 1, 0), 0)


def wild(n=240, seed=0):
    """Six columns: of sizes from 1e-5 to 1e6, far from 0, heavy-tailed, constant, always 0, and mostly 0."""
    draws = np.random.default_rng(seed)
    y = np.arange(n) % 2
    columns = [
        1e-5 * (y + draws.normal(size=n) / 4),
        1e6 * (20 + y + draws.normal(size=n) / 4),
        np.exp(4 * draws.normal(size=n)),
        np.full(n, 7.0),
        np.zeros(n),
        (draws.random(n) < 0.1) * 1e3 * y,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def test_columns_of_any_size_come_near_one():
    x = wild()
    constants = fitted(x)
    scaled = (x - np.array(constants["shift"])) * np.array(constants["factor"])
    typical = np.median(np.abs(scaled[:, :3]), axis=0)
    assert (typical > 0.3).all()
    assert (typical < 1.5).all()
    assert (scaled[:, 3:5] == 0).all()
    assert np.abs(scaled[:, 5]).max() < 2
    assert all(np.log2(constants["factor"]) % 1 == 0)
    model = build("linear", inputs=(6,), classes=2, scale="fitted")
    model.scale.set_constants(**constants)
    layer = model.scale(torch.from_numpy(x))
    assert layer.abs().max() == LIMIT  # the tail of the third column
    assert layer[:, :2].abs().max() < LIMIT
    assert fitted(x[: MIN_ROWS - 1]) is None


def test_columns_that_are_mostly_0_keep_their_weights_among_each_other():
    draws = np.random.default_rng(0)
    sizes = np.array([0.1, 0.2, 0.4, 0.1, 3e5])
    factor = fitted((draws.random((200, 5)) < 0.2) * sizes * draws.uniform(0.8, 1.2, (200, 5)))["factor"]
    assert len(set(factor[:4])) == 1
    assert factor[4] < 1e-4 * factor[0]


def test_pictures_have_one_scale_for_each_channel_and_huge_values_stay_finite():
    draws = np.random.default_rng(0)
    x = draws.random((60, 3, 4, 5)) * np.array([255.0, 1.0, 1e-3])[:, None, None]
    constants = fitted(x)
    assert [len(values) for values in constants.values()] == [3, 3]
    assert constants["factor"][2] > 64 * constants["factor"][1] > 64 * 64 * constants["factor"][0]
    assert len(fitted(x[:, 0])["factor"]) == 1
    extreme = np.array([1e-38, 3e38, 1e38])[np.arange(60) % 3][:, None].astype(np.float32)
    assert build("linear", inputs=(1,), classes=2, scale=[*fitted(extreme).values()])


def test_a_scale_that_was_given_is_used_as_it_is_or_refused_in_a_sentence():
    model = build("linear", inputs=(6,), classes=2, scale=[1.0, 2.0])
    assert model.scale(torch.full((1, 6), 99.0)).unique().tolist() == [196.0]
    for scale in ("all", [1.0], [0.0, 0.0], [[0.0] * 5, [1.0] * 5], [0.0, float("inf")], {"shift": 0}):
        with pytest.raises(UserError, match="give 'fitted', or a shift and a factor"):
            build("linear", inputs=(6,), classes=2, scale=scale)
