"""The score of an example is the same bit pattern whatever is scored with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from certify_cases import digests, parameters, same_bits
from torch import nn

from cop2l.certify.learner import CoP2L
from cop2l.certify.scoring import ErrorCount, Pool, misclassified, outputs
from cop2l.errors import UserError
from cop2l.kernel.exact import LARGE_BLOCK as BLOCK
from cop2l.kernel.exact import block_rows, check_alone, exact_arithmetic, sample, score
from cop2l.kernel.models import Linear
from cop2l.kernel.options import Refusal
from cop2l.models import build

WIDTHS = (13, 50, 785)
ROWS = 2 * BLOCK + 61


def predict(*arguments):
    return torch.cat([logits.argmax(1) for logits in outputs(*arguments)])


def examples(shape, classes, dtype, rows=ROWS):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, *shape, generator=draw, dtype=torch.float64).to(dtype)
    return sample(x, torch.randint(classes, (rows,), generator=draw), 1, 0)


def fast_score(model, part):
    """The fast path's losses and errors."""
    losses, wrong = Pool(model, [part], None, [1.0]).score()
    return losses[: len(part)], wrong


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
    parts = [everything, everything[:256], everything[:257], everything[:BLOCK], everything[: BLOCK + 1]]
    return [*parts, everything[:7], everything[:100], *singles]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("name", "shape", "architecture"), CASES)
