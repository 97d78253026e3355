"""The score of an example is right, and the same bit pattern whatever is scored with it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from learner_cases import digests, parameters, same_bits
from torch import nn

from cop2l.errors import UserError
from cop2l.kernel.exact import LARGE_BLOCK as BLOCK
from cop2l.kernel.exact import block_rows, check_alone, exact_arithmetic, sample, score
from cop2l.kernel.options import Refusal
from cop2l.learner.cop2l import CoP2L
from cop2l.learner.scoring import outputs
from cop2l.models import build


def examples(width, classes, dtype=torch.float32, rows=60):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=draw, dtype=torch.float64).to(dtype)
    return sample(x, torch.randint(classes, (rows,), generator=draw), 1, 0)


# ---- right


@pytest.mark.parametrize("classes", [2, 100])
@pytest.mark.parametrize(("width", "rows"), [(16, 1), (16, 2 * BLOCK), (16, BLOCK + 1), (600, 257)])
def test_losses_and_errors_are_those_of_torch(width, rows, classes):
    model, part = (
        build("linear", inputs=(width,), classes=classes, seed=0),
        examples(width, classes, rows=rows),
    )
    losses, errors = score(model, part)
    logits = model(part.x)
    assert torch.allclose(losses, F.cross_entropy(logits, part.y, reduction="none"))
    assert np.array_equal(errors, (logits.argmax(1) != part.y).numpy())
    assert torch.allclose(torch.cat([*outputs(model, part.x)]), logits, atol=1e-6)


class Says(nn.Module):
    """Its logits are its inputs, in the same memory each time."""

    def __init__(self):
        super().__init__()
        self.scale, self.memory = nn.Parameter(torch.ones(1)), torch.empty(0)

    def forward(self, x):
        return self.memory.resize_(x.shape).copy_(x)


def test_only_a_strictly_largest_logit_is_correct():
    inf, nan = torch.inf, torch.nan
    logits = [[1, 0], [0, 0], [0, 1], [nan, 0], [0, nan], [inf, inf], [-inf, -inf], [inf, 0], [2, 1]]
    x = torch.tensor(logits).repeat(BLOCK, 1)  # nine blocks that differ
    part = sample(x, torch.zeros(len(x), dtype=torch.int64), 1, 0)
    assert (
        score(Says(), part)[1].tolist() == [False, True, True, True, True, True, True, False, False] * BLOCK
    )


def test_classes_outside_the_head_are_hidden_after_the_whole_head_was_computed():
    """An example counts as right if its class is the largest of its task's own."""
    masked_classes = torch.tensor([[False] * 4, [False, False, True, True], [True, True, False, False]])
    x = torch.tensor([[0.0, 1.0, 9.0, 9.0], [2.0, 1.0, 9.0, 9.0], [9.0, 9.0, 0.0, 1.0], [9.0, 9.0, 1.0, 0.0]])
    order = np.random.default_rng(0).permutation(4 * BLOCK) % 4  # four blocks that differ
    part = replace(sample(x[order], torch.tensor([1, 1, 3, 3])[order], 1, 0), task=1 + order // 2)
    losses, errors = score(Says(), part, masked_classes)
    assert np.array_equal(errors, order % 2 == 1)
    near, far = (
        torch.tensor(z).exp().log1p() for z in (-1.0, 1.0)
    )  # -log softmax of the larger and of the smaller
    assert torch.allclose(losses, torch.stack([near, far])[order % 2])
    assert torch.cat([*outputs(Says(), x, 1, masked_classes)]).argmax(1).tolist() == [1, 0, 0, 0]


# ---- the same bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "width", "architecture"),
    [("linear", 785, {}), ("mlp", 13, {"hidden": 13}), ("mlp", 16, {"hidden": 785})],
)
def test_alone_in_full_permuted_and_in_part(name, width, architecture, threads, dtype):
    model = build(name, inputs=(width,), classes=10, seed=0, **architecture).to(dtype)
    rows = 600 if width > 512 else BLOCK + 61
    part, order = examples(width, 10, dtype, rows), np.random.default_rng(0).permutation(rows)
    with exact_arithmetic(threads):
        losses, errors = score(model, part)
        for chosen in (order, order[:257], order[:7], order[:1], order[-1:]):
            subset = score(model, part.take(chosen))
            assert torch.equal(subset[0], losses[torch.from_numpy(chosen)])
            assert np.array_equal(subset[1], errors[chosen])


