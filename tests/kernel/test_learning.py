"""theta_T is rebuilt, bit for bit, from compression sets and messages: random streams, inputs of any form, any model."""

import os
from collections import Counter

import numpy as np
import pytest
import torch
from learner_cases import (
    SCENARIOS,
    case_of,
    compress,
    digests,
    model_of,
    parameters,
    rebuild_theta,
    same_bits,
)
from torch import nn

from cop2l.kernel.exact import sample
from cop2l.kernel.options import Refusal
from cop2l.models import build
from cop2l.randomness import private_randomness

PARTS = 2
STREAMS = int(os.environ.get("COP2L_TEST_STREAMS", "80")) // PARTS
"""How many random streams each part of the test draws (CONTRIBUTING.md)."""
SMALL = {"k": 4, "epochs": 2, "lr": 0.05, "batch": 8, "memory": 20, "max_iterations": 5, "omega": 4.0}


def learned_and_rebuilt(model, case):
    """The engine after the stream, once theta_T was rebuilt from what it recorded."""
    theta_0 = parameters(model)
    engine = compress(model, case)
    assert not any(module.training for module in model.modules())
    theta = parameters(model)
    model.load_state_dict(theta_0)
    rebuild_theta(model, engine, case)
    assert same_bits(parameters(model), theta)
    return engine


