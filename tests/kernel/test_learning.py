"""The kernel's CoP2L is the specification of the learner: the fast path has the same bits, and theta_T can be rebuilt."""

import math
import os
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from certify_cases import (
    SCENARIOS,
    Case,
    case_of,
    compress,
    digests,
    model_of,
    options_of,
    parameters,
    rebuild_theta,
    same_bits,
    standing,
)
from cop2l.learner.fast import FastLearner
from torch import nn

from cop2l.errors import UserError
from cop2l.features import load_stream
from cop2l.kernel.exact import exact_arithmetic, join, score
from cop2l.kernel.learning import ReferenceLearner
from cop2l.kernel.options import Refusal
from cop2l.learner.inputs import inputs
from cop2l.learner.scoring import Pool
from cop2l.models import build
from cop2l.randomness import private_randomness

PARTS = 2
STREAMS = int(os.environ.get("COP2L_TEST_STREAMS", "80")) // PARTS
"""How many random streams each part of the test draws (CONTRIBUTING.md)."""
SMALL = {"k": 4, "epochs": 2, "lr": 0.05, "batch": 8, "memory": 20, "max_iterations": 5, "omega": 4.0}


def compared(model, case, to_input=lambda x: x):
    """Learn the stream with the kernel and with the fast path, and compare after every task; the two engines, at the end.

    The kernel is given x as an auditor has it, and the fast path as the learner gives it on.
    """
    theta_0, place = parameters(model), next(model.parameters()).device
    given_x = [to_input(x) for x in case.x]
    taken_x = [inputs(x) for x in given_x]
    before = [digests(x) for x in given_x]
    ends, engines = [], []
    for kind, x in ((ReferenceLearner, given_x), (FastLearner, taken_x)):
        model.load_state_dict(theta_0)
        model.eval()
        same = Case(x, case.y, case.heads, case.classes, case.scenario, case.options)
        engine, after = case.engine(model, kind), []
        with exact_arithmetic(1):
            for t in range(1, case.tasks + 1):
                outcome = engine.learn(same.sample(t, place, raw=place.type == "cpu"))
                numbers = [part.tolist() for part in (outcome.compression, outcome.picked)]
                after.append(
                    {**standing(engine), "outcome": (*numbers, outcome.kept_iterations, outcome.stopped)}
                )
                assert not any(module.training for module in model.modules())
        assert [digests(x) for x in given_x] == before
        ends.append(after)
        engines.append(engine)
    for t, (plain, fast) in enumerate(zip(*ends, strict=True), 1):
        for name, value in plain.items():
            assert fast[name] == value, f"{name} after task {t}"
    return engines