@pytest.mark.parametrize(("width", "block"), [(16, BLOCK), (600, 256)])
def test_scoring_needs_one_block_of_activations_at_a_time(width, block):
    sizes = set()

    class Watched(nn.Linear):
        def forward(self, x):
            sizes.add(len(x))
            return super().forward(x)

    part = examples(width, 3, rows=2 * block + 5)
    assert block_rows(part.x) == block
    score(Watched(width, 3), part)
    assert sizes == {block}


@pytest.mark.parametrize("count", [1, 16, 300])
def test_predictions_do_not_depend_on_settings_of_torch_or_of_the_model(count):
    model = build("mlp", inputs=(48,), classes=10, seed=0, dropout=0.5)
    learner, part = CoP2L(model, preset="picking", memory=20, max_iterations=1), examples(48, 10, rows=300)
    learner.learn(part.x, part.y, progress=False)
    inputs = part.x[:count]
    expected = learner.probabilities(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(learner.model(inputs).softmax(1).float(), expected)  # it would show
        assert torch.equal(learner.probabilities(inputs), expected)
    learner.model.train()
    assert torch.equal(learner.probabilities(inputs), expected)
    assert learner.model.training
    assert torch.is_grad_enabled()


# ---- models whose scores depend on the examples scored together are refused


class MixesExamples(nn.Module):
    """Subtracts the batch's mean: an example's score depends on the others."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x - x.mean(0))


class Noisy(MixesExamples):
    """Draws random numbers in evaluation, too."""

    def forward(self, x):
        return self.head(F.dropout(x, 0.5, training=True))


class Residual(MixesExamples):
    """Its scores differ from the start, and yet a branch of it shows only when it is no longer zero."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(4, 3, bias=False)
        nn.init.zeros_(self.branch.weight)

    def forward(self, x):
        return self.head(x) + self.branch(x - x.mean(0))


REFUSED = "Scores depend on the examples scored together"


def build_seeded(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


@pytest.mark.parametrize("kind", [MixesExamples, Noisy])
@pytest.mark.parametrize("rows", [3, 700])
def test_a_model_that_mixes_examples_is_refused(kind, rows):
    with torch.random.fork_rng(), pytest.raises(Refusal, match=REFUSED):
        check_alone(build_seeded(kind), [examples(4, 3, rows=rows).x], build_seeded(kind))


@pytest.mark.parametrize("kind", [MixesExamples, Residual])
def test_initial_weights_of_zero_hide_nothing(kind):
    """With them nothing depends on the other examples at first, so the check is repeated with the learned weights."""
    model, part = build_seeded(kind), examples(4, 3)
    if kind is MixesExamples:
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
    check_alone(model, [part.x], deepcopy(model))
    before = parameters(model)
    learner = CoP2L(model, preset="picking", memory=10, k=8, epochs=1, max_iterations=3, stop="none", lr=0.5)
    with pytest.raises(UserError, match=REFUSED):
        learner.learn(part.x, part.y)
    assert learner.tasks_seen == 0
    assert same_bits(parameters(model), before)


def test_the_check_changes_nothing():
    model, part = build("mlp", inputs=(25,), classes=3, seed=0), examples(25, 3)
    before = digests(part.x), torch.get_rng_state().numpy().tobytes(), parameters(model)
    check_alone(model, [part.x], deepcopy(model))
    assert before[:2] == (digests(part.x), torch.get_rng_state().numpy().tobytes())
    assert same_bits(before[2], parameters(model))