def drawn(number):
    """A stream and a model, all a function of the number."""
    draw = np.random.default_rng(number)

    def choose(*choices):
        return choices[draw.integers(len(choices))]

    tasks = int(draw.integers(1, 6))
    low, high = choose((1, 6), (4, 20), (10, 60 // tasks + 12))
    last = choose(3, 6, 12, 24, None)
    optimiser = choose("sgd", "sgd", "adam")
    case = case_of(
        choose(*SCENARIOS), [int(n) for n in draw.integers(low, high, tasks)], data_seed=number,
        noise=choose(0.05, 0.3), values=choose(2, 3, 9), k=choose(1, 3, 8) if last else 8,
        buffer=choose("uniform", "threshold"), stop=choose("kl", "preference", "none", "none"),
        grid=last is not None and choose(True, False), max_iterations=last, optimiser=optimiser,
        lr=0.01 if optimiser == "adam" else choose(0.05, 0.3), omega=choose(1.0, 8.0), gamma=choose(0.1, 0.6931471805599453),
        memory=int(draw.integers(tasks, 12 * tasks + 1)), epochs=choose(1, 2, 4), batch=choose(5, 64),
        seed=int(draw.integers(2**31)),
    )  # fmt: skip
    if draw.random() < 0.1:  # one class only
        case.y[0][:] = case.y[0][0]
    model = model_of(choose("linear", "mlp", "mlp", "cnn", "normed"), case.classes)
    return model.to(choose(torch.float32, torch.float32, torch.float64)), case


def situations(engine, points):
    """What random streams must show, so that the test means something."""
    return {
        "learned": any(one.iterations for one in engine.sets),
        "a second set": any(len(one.evicted) for one in engine.sets),
        "picks from the buffer": any(len(one.compression) > len(one.own_picks) for one in engine.sets),
        "picks that were not kept": any(len(one.picked) > len(one.compression) + len(one.evicted) for one in engine.sets),
        "an earlier iteration kept": any(one.stopped > one.iterations for one in engine.sets),
        "a stop off the grid": any(points and one.stopped not in points for one in engine.sets),
        "a stop off the grid that was kept": any(one.iterations > one.stopped for one in engine.sets),
    }  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_random_streams_are_rebuilt(part):
    counts = Counter()
    for number in range(part * STREAMS, (part + 1) * STREAMS):
        model, case = drawn(number)
        try:
            engine = learned_and_rebuilt(model, case)
        except Refusal as refusal:
            if "diverged" in str(refusal):
                continue
            raise
        counts.update(name for name, true in situations(engine, case.options.grid_points).items() if true)
    print(dict(counts))
    assert len(counts) == 7
    assert counts["learned"] >= STREAMS / 2


def test_a_wrong_message_or_a_missing_example_rebuilds_something_else():
    case = case_of("class-incremental", [30, 30, 30], stop="none", **{**SMALL, "max_iterations": 6})
    model = model_of("mlp", case.classes)
    theta_0 = parameters(model)
    engine = compress(model, case)
    theta = parameters(model)
    assert all(task_sets.iterations for task_sets in engine.sets)
    for task_sets in engine.sets:
        for change in ({"iterations": task_sets.iterations - 1}, {"compression": task_sets.compression[1:]}):
            before = {name: getattr(task_sets, name) for name in change}
            vars(task_sets).update(change)
            model.load_state_dict(theta_0)
            rebuild_theta(model, engine, case)
            vars(task_sets).update(before)
            assert not same_bits(parameters(model), theta)


@pytest.mark.parametrize(
    ("name", "inputs"), [("linear", (785,)), ("mlp", (13,)), ("multi-head", (785,)), ("cnn", (1, 12, 12))]
)
def test_models_of_cop2l(name, inputs):
    """Widths that are no multiple of 16 round by the number of rows, if they are not padded."""
    width = int(np.prod(inputs))
    case = case_of(
        "task-incremental", [40, 20], inputs=width, stop="none", values=9, **{**SMALL, "max_iterations": 2}
    )
    case.x = [x.reshape(-1, *inputs) for x in case.x]
    learned_and_rebuilt(build(name, inputs=inputs, classes=case.classes, seed=0), case)


# ---- inputs of any form


def on_disk(folder, order="C"):
    """X in a file, read through a memory map."""

    def mapped(x):
        file = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(file, np.asarray(x, order=order))
        return np.load(file, mmap_mode="r")

    return mapped


FORMS = {
    "bytes": lambda folder: lambda x: (x + 4).astype(np.uint8),
    "double": lambda folder: lambda x: x.astype(np.float64),
    "memory map": on_disk,
    "memory map, columns first": lambda folder: on_disk(folder, "F"),
    "columns first": lambda folder: lambda x: np.asfortranarray(x),
    "other bytes first": lambda folder: lambda x: x.astype(">f4"),
    "read only": lambda folder: lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "not aligned": lambda folder: lambda x: torch.from_numpy(np.concatenate([x[:1], x]))[1:],
    "channels last": lambda folder: lambda x: torch.from_numpy(x.reshape(-1, 1, 5, 5)).to(memory_format=torch.channels_last),
    "channels first": lambda folder: lambda x: torch.from_numpy(x.reshape(-1, 1, 5, 5)).permute(0, 2, 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_any_form_give_the_bits_of_plain_ones_and_are_left_alone(tmp_path, form):
    case = case_of(
        "class-incremental", [40, 15], values=9, stop="none", **{**SMALL, "memory": 40, "omega": 20.0}
    )
    given = [FORMS[form](tmp_path)(x) for x in case.x]
    before, ends = [digests(x) for x in given], []
    for case.x in (given, [np.ascontiguousarray(x, np.float32) for x in given]):
        model = model_of("cnn", case.classes)
        engine = compress(model, case)
        assert any(len(one.compression) > len(one.own_picks) for one in engine.sets)
        ends.append(parameters(model))
    assert same_bits(*ends)
    assert [digests(x) for x in given] == before


def test_examples_are_taken_in_the_default_layout():
    """Another one may round differently: the rebuilt sample would not be in the layout of the first."""
    x = torch.zeros(8, 2, 3, 3).to(memory_format=torch.channels_last)
    assert sample(x, torch.zeros(8), 1, 0).take(np.arange(5)).x.is_contiguous()


# ---- models of the user's own


class ChangesItsInput(nn.Module):
    """It writes into its input, and gives it another shape."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(25, classes)

    def forward(self, x):
        return self.head(x.mul_(0.5).clamp_(-0.4, 0.4).unsqueeze_(1).flatten(1))


class UsesItsMemoryAgain(nn.Module):
    """Its answers lie in the same memory each time."""

    def __init__(self, classes):
        super().__init__()
        self.head, self.memory = nn.Linear(25, classes), torch.empty(0)

    def forward(self, x):
        logits = self.head(x)
        return logits if self.training else self.memory.resize_(logits.shape).copy_(logits)


class Attends(nn.Module):
    """Self-attention, for which torch has a second path without gradients."""

    def __init__(self, classes):
        super().__init__()
        self.lift = nn.Linear(5, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(self.lift(x.reshape(-1, 5, 5))).mean(1))


class FrozenNorm(nn.Module):
    """Batch normalisation that is never trained, and a layer that gets no gradient."""

    def __init__(self, classes):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(25, 9), nn.BatchNorm1d(9), nn.Linear(9, classes)
        self.body.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())


class Counting(nn.Module):
    """A buffer counts the forward passes of training, and each is scaled by it."""

    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(25, classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.head(x) * (1 + 0.01 * self.steps)


@pytest.mark.parametrize("own", [ChangesItsInput, UsesItsMemoryAgain, Attends, FrozenNorm, Counting])
def test_models_of_the_users_own(own):
    """The first task has more rows than a block."""
    case = case_of("class-incremental", [2100, 25], stop="none", values=9, **{**SMALL, "memory": 40})
    with private_randomness(torch.device("cpu"), 0, "own model"):
        model = own(case.classes)
    before = [digests(x) for x in case.x]
    engine = learned_and_rebuilt(model, case)
    assert any(len(one.picked) for one in engine.sets)
    assert [digests(x) for x in case.x] == before
