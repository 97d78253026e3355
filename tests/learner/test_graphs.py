"""Recorded graphs have the bits of the kernel. Without a CUDA device the same work is called instead of replayed."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from cop2l.kernel.exact import digest, exact_arithmetic, head_masks, sample, score
from cop2l.kernel.learning import ReferenceLearner
from cop2l.kernel.options import Options
from cop2l.kernel.training import Optimiser, train
from cop2l.learner import graphs
from cop2l.learner.cop2l import CoP2L
from cop2l.learner.engine import Engine
from cop2l.learner.graphs import Graphs, RecordedPool, RecordedSteps, Recorder
from cop2l.models import build

CLASSES, SHAPE, WORDS = 6, (1, 23, 23), (7, "update", 1, 0)
cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=cuda)])
def device(request, monkeypatch):
    """A device on which graphs are used."""
    monkeypatch.setattr(graphs, "has_graphs", lambda _: True)
    with exact_arithmetic(1):
        yield torch.device(request.param)


class Normed(nn.Module):
    """A user's own network with batch normalisation, which writes into its input."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(529, 7), nn.BatchNorm1d(7), nn.Dropout(0.3), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.head(self.body(x.mul_(0.5).flatten(1)))


class Linear(nn.Module):
    """A user's own linear layer."""

    def __init__(self):
        super().__init__()
        self.head, self.calls = nn.Linear(529, CLASSES), 0

    def forward(self, x):
        return self.head(x.flatten(1))


class Counts(Linear):
    """Every second call gives other logits, decided on the host."""

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls % 2)


class Branches(Linear):
    """It waits for a number from the device."""

    def forward(self, x):
        return super().forward(x) * (2 if x.sum().item() > 0 else 1)


class Synchronizes(Linear):
    """It does what cannot be recorded, and what torch does not see before."""

    def forward(self, x):
        torch.cuda.synchronize()
        return super().forward(x)


def model_of(kind, device):
    if isinstance(kind, str):
        return build(kind, inputs=SHAPE, classes=CLASSES, seed=0).to(device).eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().to(device).eval()


def part_of(rows, task, device):
    draws = torch.Generator().manual_seed(task)
    x = torch.randn(rows, *SHAPE, generator=draws)
    y = 2 * (task - 1) + (x.flatten(1)[:, :9].sum(1) > 0).long()
    return sample(x.to(device), y.to(device), task, 0)


def masks(scenario, device):
    return head_masks([(0, 1), (2, 3), (4, 5)], CLASSES, scenario, device)


def plain_score(model, parts, masked_classes=None):
    return [score(model, part, masked_classes) for part in parts]


def bits(model, optimiser, scores):
    """All that scoring and training give."""
    arrays = [torch.as_tensor(row).cpu() for pair in scores for row in pair]
    tensors = [*model.state_dict().values(), *optimiser.state, *arrays]
    return digest({str(number): value for number, value in enumerate(tensors)})


def worked(model, computed, kind, scenario="class-incremental"):
    """Score two parts, train on sets that grow, and score again: the bits after each. At first all logits are equal."""
    device, after = next(model.parameters()).device, []
    masked_classes = masks(scenario, device)
    parts = [part_of(600, 1, device), part_of(37, 2, device)]
    for parameter in model.head.parameters():
        nn.init.zeros_(parameter)
    scores = (
        (lambda: plain_score(model, parts, masked_classes))
        if computed is None
        else (lambda: computed.score(parts, masked_classes))
    )
    for lr in (0.05, 0.01):
        optimiser = Optimiser(model, kind, lr)
        after.append(bits(model, optimiser, scores()))
        for j, n in enumerate((3, 32, 75)):
            trained, words = parts[0].take(np.arange(n)), (7, "update", 1, j)
            weight = torch.linspace(0.5, 2, n, dtype=torch.float64)
            if computed is None:
                train(model, optimiser, trained, weight, 3, 32, words, masked_classes)
            else:
                computed.train(optimiser, trained, weight, 3, 32, words, masked_classes)
            assert not model.training
            after.append(bits(model, optimiser, scores()))
    return after