def test_alone_in_full_permuted_and_in_part(name, shape, architecture, threads, dtype):
    model = build(name, inputs=shape, classes=10, seed=0, **architecture).to(dtype)
    rows = ROWS if shape[0] <= 512 else 600
    rows = rows if name != "cnn" else 40
    part = examples(shape, 10, dtype, rows)
    with exact_arithmetic(threads):
        losses, errors = score(model, part)
        quick = fast_score(model, part)
        assert torch.equal(quick[0], losses)
        assert np.array_equal(quick[1], errors)
        for chosen in subsets(rows) if name != "cnn" else subsets(rows)[5:8]:
            subset = score(model, part.take(chosen))
            assert torch.equal(subset[0], losses[torch.from_numpy(chosen)])
            assert np.array_equal(subset[1], errors[chosen])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_many_blocks_and_classes(classes, threads, dtype):
    """The fast path takes the softmax over several blocks at once: their number must not show."""
    model = build("linear", inputs=(16,), classes=classes, seed=0).to(dtype)
    part = examples((16,), classes, dtype, max(2, 2**18 // classes // BLOCK) * BLOCK + 5)
    with exact_arithmetic(threads):
        losses, errors = score(model, part)
        quick = fast_score(model, part)
    assert torch.equal(quick[0], losses)
    assert np.array_equal(quick[1], errors)
    assert np.array_equal(misclassified(model, part, None), errors)
    plain = F.cross_entropy(model(part.x), part.y, reduction="none")
    assert torch.allclose(losses, plain)
    other = (predict(model, part.x) != part.y).numpy()
    assert not (other & ~errors).any()
    assert (errors & ~other).sum() <= 3  # a tie is an error, and yet something is predicted


@pytest.mark.parametrize("count", [1, 16, 300])
def test_predictions_do_not_depend_on_settings_of_torch_or_of_the_model(count):
    learner = CoP2L(
        build("mlp", inputs=(48,), classes=10, seed=0, dropout=0.5),
        preset="picking",
        memory=20,
        max_iterations=1,
    )
    dataset = examples((48,), 10, torch.float32, 300)
    learner.learn(dataset.x, dataset.y, progress=False)
    expected, inputs = learner.probabilities(dataset.x[:count]), dataset.x[:count]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(learner.model(inputs).softmax(1).float(), expected)  # it would show
        assert torch.equal(learner.probabilities(inputs), expected)
    learner.model.train()
    assert torch.equal(learner.probabilities(inputs), expected)
    assert learner.model.training
    assert torch.is_grad_enabled()
    learner.model.dropout = torch.nn.Dropout(0.9)  # another module, in training mode
    assert torch.equal(learner.probabilities(inputs), expected)


def test_errors_of_tasks_that_are_counted_together():
    """Small and large tasks, an empty one, other types of numbers, and rows in another order."""
    model = build("mlp", inputs=(48,), classes=10, seed=0, hidden=13)
    parts = [examples((48,), 10, torch.float32, n) for n in (3, BLOCK + 9, 5, 0, 60)]
    parts[2] = replace(parts[2], x=parts[2].x.double())
    parts[4] = replace(parts[4], x=parts[4].x.numpy())
    rows = [np.random.default_rng(0).permutation(len(part)) for part in parts]
    masks = [np.ones(len(part), bool) for part in parts]
    with exact_arithmetic(1):
        count = ErrorCount(model, None)
        for part, mask, at in zip(parts, masks, rows, strict=True):
            count.add(part, mask, at)
        count.finish()
        for part, mask, at in zip(parts, masks, rows, strict=True):
            assert np.array_equal(mask[at], score(model, part)[1])


def test_without_blocks_and_padding_the_same_check_fails():
    """It has power: plain batches of other sizes, or other positions, change bits at some width."""
    differences = []
    for width in WIDTHS:
        model = build("mlp", inputs=(width,), classes=10, seed=0, hidden=width).eval()
        dataset = examples((width,), 10, torch.float32)
        with torch.no_grad():
            plain = F.cross_entropy(model(dataset.x), dataset.y, reduction="none")
            for chosen in subsets(ROWS):
                part = dataset.take(chosen)
                alone = F.cross_entropy(model(part.x), part.y, reduction="none")
                differences.append(not torch.equal(alone, plain[torch.from_numpy(chosen)]))
    if not any(differences):
        pytest.skip("this machine scores plain batches of any size exactly")


def test_inputs_may_lie_in_memory_in_any_way():
    model = build("cnn", inputs=(1, 12, 12), classes=4, seed=0)
    dataset = examples((1, 12, 12), 4, torch.float32, 20)
    reference = score(model, dataset)[0]
    last = dataset.x.to(memory_format=torch.channels_last)
    assert last.is_contiguous()  # torch calls both contiguous
    assert last.stride() != dataset.x.stride()
    backwards = dataset.x.flip(0).contiguous().flip(0)
    fortran = np.asfortranarray(dataset.x.numpy())
    frozen = dataset.x.numpy().copy()
    frozen.flags.writeable = False
    shifted = torch.cat([dataset.x[:1], dataset.x])[1:]
    for x in (last, backwards, fortran, frozen, shifted):
        part = sample(x, dataset.y, 1, 0)
        assert torch.equal(score(model, part)[0], reference)
        assert torch.equal(fast_score(model, part)[0], reference)
        assert torch.equal(predict(model, x), predict(model, dataset.x))


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


def build_seeded(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


@pytest.mark.parametrize("kind", [MixesExamples, NormalisesOverTheBatch, Noisy])
@pytest.mark.parametrize("rows", [3, 700])
def test_a_model_that_mixes_examples_is_refused(kind, rows):
    with (
        torch.random.fork_rng(),
        pytest.raises(Refusal, match="Scores depend on the examples scored together"),
    ):
        check_alone(build_seeded(kind), examples((4,), 3, torch.float32, rows))


def a_learner(model):
    return CoP2L(
        model, preset="picking", memory=10, prior=0.0, k=8, epochs=1, max_iterations=3, stop="none", lr=0.5
    )


def test_initial_weights_of_zero_hide_nothing():
    """With a head of zeros all scores are equal at first, so the check is repeated with the learned weights."""
    model = build_seeded(MixesExamples)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    dataset = examples((4,), 3, torch.float32, 60)
    check_alone(model, dataset)
    learner = a_learner(model)
    with pytest.raises(UserError, match="Scores depend on the examples scored together"):
        learner.learn(dataset.x, dataset.y)
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

    every = examples((4,), 3, torch.float32, 60)
    with pytest.raises(UserError, match="Scores depend on the examples scored together"):
        a_learner(build_seeded(Residual)).learn(every.x, every.y)


def test_the_check_changes_nothing():
    model, dataset = build("mlp", inputs=(25,), classes=3, seed=0), examples((25,), 3, torch.float32, 60)
    before = digests(dataset.x), torch.get_rng_state().numpy().tobytes(), parameters(model)
    check_alone(model, dataset)
    assert before[:2] == (digests(dataset.x), torch.get_rng_state().numpy().tobytes())
    assert same_bits(before[2], parameters(model))


def test_a_model_of_ours_with_a_forward_pass_of_the_users():
    class Twice(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model, dataset = Twice((16,), 10), examples((16,), 10, torch.float32)
    plain = F.cross_entropy(model(dataset.x), dataset.y, reduction="none")
    assert torch.allclose(score(model, dataset)[0], plain)
    assert torch.equal(fast_score(model, dataset)[0], score(model, dataset)[0])


class Says(nn.Module):
    """Its logits are its inputs, in the same memory each time."""

    def __init__(self):
        super().__init__()
        self.scale, self.memory = nn.Parameter(torch.ones(1)), torch.empty(0)

    def forward(self, x):
        return self.memory.resize_(x.shape).copy_(x)


def test_only_a_strictly_largest_logit_is_correct():
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor(
        [
            [1.0, 0.0],
            [0.0, 0.0],
            [0.0, 1.0],
            [nan, 0.0],
            [0.0, nan],
            [inf, inf],
            [-inf, -inf],
            [inf, 0.0],
            [2.0, 1.0],
        ]
    ).repeat(BLOCK, 1)  # nine blocks that differ
    part = sample(logits, torch.zeros(len(logits), dtype=torch.int64), 1, 0)
    expected = [False, True, True, True, True, True, True, False, False] * BLOCK
    assert score(Says(), part)[1].tolist() == fast_score(Says(), part)[1].tolist() == expected


def test_classes_outside_the_head_are_hidden_after_the_whole_head_was_computed():
    """An example counts as right if its class is the largest of its task's own."""
    masked_classes = torch.tensor([[False] * 4, [False, False, True, True], [True, True, False, False]])
    x = torch.tensor([[0.0, 1.0, 9.0, 9.0], [2.0, 1.0, 9.0, 9.0], [9.0, 9.0, 0.0, 1.0], [9.0, 9.0, 1.0, 0.0]])
    part = sample(x, torch.tensor([1, 1, 3, 3]), 1, 0)
    part.task[2:] = 2
    losses, errors = score(Says(), part, masked_classes)
    assert errors.tolist() == [False, True, False, True]
    near, far = (
        torch.tensor(z).exp().log1p() for z in (-1.0, 1.0)
    )  # -log softmax of the larger and of the smaller
    assert torch.allclose(losses, torch.stack([near, far, near, far]))
    assert misclassified(Says(), part, masked_classes).tolist() == errors.tolist()
    assert predict(Says(), x, 1, masked_classes).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("scored", [score, fast_score])
def test_scoring_needs_one_block_of_activations_at_a_time(scored):
    sizes = set()

    class Watched(nn.Linear):
        def forward(self, x):
            sizes.add(len(x))
            return super().forward(x)

    for width, block in ((16, BLOCK), (600, 256)):
        dataset = examples((width,), 3, torch.float32, 2 * block + 5)
        assert block_rows(dataset.x) == block
        sizes.clear()
        scored(Watched(width, 3), dataset)
        assert sizes == {block}
