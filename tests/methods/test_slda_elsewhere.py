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


@pytest.mark.parametrize(("module", "library"), [("avalanche", "Avalanche"), ("capymoa", "CapyMOA")])
def test_the_same_covariance_gives_the_same_predictions(module, library):
    if find_spec(module) is None:  # an import would want torchvision's operators first
        pytest.skip(f"{module} is not installed")
    reference, learner = (cls(WIDTH, CLASSES) for cls in (compare_slda.Ours, getattr(compare_slda, library)))
    for task in tasks():
        reference.learn(*task)
        learner.learn(*task)
    x = torch.cat([x for x, _ in tasks()])
    expected = reference.predict(x)
    assert 0.5 < float((learner.predict(x) == expected).double().mean()) < 1  # another covariance
    learner.use_covariance(reference.shrunken)
    assert torch.equal(learner.predict(x), expected)