def recorded(computed):
    return set(computed._recordings) if computed.failure is None else computed.failure


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("model", "scenario"),
    [
        ("linear", "class-incremental"), ("mlp", "class-incremental"), ("cnn", "task-incremental"),
        ("multi-head", "task-incremental"), (Normed, "class-incremental"),
    ],
)  # fmt: skip
def test_recordings_have_the_bits_of_the_kernel(device, model, scenario, kind):
    one, other = model_of(model, device), model_of(model, device)
    computed, before = Graphs(one), torch.get_rng_state()
    assert worked(one, computed, kind, scenario) == worked(other, None, kind, scenario)
    assert recorded(computed) == {RecordedPool, RecordedSteps}
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_in_other_memory(device):
    """The same examples are scored with parameters of another precision."""
    model, parts = model_of("mlp", device), [part_of(300, 1, device)]
    computed = Graphs(model)
    for dtype in (torch.float32, torch.float64):
        optimiser = Optimiser(model.to(dtype), "adam", 0.1)
        assert bits(model, optimiser, computed.score(parts)) == bits(
            model, optimiser, plain_score(model, parts)
        )
        assert recorded(computed) == {RecordedPool}


def test_many_epochs_go_to_the_device_in_parts(device, monkeypatch):
    monkeypatch.setattr(graphs, "TABLE", 1)
    monkeypatch.setattr(graphs, "FEWEST_ROWS", 2)
    one, other = model_of("mlp", device), model_of("mlp", device)
    computed = Graphs(one)
    assert worked(one, computed, "sgd") == worked(other, None, "sgd")
    assert recorded(computed) == {RecordedPool, RecordedSteps}


@pytest.mark.parametrize("work", ["score", "train"])
def test_a_model_that_counts_its_calls_runs_plainly(device, work):
    model, part = model_of(Counts, device), part_of(300, 1, device)
    computed = Graphs(model)
    if work == "score":
        computed.score([part])
    else:
        computed.train(Optimiser(model, "sgd", 0.1), part, torch.ones(300), 2, 64, WORDS)
    assert computed.failure
    assert computed._recordings == {}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", [Branches, Synchronizes])
def test_a_model_that_cannot_be_recorded_runs_plainly_and_harms_no_other(kind):
    """Random numbers, memory and the recordings of another model are as if nothing had been tried."""
    place = torch.device("cuda")
    one, other = model_of(kind, place), model_of(kind, place)
    computed = Graphs(one)
    with exact_arithmetic(1):
        assert worked(one, computed, "adam") == worked(other, None, "adam")
        assert computed.failure
        torch.rand(9, device=place)
        torch.cuda.empty_cache()
        one, other = model_of("mlp", place), model_of("mlp", place)
        computed = Graphs(one)
        assert worked(one, computed, "adam") == worked(other, None, "adam")
        assert recorded(computed) == {RecordedPool, RecordedSteps}


def changed(self, work):
    """A recording that computes something else: the next float."""

    def replay():
        work()
        target = getattr(work.__self__, "_host", None)
        target = next(work.__self__._model.parameters()).data if target is None else target
        target.view(-1)[:1] = torch.nextafter(target.view(-1)[:1], target.new_tensor(9.0))

    return replay


def refused(self, work):
    work()
    raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("record", [changed, refused])
def test_a_recording_with_other_bits_and_one_that_fails_are_not_used(device, monkeypatch, record):
    monkeypatch.setattr(Recorder, "record", record)
    for work in ("score", "train"):
        one, other = model_of(Normed, device), model_of(Normed, device)
        computed, parts = Graphs(one), [part_of(300, 1, device)]
        optimisers = [Optimiser(model, "adam", 0.1) for model in (one, other)]
        if work == "score":
            found, expected = computed.score(parts), plain_score(other, parts)
        else:
            found = expected = []
            computed.train(optimisers[0], parts[0], torch.ones(300), 2, 64, WORDS)
            train(other, optimisers[1], parts[0], torch.ones(300), 2, 64, WORDS)
        assert computed.failure
        assert bits(one, optimisers[0], found) == bits(other, optimisers[1], expected)