def drawn(number):
    """A stream, a kind of model and a type of number, all a function of the number."""
    draw = np.random.default_rng(number)

    def choose(*choices):
        return choices[draw.integers(len(choices))]

    tasks = int(draw.integers(1, 6))
    low, high = choose((1, 6), (4, 20), (10, 60 // tasks + 12))
    last = choose(3, 6, 12, 24, None)
    optimiser, memory = choose("sgd", "momentum", "adam"), int(draw.integers(tasks, 12 * tasks + 1))
    prior = choose(0.0, 0.0, 0.3, 0.6)
    kind, start = choose("linear", "mlp", "mlp", "cnn", "normed"), "weights"
    if draw.random() < 0.2:
        kind, start, prior = "linear", "slda", choose(0.3, 0.6)
    case = case_of(
        choose(*SCENARIOS), [int(n) for n in draw.integers(low, high, tasks)], data_seed=number,
        noise=choose(0.05, 0.3), values=choose(2, 3, 9), k=choose(1, 3, 8) if last else 8,
        buffer=choose("uniform", "threshold", "threshold", "count-only"),
        stop=choose("kl", "preference", "combined", "none", "none"), grid=last is not None and choose(True, False),
        max_iterations=last,
        optimiser=optimiser, lr=0.01 if optimiser == "adam" else choose(0.05, 0.3), omega=choose(1.0, 8.0),
        gamma=choose(0.1, 0.6931471805599453), prior=prior, prior_memory=choose(0.0, 0.5, 0.8), prior_epochs=choose(0, 2),
        prior_lr=choose(None, 0.2), memory=memory, epochs=choose(1, 2, 4), batch=choose(5, 64), seed=int(draw.integers(2**31)),
        tasks=choose(None, tasks), pick_omega=choose(None, None, 1.0, 30.0), balance=choose(True, False), start=start,
        shrinkage=choose(1e-4, 0.1, 1.0), ridge=choose(0.0, 3.0),
    )  # fmt: skip
    if draw.random() < 0.1:  # one class only
        case.y[0][:] = case.y[0][0]
    return kind, case, choose(torch.float32, torch.float32, torch.float64)


def situations(engine, case):
    """What random streams must show, so that the comparison means something."""
    points = case.options.grid_points
    return {
        "learned": any(one.iterations for one in engine.sets),
        "a second set": any(len(one.evicted) for one in engine.sets),
        "picks from the buffer": any(len(one.compression) > len(one.own_picks) for one in engine.sets),
        "picks that were not kept": any(len(one.picked) > len(one.compression) + len(one.evicted) for one in engine.sets),
        "an earlier iteration kept": any(one.stopped > one.iterations for one in engine.sets),
        "a stop off the grid": any(points and one.stopped not in points for one in engine.sets),
        "a stop off the grid that was kept": any(one.iterations > one.stopped for one in engine.sets),
        "stored prior examples": any(len(part) for part in engine.prior),
        "a start with LDA": bool(engine.sums),
        "picks after a start with LDA": bool(engine.sums) and any(len(one.own_picks) for one in engine.sets),
        "no balance of classes": any(len(part) for part in engine.prior) and not case.options.balance,
        "weights of more than one": not case.options.balance and bool((engine.prior_weight(join(engine.prior)) > 1).any()),
        "another weight in picking": bool(case.options.pick_omega)
        and any(len(one.picked) > len(one.own_picks) for one in engine.sets),
    }  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_random_streams_are_learned_alike_and_rebuilt(part):
    counts = Counter()
    for number in range(part * STREAMS, (part + 1) * STREAMS):
        kind, case, dtype = drawn(number)
        model = model_of(kind, case.classes).to(dtype)
        theta_0 = parameters(model)
        try:
            plain, fast = compared(model, case)
        except Refusal as refusal:  # then the fast path refuses too
            model.load_state_dict(theta_0)
            with pytest.raises(Refusal, match=str(refusal).removesuffix(".")):
                compress(model, case)
            continue
        theta = parameters(model)
        model.load_state_dict(theta_0)
        rebuild_theta(model, fast, case)
        assert same_bits(parameters(model), theta), number
        if number % 4 == 0:
            model.load_state_dict(theta_0)
            rebuild_theta(model, plain, case, FastLearner)
            assert same_bits(parameters(model), theta), number
        counts.update(name for name, true in situations(fast, case).items() if true)
    print(dict(counts))
    assert set(counts) == set(situations(fast, case))
    assert counts["learned"] >= STREAMS / 2


def test_a_start_with_lda_from_no_example():
    """The prior part of two examples is empty: the first task begins with the weights as they are, the second with LDA."""
    chosen = {**SMALL, "prior": 0.3, "start": "slda", "stop": "none"}
    case = case_of("class-incremental", [2, 20], buffer="threshold", **chosen)
    model = model_of("linear", case.classes)
    theta_0 = parameters(model)
    plain, _ = compared(model, case)
    assert plain.sizes[0] == (2, 2)
    assert len(plain.prior[0]) == 0
    assert plain.sums["count"].sum() == 6 + sum(len(one.compression) for one in plain.sets)
    theta = parameters(model)
    model.load_state_dict(theta_0)
    rebuild_theta(model, plain, case)
    assert same_bits(parameters(model), theta)


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


def on_disk(folder, order="C"):
    """X in a file, read through a memory map."""

    def mapped(x):
        file = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(file, np.asarray(x, order=order))
        return np.load(file, mmap_mode="r")

    return mapped


FORMS = {
    "bytes": lambda folder: lambda x: (x * 3 + 100).astype(np.uint8),
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
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_inputs_of_any_form(tmp_path, form, kind):
    for buffer, prior in (("threshold", 0.0), ("uniform", 0.2)):
        small = {**SMALL, "max_iterations": 3, "memory": 40}
        case = case_of(
            "class-incremental", [20, 15], buffer=buffer, prior=prior, prior_epochs=1, values=9, **small
        )
        compared(model_of(kind, case.classes), case, FORMS[form](tmp_path))


@pytest.mark.parametrize("width", [13, 785])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ["linear", "mlp", "multi-head"])
def test_widths(name, width, dtype):
    case = case_of(
        "task-incremental", [20, 15], inputs=width, stop="none", values=9, **{**SMALL, "max_iterations": 2}
    )
    model = build(name, inputs=(width,), classes=case.classes, seed=0).to(dtype)
    plain, _ = compared(model, case)
    assert all(one.iterations for one in plain.sets)


def test_pictures():
    case = case_of("class-incremental", [20, 10], inputs=144, stop="none", **{**SMALL, "max_iterations": 1})
    model = build("cnn", inputs=(1, 12, 12), classes=case.classes, seed=0)
    compared(model, case, lambda x: x.reshape(-1, 1, 12, 12))
    compared(
        model,
        case,
        lambda x: torch.from_numpy(x.reshape(-1, 1, 12, 12)).to(memory_format=torch.channels_last),
    )


@pytest.mark.parametrize(("rows", "width"), [(2048, 16), (4500, 16), (255, 600), (256, 600), (700, 600)])
def test_more_rows_than_a_block(rows, width):
    """Blocks have 2048 rows, or 256 where an example has more than 512 numbers."""
    case = case_of(
        "class-incremental", [rows, 300], inputs=width, stop="none", **{**SMALL, "memory": 600, "k": 64}
    )
    compared(build("linear", inputs=(width,), classes=case.classes, seed=0), case)


def test_many_classes():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(3000, 16)).astype(np.float32), draw.integers(0, 300, 3000)
    chosen = options_of(**{**SMALL, "k": 100, "max_iterations": 3}, stop="preference")
    case = Case([x], [y], [tuple(range(300))], 300, "class-incremental", chosen)
    compared(build("linear", inputs=(16,), classes=300, seed=0), case)


# ---- models of the user's own


class ChangesItsInput(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(25, classes)

    def forward(self, x):
        return self.head(x.mul_(0.5).clamp_(-0.4, 0.4))


class KeepsItsModeItself(nn.Module):
    """Its own __setattr__ says what `training` means."""

    def __init__(self, classes):
        super().__init__()
        self.head, self.dropout = nn.Linear(25, classes), nn.Dropout(0.5)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "training":
            super().__setattr__("scale", 2.0 if value else 1.0)

    def forward(self, x):
        return self.head(self.dropout(self.scale * x))


class Attends(nn.Module):
    """Self-attention, for which torch has a second path without gradients."""

    def __init__(self, classes):
        super().__init__()
        self.lift = nn.Linear(5, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(self.lift(x.reshape(-1, 5, 5))).mean(1))


class AttendsEvenly(Attends):
    """All widths are multiples of 16."""

    def __init__(self, classes):
        super().__init__(classes)
        self.lift = nn.Identity()

    def forward(self, x):
        return self.head(self.body(nn.functional.pad(x, (0, 7)).reshape(-1, 2, 16)).mean(1))


class Transposed(nn.Module):
    """Its weight lies the other way round: no parameter shows the width of the product."""

    def __init__(self, classes):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(25, 16) / 5), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(nn.functional.linear(x, self.weight.t()).relu())


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


class Reparametrised(nn.Module):
    """Weight normalisation, and a spectral norm whose state moves in training."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.utils.parametrizations.spectral_norm(nn.Linear(25, 9))
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(9, classes))

    def forward(self, x):
        return self.head(self.body(x).relu())


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


def halved(module, inputs):
    """A hook that changes the inputs of a module in place."""
    inputs[0].mul_(0.5)


def hooked(classes):
    """One of cop2l's models with hooks: one changes the input in place, one the output."""
    model = build("mlp", inputs=(25,), classes=classes, seed=0, hidden=13)
    model.register_forward_pre_hook(halved)
    model.hidden.register_forward_hook(lambda module, given, found: found + 0.1)
    return model


def hooked_inside(classes):
    """A hook on a layer changes what it is given, which is the model's own input."""
    model = build("linear", inputs=(25,), classes=classes, seed=0)
    model.head.register_forward_pre_hook(halved)
    return model


def cloning(classes):
    """A hook clones what state_dict() gives: it is not the model's own memory."""
    model = build("mlp", inputs=(25,), classes=classes, seed=0, hidden=13)
    model.register_state_dict_post_hook(
        lambda module, state, prefix, local: state.update({k: v.clone() for k, v in state.items()})
    )
    return model


OWN = {
    "changes its input": ChangesItsInput, "keeps its mode itself": KeepsItsModeItself, "attends": Attends,
    "attends evenly": AttendsEvenly, "transposed": Transposed, "frozen norm": FrozenNorm, "reparametrised": Reparametrised,
    "counting": Counting, "hooked": hooked, "hooked inside": hooked_inside, "cloning": cloning,
    "channels last": lambda classes: model_of("cnn", classes).to(memory_format=torch.channels_last),
    "sequence": lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(25, 11), nn.Tanh(), nn.Linear(11, classes)),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("batch", [8, 64])
def test_models_of_the_users_own(name, batch):
    for buffer, prior in (("threshold", 0.0), ("uniform", 0.2)):
        case = case_of(
            "class-incremental", [30, 25], buffer=buffer, prior=prior, prior_epochs=2, stop="none", values=9,
            **{**SMALL, "batch": batch, "memory": 40, "max_iterations": 4},
        )  # fmt: skip
        with private_randomness(torch.device("cpu"), 0, "own model"):
            model = OWN[name](case.classes)
        theta_0 = parameters(model)
        _, fast = compared(model, case)
        theta = parameters(model)
        assert not same_bits(theta, theta_0)
        with exact_arithmetic(1):
            S = case.sample(1)
            losses, wrong = Pool(model, [S], None, [1.0]).score()
            assert torch.equal(losses[: len(S)], score(model, S)[0])
            assert np.array_equal(wrong, score(model, S)[1])
        assert np.array_equal(S.x.numpy(), case.x[0])
        model.load_state_dict(theta_0)
        rebuild_theta(model, fast, case)
        assert same_bits(parameters(model), theta)


class ReshapesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(25, 2)

    def forward(self, x):
        return self.head(x.unsqueeze_(1).flatten(1))


def test_a_model_that_reshapes_its_input_gets_every_block_in_its_shape():
    case = case_of("class-incremental", [2100], stop="none", **{**SMALL, "max_iterations": 2})
    with private_randomness(torch.device("cpu"), 0, "own model"):
        plain, _ = compared(ReshapesItsInput(), case)
    assert len(plain.sets[0].own_picks) == 8


def test_a_loss_that_is_gamma_but_for_its_precision_stops_both():
    """The float32 next to log 7 is smaller."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 16)).astype(np.float32), draw.integers(0, 7, 60)
    chosen = options_of(**SMALL, stop="none", gamma=math.log(7))
    case = Case([x], [y], [tuple(range(7))], 7, "class-incremental", chosen)
    model = build("linear", inputs=(16,), classes=7)
    for p in model.parameters():
        p.data.zero_()
    plain, _ = compared(model, case)
    assert plain.sets[0].stopped == 0


# ---- real data


@cache
def five_tasks(name):
    return load_stream(name, tasks=5, download=False)


@pytest.mark.parametrize("buffer", ["uniform", "threshold", "count-only"])
@pytest.mark.parametrize(("name", "kind"), [("mnist", "mlp"), ("cifar10@dinov2-vits14-224", "linear")])
def test_real_data_is_learned_alike_and_rebuilt(name, kind, buffer):
    try:
        stream = five_tasks(name)
    except UserError as error:
        pytest.skip(f"the data is not at hand: {error}")
    n = 300
    chosen = options_of(
        k=8, omega=15.0, memory=100, epochs=2, lr=0.02, buffer=buffer, max_iterations=12, grid=buffer != "uniform",
        prior=0.3 * (buffer == "count-only"), prior_epochs=2, prior_memory=0.5,
        stop="kl" if buffer == "uniform" else "preference",
    )  # fmt: skip
    x, y = (
        [np.array(task.x[:n], np.float32) for task in stream],
        [np.array(task.y[:n], np.int64) for task in stream],
    )
    case = Case(x, y, list(stream.heads), stream.classes, "class-incremental", chosen)
    model = build(kind, inputs=case.x[0].shape[1:], classes=case.classes, seed=1)
    theta_0 = parameters(model)
    _, fast = compared(model, case)
    theta = parameters(model)
    assert not torch.equal(theta["head.weight"], theta_0["head.weight"])
    model.load_state_dict(theta_0)
    rebuild_theta(model, fast, case)
    assert same_bits(parameters(model), theta)
