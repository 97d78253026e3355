"""A pool that skips rows picks the same blocks and counts the same errors as one that scores all of them."""

import math

import numpy as np
import pytest
import torch
from certify_cases import case_of, compress, model_of, standing
from hypothesis import given, settings
from hypothesis import strategies as st

from cop2l.certify import skipping
from cop2l.certify.fast import Fast, Pool, exact_already, top
from cop2l.kernel.learning import LARGE_BLOCK, Plain, exact_arithmetic, sample
from cop2l.kernel.options import Refusal
from cop2l.models import build

with exact_arithmetic(1):
    ABLE = exact_already(torch.zeros(1)) and skipping.quick_whole_products()
pytestmark = pytest.mark.skipif(not ABLE, reason="torch before 2.9, or no quick products of whole numbers")


@pytest.fixture(autouse=True, scope="module")
def _at_once():
    """Also in small pools, from the first iteration on."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOGITS", "BLOCKS", "PATIENCE"):
            patch.setattr(skipping, name, 0)
        yield


class Pools:
    """The same examples in a pool that scores all and in one that skips, and a linear head that is moved by hand."""

    def __init__(self, sizes, width, classes, seed=0, scale=1.0, values=None, omega=1.0, k=2, errors=True):
        draw = self.draw = np.random.default_rng(seed)
        self.model = build("linear", inputs=(width,), classes=classes, seed=seed)
        self.k, self.errors, self.parts = k, errors, []
        for task, n in enumerate(sizes, 1):
            x = draw.normal(size=(n, width))
            if values is not None:
                x = x.round().clip(-values, values)
            x[n // 2 :] = x[draw.integers(0, max(1, n // 2), n - n // 2)]  # copies: their losses tie
            y = torch.from_numpy(draw.integers(classes, size=n))
            self.parts.append(sample(torch.from_numpy((scale * x).astype(np.float32)), y, task, seed))
        self.weights = [1.0, omega][: len(sizes)]
        self.lay_out()

    def lay_out(self):
        """Both pools, of the examples and the head as they are now."""
        with exact_arithmetic(1):
            self.plain = Pool(self.model, self.parts, None, self.weights)
            self.quick = skipping.pool_of(self.model, self.parts, None, self.weights, self.k)
        assert isinstance(self.quick, skipping.Skipping)
        self.rest = self.plain.laid_out([self.draw.random(len(part)) < 0.9 for part in self.parts], False)
        self.mark = self.plain.laid_out([part.mark for part in self.parts], 0)
        self.close(np.flatnonzero(~self.rest))

    def close(self, rows):
        self.rest[rows] = False
        self.plain.close(rows)
        self.quick.close(rows)

    def move(self, size):
        """Every number of the head moves by about so much."""
        with torch.no_grad():
            for p in self.model.parameters():
                p += torch.from_numpy(size * self.draw.normal(size=p.shape)).float()

    def found(self, pool):
        """What an iteration takes from a pool: the largest loss, the block on top with its losses, the errors."""
        with exact_arithmetic(1):
            losses, wrong = pool.score(errors=self.errors)
        worst, picked = top(losses, self.rest, self.mark, self.k)
        return worst, picked, pool.losses_at(picked), np.flatnonzero(wrong & self.rest[: len(wrong)])

    def same(self):
        """One iteration of both: whether all of it is equal, bit for bit; then the block is closed."""
        plain, quick = self.found(self.plain), self.found(self.quick)
        self.close(plain[1])
        return all(np.array_equal(*both, equal_nan=True) for both in zip(plain, quick, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([9, 40, 700, LARGE_BLOCK + 9]),
    st.lists(st.sampled_from([1, 3, 700]), max_size=1),
    st.sampled_from([1, 2, 5, 16, 50]),
    st.integers(2, 7),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-42, 1e-20, 1e-3, 1.0, 30.0, 1e4, 1e18, 1e30]),
    st.sampled_from([None, None, 0, 1, 2]),
    st.sampled_from([0.04, 1.0, 25.0, 1e12]),
    st.sampled_from([1, 4, 60]),
    st.booleans(),
    st.lists(st.sampled_from([0.0, 1e-9, 1e-5, 1e-3, 0.03, 1.0, 1e5, 1e30, math.inf, math.nan]), min_size=2, max_size=9),
)  # fmt: skip
def test_all_iterations_are_the_same(
    rows, buffer, width, classes, seed, scale, values, omega, k, errors, moves
):
    k = min(k, (rows - 1) // 8)  # of more it scores all rows
    pools = Pools([rows, *buffer], width, classes, seed, scale, values, omega, k, errors)
    for move in moves:
        assert pools.same()
        pools.move(move)
    assert pools.same()


@pytest.mark.parametrize("omega", [3e-45, 1e-44, 2e38])
def test_weights_at_the_ends_of_float32(omega):
    for seed in range(6):
        pools = Pools([20, 900], 3, 3, seed, omega=omega)
        pools.close(np.arange(20 if omega < 1 else 0))
        for _ in range(6):
            assert pools.same()
            pools.move(0.05)


def test_logits_whose_difference_is_infinite_are_sure_of_nothing():
    pools = Pools([400], 2, 2)
    (part,) = pools.parts
    part.x.zero_()[:100, 1] = part.x[100:, 0] = 0.8e18
    part.y.copy_(torch.arange(400) < 100)  # the first hundred stay wrong, infinitely; the others turn
    pools.lay_out()
    for turned in (1.0, 1.0, -1.0, 1.0):
        with torch.no_grad():
            pools.model.head.bias.zero_()
            pools.model.head.weight.copy_(3e20 * torch.tensor([[turned, 1.0], [-turned, -1.0]]))
        assert pools.same()


@pytest.mark.parametrize("errors", [True, False])
def test_a_head_that_comes_from_far_away(errors):
    for seed in range(6):
        pools = Pools([450], 3, 3, seed, errors=errors)
        near = {name: value.clone() for name, value in pools.model.state_dict().items()}
        pools.move(1e14)
        pools.lay_out()
        pools.model.load_state_dict(near)
        for _ in range(12):
            assert pools.same()
            pools.move(0.01)


def test_products_that_saturate_are_not_used(monkeypatch):
    def saturating(a, b):
        """As processors without such products add up two at a time: in 16 bits, the first factor shifted to be positive."""
        a, b = a.long() + 128, b.long()
        pairs = (a[:, 0::2, None] * b[None, 0::2] + a[:, 1::2, None] * b[None, 1::2]).clamp(
            -(2**15), 2**15 - 1
        )
        return (pairs.sum(1) - 128 * b.sum(0)).int()

    assert skipping.quick_whole_products.__wrapped__()
    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not skipping.quick_whole_products.__wrapped__()


def test_all_rows_are_scored_where_new_tensors_have_another_precision():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        part = sample(ROWS, torch.zeros(len(ROWS), dtype=torch.long), 1, 0)
        with exact_arithmetic(1):
            assert type(skipping.pool_of(MODEL, [part], None, [1.0], 2)) is Pool
    finally:
        torch.set_default_dtype(before)


def looked_at(monkeypatch):
    """How many rows are scored, and how many looked at more closely, from now on."""
    counts = {"_score_rows": [], "_look_closer": []}
    for name, found in counts.items():
        whole = getattr(skipping.Skipping, name)

        def counting(self, rows, whole=whole, found=found):
            found.append(len(rows))
            whole(self, rows)

        monkeypatch.setattr(skipping.Skipping, name, counting)
    return counts


def test_few_rows_are_scored_where_the_head_moves_little(monkeypatch):
    counts, pools = looked_at(monkeypatch), Pools([3 * LARGE_BLOCK], 48, 10, k=4)
    for _ in range(9):
        assert pools.same()
        pools.move(1e-4)
    assert 0 < sum(counts["_score_rows"]) < 8 * 600
    assert 0 < sum(counts["_look_closer"]) < 8 * 1500


def wrong_bounds(factor):
    """In how many of some pools something differs, where the bound is taken to be so much smaller."""
    true, found = skipping.widest, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skipping, "widest", lambda rows: factor * true(rows))
        for seed in range(5):
            pools = Pools([2000], 1, 2, seed, scale=3.0)  # with one feature the bound is nearly reached
            for _ in range(6):
                found += not pools.same()
                pools.move(0.1)
    return found


def test_a_smaller_bound_is_no_bound():
    assert wrong_bounds(1.0) == 0
    assert wrong_bounds(0.5) > 3
    assert wrong_bounds(0.0) > 5


def wrong_roundings():
    """In how many iterations something differs, where all logits are large, and margins as small as their rounding."""
    found = 0
    for seed in range(5):
        pools = Pools([1900], 16, 3, seed)
        weight, bias = (p.detach() for p in pools.model.parameters())
        across, last = weight[0] - weight[1], 100 * 2.0**-24
        bias.fill_(100.0)
        (part,) = pools.parts
        aim = 10 * last * torch.from_numpy(pools.draw.normal(size=1900)).float()
        part.x.sub_((part.x @ across - aim)[:, None] * across / across.dot(across))
        part.y.copy_(torch.from_numpy(pools.draw.integers(2, size=1900)))
        pools.lay_out()
        for _ in range(6):
            found += not pools.same()
            weight += torch.from_numpy(0.03 * last * pools.draw.normal(size=(3, 16))).float()
    return found


def test_rounding_is_a_part_of_the_bound(monkeypatch):
    assert wrong_roundings() == 0
    monkeypatch.setattr(skipping.Skipping, "_rounding", lambda self: 0.0)
    assert wrong_roundings() > 3


def learned(kind, case):
    """All that is known in the end, or that it was refused."""
    try:
        return standing(compress(model_of("linear", case.classes), case, kind))
    except Refusal as refusal:
        return str(refusal).split(":")[0]


@settings(max_examples=12, deadline=None)
@given(
    st.fixed_dictionaries({
        "scenario": st.sampled_from(["class-incremental", "domain-incremental"]),
        "sizes": st.lists(st.sampled_from([70, 150, 300]), min_size=1, max_size=3),
        "data_seed": st.integers(0, 999), "values": st.sampled_from([2, 3, 99]), "noise": st.sampled_from([0.05, 0.3]),
        "k": st.sampled_from([1, 3, 8]), "omega": st.sampled_from([0.5, 25.0]), "pick_omega": st.sampled_from([None, 3.0]),
        "lr": st.sampled_from([1e-3, 0.05, 0.5, 1e12]), "optimiser": st.sampled_from(["sgd", "momentum", "adam"]),
        "epochs": st.sampled_from([1, 3]), "batch": st.sampled_from([8, 64]), "memory": st.sampled_from([20, 100]),
        "stop": st.sampled_from(["kl", "preference", "combined", "none"]), "max_iterations": st.sampled_from([6, 20]),
        "grid": st.booleans(), "buffer": st.sampled_from(["uniform", "threshold", "witness"]),
        "prior": st.sampled_from([0.0, 0.4]), "prior_epochs": st.just(2), "balance": st.booleans(),
        "start": st.sampled_from(["weights", "slda"]),
    })
)  # fmt: skip
def test_streams_are_learned_as_the_kernel_learns_them(chosen):
    if chosen["start"] == "slda":
        chosen["prior"] = 0.4
    case = case_of(**chosen)
    assert learned(Fast, case) == learned(Plain, case)


def test_that_training_diverged_is_seen(monkeypatch):
    counts = looked_at(monkeypatch)
    case = case_of("class-incremental", [300], k=3, lr=1e12, max_iterations=25, stop="none")
    case.x = [np.float32(1e15) * x for x in case.x]
    assert "diverged" in learned(Fast, case)
    assert learned(Fast, case) == learned(Plain, case)
    assert counts["_look_closer"]


MODEL, ROWS = build("linear", inputs=(16,), classes=3), torch.zeros(60, 16)


@pytest.mark.parametrize(
    ("model", "x", "outside"),
    [
        (build("mlp", inputs=(16,), classes=3), ROWS, None),
        (build("linear", inputs=(16,), classes=3, scale=[0.0, 2.0]), ROWS, None),
        (build("linear", inputs=(16,), classes=3).double(), ROWS.double(), None),
        (MODEL, ROWS.numpy(), None),
        (MODEL, ROWS.to(torch.uint8), None),
        (MODEL, ROWS, torch.zeros(2, 3, dtype=torch.bool)),
        (MODEL, ROWS[:15], None),
    ],
    ids=["mlp", "scaled", "float64", "array", "pixels", "task-incremental", "few rows"],
)
def test_all_rows_are_scored_where_the_bound_is_not_known_to_hold(model, x, outside):
    def kind(model, x, outside):
        part = sample(x, torch.zeros(len(x), dtype=torch.long), 1, 0)
        with exact_arithmetic(1):
            return type(skipping.pool_of(model, [part], outside, [1.0], 2))

    assert kind(model, x, outside) is Pool
    assert kind(MODEL, ROWS, None) is skipping.Skipping
