"""A model small enough to do by hand, in float64."""

import numpy as np
import pytest
import torch
from torch import nn


class Scale(nn.Module):
    """Multiplies each column by its own weight."""

    def __init__(self, weights):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, x):
        return x * self.w


class TwoWeights(nn.Module):
    """logit_k = w_k x_k: two parameters; with `below`, the features are x_k v_k."""

    def __init__(self, weights, below=None):
        super().__init__()
        self.below = Scale(below) if below is not None else nn.Identity()
        self.head = Scale(weights)

    def features(self, x):
        return self.below(x)

    def forward(self, x):
        return self.head(self.features(x))


@pytest.fixture
def two_weights():
    return TwoWeights


@pytest.fixture
def data():
    """Two tasks of five examples: x (5, 2) and y in {0, 1}."""
    draws = np.random.default_rng(3)
    return [(draws.normal(size=(5, 2)), np.array(y)) for y in ([0, 1, 1, 0, 1], [1, 0, 0, 1, 0])]


@pytest.fixture
def gradient():
    """Of the cross-entropy of each example in w: (softmax(w x)_k - [y = k]) x_k, row by row."""

    def rows(w, x, y):
        z = w * x
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        return (p - np.eye(2)[y]) * x

    return rows
