"""Small streams, small models, and CoP2L on them without the learner around it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cop2l.certify.compress import compress_task, parameters, reconstruct
from cop2l.certify.examples import sample
from cop2l.certify.history import History, Memory, certified_mask, prior_part
from cop2l.certify.options import Options
from cop2l.certify.scoring import head_mask
from cop2l.models import build
from cop2l.randomness import private_randomness

SIDE = 5


class SmallCNN(nn.Module):
    """A user's own convolutional network."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.head = nn.Linear(3 * (SIDE - 2) ** 2, classes)

    def forward(self, x):
        return self.head(self.body(x.reshape(-1, 1, SIDE, SIDE)))


class NormedMLP(nn.Module):
    """A user's own network with batch normalisation: its running statistics are part of theta."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 7), nn.BatchNorm1d(7), nn.ReLU())
        self.head = nn.Linear(7, classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


def model_of(kind, classes, seed=0, inputs=SIDE * SIDE):
    """One of four models whose weights are a function of the seed."""
    if kind == "linear":
        return build("linear", inputs=(inputs,), classes=classes, seed=seed)
    if kind == "mlp":
        return build("mlp", inputs=(inputs,), classes=classes, seed=seed, hidden=13, dropout=0.5)
    with private_randomness(torch.device("cpu"), seed, "test model"):
        return SmallCNN(classes) if kind == "cnn" else NormedMLP(inputs, classes)


@dataclass
class Case:
    """A stream with its options."""

    x: list
    y: list
    heads: list
    classes: int
    scenario: str
    options: object

    @property
    def tasks(self):
        return len(self.x)

    @property
    def outside(self):
        if self.scenario != "task-incremental":
            return None
        return head_mask(self.heads, self.classes, torch.device("cpu"))


def options_of(**chosen):
    """Options that no preset's defaults reach, with a claim that the buffer allows."""
    claims = {"threshold": "preference", "witness": "combined"}
    return Options(**{"claim": claims.get(chosen.get("buffer", "threshold"), "kl-tight"), **chosen})


def case_of(scenario, sizes, data_seed=0, inputs=SIDE * SIDE, noise=0.15, values=3, **chosen):
    """Inputs on a grid of few values, so that examples repeat and losses tie; labels from a rule, some of them wrong."""
    draw = np.random.default_rng(data_seed)
    per_task = 2
    same = scenario == "domain-incremental"
    classes = per_task if same else per_task * len(sizes)
    x, y, heads = [], [], []
    for t, n in enumerate(sizes):
        head = tuple(range(per_task)) if same else tuple(range(per_task * t, per_task * (t + 1)))
        rows = draw.integers(0, values, (n, inputs)).astype(np.float32) - (values - 1) / 2
        rows[n // 2 :] = rows[draw.integers(0, max(1, n // 2), n - n // 2)]  # duplicates inside the task
        label = (rows @ draw.normal(size=inputs).astype(np.float32) > 0).astype(np.int64)
        flip = draw.random(n) < noise
        x.append(rows)
        y.append(np.array(head)[np.where(flip, 1 - label, label)])
        heads.append(head)
    return Case(x, y, heads, classes, scenario, options_of(**chosen))


def compress(model, case):
    """The compression function on the whole stream: histories, memory; theta_T stays in the model."""
    histories, memory, place = [], Memory(case.options), next(model.parameters()).device
    for t, (x, y) in enumerate(zip(case.x, case.y, strict=True), start=1):
        histories.append(History(t, len(y), case.heads[t - 1]))
        S = sample(torch.from_numpy(x).to(place), torch.from_numpy(y).to(place), t, case.options.seed)
        compress_task(model, S, histories, memory, case.options, case.outside)
    return histories, memory


def rebuild_theta(model, histories, case):
    """The reconstruction function: nothing of the samples but I u J and the prior parts is passed on."""
    examples, priors, place = [], [], next(model.parameters()).device
    for history, x, y in zip(histories, case.x, case.y, strict=True):
        x, y = torch.from_numpy(x).to(place), torch.from_numpy(y).to(place)
        rows = np.union1d(history.first, history.second)
        examples.append((x[rows], y[rows], rows))
        priors.append(prior_part(sample(x, y, history.task, case.options.seed), history.task, case.options))
    reconstruct(model, histories, examples, case.options, case.outside, priors)


def same_bits(one, other):
    """Whether two sets of parameters have the same names, types and bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one
    )


def whole(case, t):
    """Task t's sample with its marks."""
    return sample(torch.from_numpy(case.x[t - 1]), torch.from_numpy(case.y[t - 1]), t, case.options.seed)


def certified_rows(history, case):
    return np.flatnonzero(certified_mask(history, case.options))


__all__ = [
    "Case", "NormedMLP", "SmallCNN", "case_of", "certified_rows", "compress", "model_of", "options_of", "parameters",
    "rebuild_theta", "same_bits", "whole",
]  # fmt: skip