def test_what_is_too_large_or_on_a_disk_runs_plainly(device, monkeypatch, tmp_path):
    model, part = model_of("linear", device), part_of(300, 1, device)
    np.save(tmp_path / "x.npy", part.x.cpu().numpy())
    on_disk = sample(np.load(tmp_path / "x.npy", mmap_mode="r"), part.y, 1, 0)
    computed, optimiser = Graphs(model), Optimiser(model, "sgd", 0.1)
    computed.score([on_disk])
    assert recorded(computed) == set()
    computed.score([part])
    assert recorded(computed) == {RecordedPool}
    monkeypatch.setattr(graphs, "LARGEST", part.x.nbytes - 1)
    computed.train(optimiser, part, torch.ones(300), 1, 64, WORDS)
    assert recorded(computed) == {RecordedPool}


OPTIONS = {
    "k": 8,
    "epochs": 2,
    "batch": 32,
    "omega": 4.0,
    "max_iterations": 5,
    "memory": 60,
    "stop": "none",
    "seed": 3,
}


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_tasks_are_learned_as_by_the_reference(device, optimiser):
    """Task by task, the buffer included; no pool outlives its task."""
    options = Options(kind="preference", optimiser=optimiser, lr=0.05, **OPTIONS)
    thetas = []
    for kind in (Engine, ReferenceLearner):
        engine = kind(model_of("mlp", device), options, masks("task-incremental", device))
        after = []
        for task in (1, 2, 3):
            outcome = engine.learn(part_of(300, task, device))
            after.append((digest(engine.model.state_dict()), outcome.picked.tolist(), len(engine.buffer[0])))
        thetas.append(after)
        if kind is Engine:
            assert recorded(engine.graphs) == {RecordedSteps}
    assert thetas[0] == thetas[1]


def test_a_learner_is_interrupted_saved_and_loaded(device, monkeypatch, tmp_path):
    """As often as one likes, it learns the bits of one that went straight through."""
    data = {task: part_of(300, task, device) for task in (1, 2)}
    straight, stopped = (
        CoP2L(model_of("mlp", device), preset="picking", lr=0.05, **OPTIONS) for _ in range(2)
    )
    for part in data.values():
        straight.learn(part.x, part.y, progress=False)
    stopped.learn(data[1].x, data[1].y, progress=False)
    stopped.save(tmp_path)
    stopped = CoP2L.load(tmp_path)
    sent, original = [], RecordedSteps._send

    def interrupted(self, *table):
        sent.append(table)
        if len(sent) == 3:
            raise KeyboardInterrupt
        return original(self, *table)

    with monkeypatch.context() as patch:
        patch.setattr(RecordedSteps, "_send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stopped.learn(data[2].x, data[2].y, progress=False)
    stopped.learn(data[2].x, data[2].y, progress=False)
    assert recorded(stopped.engine.graphs) == {RecordedSteps}
    assert digest(stopped.model.state_dict()) == digest(straight.model.state_dict())


def test_recordings_end_with_their_learner(device):
    """On a CUDA device without a collection of garbage, too."""

    def learn():
        engine = Engine(model_of("mlp", device), Options(kind="preference", lr=0.05, **OPTIONS))
        engine.learn(part_of(300, 1, device))
        return weakref.ref(engine), weakref.ref(engine.graphs)

    learn()  # what libraries keep
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        assert [one() for one in learn()] == [None, None]
        assert device.type == "cpu" or torch.cuda.memory_allocated() <= before
    finally:
        gc.enable()
