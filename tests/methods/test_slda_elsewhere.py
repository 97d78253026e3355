"""SLDA beside the libraries that have one; `make compare-slda` runs this where they are installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from cop2l.randomness import generator

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import compare_slda

WIDTH, CLASSES = 12, 6


def tasks():
    """Three tasks of two classes, which overlap, on features of different scales."""
    draw = generator(3, "toy")
    middle, scale = torch.randn(CLASSES, WIDTH, generator=draw), torch.linspace(0.2, 3, WIDTH)
    for t in range(3):
        y = 2 * t + torch.arange(60) % 2
        yield (middle[y] + torch.randn(60, WIDTH, generator=draw)) * scale, y


@pytest.mark.parametrize(("module", "other"), [("avalanche", "Avalanche"), ("capymoa", "CapyMOA")])
def test_the_same_covariance_gives_the_same_predictions(module, other):
    if find_spec(module) is None:  # an import would want torchvision's operators first
        pytest.skip(f"{module} is not installed")
    ours, theirs = (kind(WIDTH, CLASSES) for kind in (compare_slda.Ours, getattr(compare_slda, other)))
    for task in tasks():
        ours.learn(*task)
        theirs.learn(*task)
    x = torch.cat([x for x, _ in tasks()])
    expected = ours.predict(x)
    as_it_comes = float((theirs.predict(x) == expected).double().mean())
    assert 0.5 < as_it_comes < 1  # another covariance
    theirs.take(ours.shrunken)
    assert torch.equal(theirs.predict(x), expected)
