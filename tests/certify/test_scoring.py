"""The score of an example is the same bit pattern whatever is scored with it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cop2l.certify.examples import sample
from cop2l.certify.learner import CoP2L
from cop2l.certify.scoring import LARGE_BLOCK as BLOCK
from cop2l.certify.scoring import ExactnessError, chunk_rows, classified, entries, predict, prove_exact, score
from cop2l.certify.training import pinned_threads
from cop2l.models import Linear, build

WIDTHS = (13, 50, 785)
ROWS = 2 * BLOCK + 61


def examples(shape, classes, dtype, rows=ROWS):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64).to(dtype)
    return sample(x, torch.randint(classes, (rows,), generator=draw), 1, 0)


def models():
    for width in WIDTHS:
        yield f"linear {width}", "linear", (width,), {}
        yield f"mlp {width}-{width}", "mlp", (width,), {"hidden": width}
    yield "mlp 16-785", "mlp", (16,), {"hidden": 785}
    yield "linear 384", "linear", (384,), {}
    yield "mlp 784-512", "mlp", (784,), {"hidden": 512}
    yield "cnn 12x12", "cnn", (1, 12, 12), {}


CASES = [pytest.param(*case[1:], id=case[0]) for case in models()]


def subsets(rows):
    draw = np.random.default_rng(0)
    everything = draw.permutation(rows)
    singles = [np.array([i]) for i in draw.integers(rows, size=6)]
    return [
        everything,
        everything[:BLOCK],
        everything[: BLOCK + 1],
        everything[:7],
        everything[:100],
        *singles,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("name", "shape", "more"), CASES)
def test_alone_in_full_permuted_and_in_part(name, shape, more, threads, dtype):
    model = build(name, inputs=shape, classes=10, seed=0, **more).to(dtype)
    rows = ROWS if name != "cnn" else BLOCK + 9
    every = examples(shape, 10, dtype, rows)
    with pinned_threads(threads):
        losses, wrong = score(model, every)
        for chosen in subsets(rows) if name != "cnn" else subsets(rows)[3:8]:
            some = score(model, every.take(chosen))
            assert torch.equal(some[0], losses[torch.from_numpy(chosen)])
            assert torch.equal(some[1], wrong[torch.from_numpy(chosen)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_many_blocks(classes, threads, dtype):
    """The softmax is taken over several blocks at once: their number must not show either."""
    model = build("linear", inputs=(16,), classes=classes, seed=0).to(dtype)
    chunk = chunk_rows(classes, BLOCK)
    every = examples((16,), classes, dtype, chunk + BLOCK + 5)
    with pinned_threads(threads):
        losses, wrong = score(model, every)
        for chosen in (np.arange(3), np.arange(chunk - 1, len(every)), np.arange(5, len(every), 7)):
            some = score(model, every.take(chosen))
            assert torch.equal(some[0], losses[torch.from_numpy(chosen)])
            assert torch.equal(some[1], wrong[torch.from_numpy(chosen)])
    plain = F.cross_entropy(model(every.x), every.y, reduction="none")
    assert torch.allclose(losses, plain)
    assert torch.equal(predict(model, every.x) != every.y, wrong)


def test_without_blocks_and_padding_the_same_check_fails():
    """It has power: plain batches of other sizes, or other positions, change bits at some width."""
    found = []
    for width in WIDTHS:
        model = build("mlp", inputs=(width,), classes=10, seed=0, hidden=width).eval()
        every = examples((width,), 10, torch.float32)
        with torch.no_grad():
            plain = F.cross_entropy(model(every.x), every.y, reduction="none")
            for chosen in subsets(ROWS):
                part = every.take(chosen)
                alone = F.cross_entropy(model(part.x), part.y, reduction="none")
                found.append(not torch.equal(alone, plain[torch.from_numpy(chosen)]))
    if not any(found):
        pytest.skip("this machine scores plain batches of any size exactly")


def test_inputs_may_lie_in_memory_in_any_way():
    model = build("cnn", inputs=(1, 12, 12), classes=4, seed=0)
    every = examples((1, 12, 12), 4, torch.float32, BLOCK + 9)
    reference = score(model, every)[0]
    last = every.x.to(memory_format=torch.channels_last)
    assert last.is_contiguous()  # torch calls both contiguous
    assert last.stride() != every.x.stride()
    backwards = every.x.flip(0).contiguous().flip(0)
    fortran = np.asfortranarray(every.x.numpy())
    frozen = every.x.numpy().copy()
    frozen.flags.writeable = False
    shifted = torch.cat([every.x[:1], every.x])[1:]
    for x in (last, backwards, fortran, frozen, shifted):
        assert torch.equal(score(model, sample(x, every.y, 1, 0))[0], reference)
        assert torch.equal(predict(model, x), predict(model, every.x))


class MixesExamples(nn.Module):
    """Subtracts the batch's mean: an example's score depends on the others."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x - x.mean(0))


