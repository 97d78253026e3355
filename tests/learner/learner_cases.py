"""Small streams, small models, and the engine of CoP2L on them without the learner around it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cop2l.kernel.checking import _rebuild
from cop2l.kernel.exact import digest, exact_arithmetic, head_masks, sample
from cop2l.kernel.learning import set_tensors
from cop2l.kernel.options import Options
from cop2l.learner.engine import Engine
from cop2l.models import build
from cop2l.randomness import private_randomness

SIDE = 5
SCENARIOS = ("class-incremental", "task-incremental", "domain-incremental")


class SmallCNN(nn.Module):
    """A user's own convolutional network, for which integers are quantities."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.head = nn.Linear(3 * (SIDE - 2) ** 2, classes)

    def forward(self, x):
        return self.head(self.body(x.to(self.head.weight.dtype).reshape(-1, 1, SIDE, SIDE)))


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
    options: Options

    @property
    def tasks(self):
        return len(self.x)

    @property
    def data(self):
        return {t: (self.x[t - 1], self.y[t - 1]) for t in range(1, self.tasks + 1)}

    def engine(self, model, kind=Engine):
        """CoP2L with this model, before the first task."""
        return kind(model, self.options, head_masks(self.heads, self.classes, self.scenario, "cpu"))

    def sample(self, t, rows=None):
        """Task t's sample, or these rows of it, with its marks."""
        everything = sample(self.x[t - 1], torch.from_numpy(self.y[t - 1]), t, self.options.seed)
        return everything if rows is None else everything.take(rows)


def options_of(**chosen):
    """Options that no preset's defaults reach, with a kind of bound that the buffer allows."""
    return Options(**{"kind": "kl" if chosen.get("buffer") == "uniform" else "preference", **chosen})


def case_of(scenario, sizes, data_seed=0, inputs=SIDE * SIDE, noise=0.15, values=3, copies=True, **chosen):
    """Inputs on a grid of few values, so that examples repeat and losses tie; labels from a rule, some of them wrong."""
    draw = np.random.default_rng(data_seed)
    per_task = 2
    same = scenario == "domain-incremental"
    classes = per_task if same else per_task * len(sizes)
    x, y, heads = [], [], []
    for t, n in enumerate(sizes):
        head = tuple(range(per_task)) if same else tuple(range(per_task * t, per_task * (t + 1)))
        rows = draw.integers(0, values, (n, inputs)).astype(np.float32) - (values - 1) / 2
        if copies:
            rows[n // 2 :] = rows[draw.integers(0, max(1, n // 2), n - n // 2)]  # duplicates inside the task
        label = (rows @ draw.normal(size=inputs).astype(np.float32) > 0).astype(np.int64)
        flip = draw.random(n) < noise
        x.append(rows)
        y.append(np.array(head)[np.where(flip, 1 - label, label)])
        heads.append(head)
    return Case(x, y, heads, classes, scenario, options_of(**chosen))


def compress(model, case, kind=Engine):
    """CoP2L on the whole stream: the engine as it ends; theta_T stays in the model."""
    engine = case.engine(model, kind)
    with exact_arithmetic(1):
        for t in range(1, case.tasks + 1):
            engine.learn(case.sample(t))
    return engine


def rebuild_theta(model, engine, case):
    """The reconstruction function: nothing of the samples but I u J is passed on."""
    with exact_arithmetic(1):
        _rebuild(case.engine(model), engine, [case.sample(t) for t in range(1, case.tasks + 1)])


def parameters(model):
    """theta: all parameters and buffers of the model, copied to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def same_bits(first, second):
    """Whether two sets of parameters have the same names, types, shapes and bits."""
    return digest(first) == digest(second)


def stored_rows(part):
    """All that is known of stored examples."""
    x = {"": part.x.cpu().numpy()}
    columns = {**x, "y": part.y.cpu().numpy(), "task": part.task, "row": part.row, "mark": part.mark}
    return [(name, value.dtype.str, value.shape, value.tobytes()) for name, value in columns.items()]


def standing(engine):
    """All that is carried from task to task, bit for bit."""
    return {
        "theta": digest(engine.model.state_dict()),
        "sets": {name: value.tolist() for name, value in set_tensors(engine.sets).items()},
        "numbers": [(one.iterations, one.stopped) for one in engine.sets],
        "sizes": list(engine.sizes),
        "buffer": [stored_rows(part) for part in engine.buffer],
    }


def digests(x):
    """The bits of an array or a tensor."""
    return digest(
        {"x": x if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(x, x.dtype.newbyteorder("=")))}
    )
