"""A model answers each row by itself, from its parameters alone, or it is refused: by `learn` and by `verify`."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from cop2l.errors import UserError
from cop2l.kernel.checking import check_certificates
from cop2l.kernel.exact import check_alone, same_classes
from cop2l.learner.cop2l import CoP2L
from cop2l.models import build

LATE = 350
"""The number of a row that small batches do not have."""


def late_row(x):
    return x[LATE] if len(x) > LATE else x[0]


def by_length(longest, shortest=0):
    """Other answers for batches of some lengths."""
    return lambda x: 0 * x[0] if shortest <= len(x) <= longest else 2 * x


SHIFTS = {
    "median": lambda x: x.median(0).values,
    "mean": lambda x: x.mean(0),
    "quantile": lambda x: x.quantile(0.7, 0),
    "mode": lambda x: x.round().mode(0).values,
    "largest": lambda x: x.amax(0) / 2,
    "last row": lambda x: x[-1],
    "mean of the last ten rows": lambda x: x[-10:].mean(0),
    "a late row": late_row,
    "neighbour": lambda x: x.roll(1, 0),
    "small batches otherwise": by_length(255),
    "single rows otherwise": by_length(1),
    "some length otherwise": by_length(200, 2),
}
"""What a model subtracts from its inputs when it is evaluated: it depends on the batch."""


class Shifted(nn.Module):
    """A linear model that learns, and is evaluated, on inputs from which something of the batch was subtracted."""

    def __init__(self, shift):
        super().__init__()
        self.shift, self.head = SHIFTS[shift], build("linear", inputs=(5,), classes=2)

    def forward(self, x):
        return self.head(x if self.training else x - self.shift(x))


def clouds(n, seed=0):
    """Two clouds, far apart from zero."""
    y = np.arange(n) % 2
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32) + 3 * y[:, None].astype(
        np.float32
    ) + 1, y


REFUSED = "Scores depend on the examples|The class of a row depends on"


@pytest.mark.parametrize("n", [400, 1000, 3000, 6000])
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("bits", [True, False])
def test_answers_that_depend_on_the_batch_are_refused(shift, n, bits):
    x, _ = clouds(n)
    model = Shifted(shift)
    with pytest.raises(UserError, match=REFUSED):
        check_alone(model, [x[:100], x[100:]], copy.deepcopy(model), bits)


class Rounds(nn.Linear):
    """Its last bits depend on the place of a row."""

    def forward(self, x):
        return super().forward(x) * (1 + 1e-6 * (torch.arange(len(x))[:, None] % 2))


def test_rounding_matters_where_bits_do():
    model, (x, _) = Rounds(5, 2), clouds(400)
    check_alone(model, [x], copy.deepcopy(model), bits=False)
    with pytest.raises(UserError, match=REFUSED):
        check_alone(model, [x], copy.deepcopy(model))


OPTIONS = {"preset": "picking", "memory": 20, "max_iterations": 2, "lr": 0.1, "tasks": 1}


@pytest.mark.parametrize("shift", SHIFTS)
def test_learn_and_verify_refuse_answers_that_depend_on_the_batch(shift, tmp_path, monkeypatch):
    data = {1: clouds(400)}
    learner = CoP2L(Shifted(shift), **OPTIONS)
    with pytest.raises(UserError, match=REFUSED):
        learner.learn(*data[1])
    assert learner.tasks_seen == 0
    monkeypatch.setattr("cop2l.learner.cop2l.check_alone", lambda *_: None)  # the issuer does not look
    learner.learn(*data[1])
    learner.certify(data).save(tmp_path)
    verdict = check_certificates([tmp_path], data, Shifted(shift))
    assert re.search(REFUSED, " ".join(verdict.invalid)), str(verdict)


class KeepsItsFirstCall(nn.Module):
    """It keeps something of the batch that it is called on first."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.kept, self.head = KEPT[keep], None, build("linear", inputs=(5,), classes=2)

    def forward(self, x):
        if self.kept is None:
            self.kept = self.keep(x.detach())
        return self.head(x - self.kept)


KEPT = {
    "first row": lambda x: x[0].clone(),
    "mean": lambda x: x.mean(0),
    "largest number, as a float": lambda x: float(x.max()),
    "in a list": lambda x: torch.tensor(x.median(0).values.tolist()),
}


@pytest.mark.parametrize("keep", KEPT)
def test_a_model_that_keeps_something_of_its_first_call_is_refused(keep, tmp_path, monkeypatch):
    """Saved and loaded it would answer otherwise. Learning again does not help: nothing of the first call remains."""
    data, learner = {1: clouds(400)}, CoP2L(KeepsItsFirstCall(keep), **OPTIONS)
    for _ in range(2):
        with pytest.raises(UserError, match="outside its state_dict"):
            learner.learn(*data[1])
    learner = CoP2L(KeepsItsFirstCall(keep), **OPTIONS)
    monkeypatch.setattr("cop2l.learner.cop2l.check_alone", lambda *_: None)  # the issuer does not look
    learner.learn(*data[1])
    learner.certify(data).save(tmp_path)
    verdict = check_certificates([tmp_path], data, KeepsItsFirstCall(keep))
    assert "outside its state_dict" in " ".join(verdict.invalid), str(verdict)


class CachesPositions(nn.Module):
    """It caches what depends on the shape of its inputs alone."""

    def __init__(self):
        super().__init__()
        self.positions, self.head = None, build("linear", inputs=(5,), classes=2)

    def forward(self, x):
        if self.positions is None:
            self.positions = torch.arange(x.shape[1]) / 10
        return self.head(x + self.positions)


def test_a_model_that_caches_what_no_row_changes_is_valid(tmp_path):
    data, learner = {1: clouds(400)}, CoP2L(CachesPositions(), **OPTIONS)
    learner.learn(*data[1])
    learner.certify(data).save(tmp_path)
    model = CachesPositions()
    verdict = check_certificates([tmp_path], data, model)
    assert verdict.status == "valid", str(verdict)


def test_classes_that_differ_by_rounding_are_the_same():
    logits = torch.tensor([[1.0, -torch.inf, 5.0], [1.001, 2.0, 1.0], [0.0, 3.0, torch.nan]])
    rounded = logits.clone()
    rounded[0, 0] = 1.002
    assert same_classes(logits, rounded)
    rounded[1, 1] = 4.0
    assert not same_classes(logits, rounded)