class NormalisesOverTheBatch(nn.Module):
    """Batch normalisation without running statistics uses the batch's own, in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x))


class Noisy(nn.Module):
    """Draws random numbers in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.dropout(x, 0.5, training=True))


@pytest.mark.parametrize("kind", [MixesExamples, NormalisesOverTheBatch, Noisy])
@pytest.mark.parametrize("rows", [3, 700])
def test_a_model_that_mixes_examples_is_refused(kind, rows):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind()
        with pytest.raises(ExactnessError, match="depends on the examples scored with it"):
            prove_exact(model, examples((4,), 3, torch.float32, rows))


def test_initial_weights_of_zero_hide_nothing():
    """With a head of zeros all scores are equal at first, so the proof is repeated with the learned weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MixesExamples()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    every = examples((4,), 3, torch.float32, 60)
    prove_exact(model, every)
    learner = CoP2L(model, memory=10, prior=0.0, k=8, epochs=1, max_iterations=3, stop="none", lr=0.5)
    with pytest.raises(ExactnessError):
        learner.learn(every.x, every.y)
    assert learner.tasks_seen == 0
    assert not model.head.weight.any()


def test_a_branch_that_is_zero_at_first_hides_nothing():
    """The scores differ from the start, and yet a part of the model has not been tested."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.branch = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)
            nn.init.zeros_(self.branch.weight)

        def forward(self, x):
            return self.head(x) + self.branch(x - x.mean(0))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Residual()
    every = examples((4,), 3, torch.float32, 60)
    learner = CoP2L(model, memory=10, prior=0.0, k=8, epochs=1, max_iterations=3, stop="none", lr=0.5)
    with pytest.raises(ExactnessError):
        learner.learn(every.x, every.y)


def test_scoring_switches_modules_that_keep_their_mode_themselves():
    class Told(nn.Linear):
        def __setattr__(self, name, value):
            if name == "training":
                modes.append(value)
            super().__setattr__(name, value)

    modes: list[bool] = []
    model, every = nn.Sequential(Told(4, 3)).train(), examples((4,), 3, torch.float32, 60)
    modes.clear()
    score(model, every)
    assert modes == [False, True]
    assert model.training


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_good_models_are_not_refused(name):
    shape = (1, 12, 12)
    prove_exact(build(name, inputs=shape, classes=5, seed=0), examples(shape, 5, torch.float32, 300))


def test_a_model_of_ours_with_a_forward_pass_of_the_users():
    class Twice(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model, every = Twice((16,), 10), examples((16,), 10, torch.float32)
    plain = F.cross_entropy(model(every.x), every.y, reduction="none")
    assert torch.allclose(score(model, every)[0], plain)


def test_only_a_strictly_largest_logit_is_correct():
    logits = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [torch.nan, 0.0], [0.0, torch.nan]])
    own = entries(torch.zeros(5, dtype=torch.int64))
    assert classified(logits.t().contiguous(), own).tolist() == [True, False, False, False, False]


def test_scoring_needs_one_block_of_activations_at_a_time():
    largest = 0

    class Watched(nn.Linear):
        def forward(self, x):
            nonlocal largest
            largest = max(largest, len(x))
            return super().forward(x)

    model = Watched(16, 3)
    score(model, examples((16,), 3, torch.float32, 4 * BLOCK + 5))
    assert largest == BLOCK
