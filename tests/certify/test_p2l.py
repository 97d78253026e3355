"""mP2L against a transcription, the buffers against their definitions, and the counts against a count by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from certify_cases import (
    case_of,
    certified_rows,
    compress,
    model_of,
    options_of,
    parameters,
    same_bits,
    whole,
)
from scipy.stats import poisson

from cop2l.bounds import (
    anytime_log_delta,
    buffer_certificate,
    combined_certificate,
    kl_certificate,
    kl_tight_certificate,
    preference_certificate,
    single_task_kl_bound,
)
from cop2l.certify.buffers import OVERFLOW, Keeper
from cop2l.certify.counting import counts
from cop2l.certify.examples import prior_rows, sample
from cop2l.certify.p2l import criterion, mp2l, p2l, top
from cop2l.certify.record import bounds_of
from cop2l.certify.scoring import score
from cop2l.certify.training import Batches, Optimiser, balanced, update
from cop2l.errors import UserError
from cop2l.randomness import marks

SMALL = {"k": 3, "epochs": 2, "lr": 0.05, "batch": 4, "memory": 30}


def transcribed(model, S, B, options, task):
    """Algorithm 2 with its corrections, one example at a time: no masks, no positions, no running sums."""
    pool = [("S", i) for i in range(len(S))] + [("B", i) for i in range(len(B) if B else 0)]
    source, weight = {"S": S, "B": B}, {"S": 1.0, "B": options.omega}
    C, states, values = [], [], []
    optimiser = Optimiser(model, options)
    model.train()
    for j in itertools.count():
        losses = {
            (name, i): float(score(model, source[name].take(np.array([i])))[0][0] * weight[name])
            for name, i in pool
        }
        left = [e for e in pool if e[0] == "S"]
        errors = sum(bool(score(model, S.take(np.array([i])))[1][0]) for _, i in left)
        m = len(S) - len(left)
        kl = single_task_kl_bound(len(S), m, errors, math.log(options.delta))
        values.append({"kl": kl, "preference": (m + errors) / len(S), "none": -j}[options.stop])
        states.append((parameters(model), list(C)))
        if not losses or max(losses.values()) < options.gamma or j == options.max_iterations:
            break
        order = sorted(pool, key=lambda e: (-losses[e], source[e[0]].mark[e[1]]))[: options.k]
        C += [e for e in order if e[0] == "S"] + [e for e in order if e[0] == "B"]
        pool = [e for e in pool if e not in order]
        parts = [source[name].take(np.array([i])) for name, i in C]
        update(
            model, optimiser, torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]),
            torch.tensor([weight[name] for name, _ in C]), None, options,
            epochs=options.epochs, purpose="update", task=task, iteration=j + 1,
        )  # fmt: skip
    best = values.index(min(values))
    return states, best


@pytest.mark.parametrize("stop", ["kl", "preference", "none"])
@pytest.mark.parametrize("kind", ["mlp", "normed"])
@pytest.mark.parametrize("with_buffer", [False, True])
def test_mp2l_is_its_transcription(stop, kind, with_buffer):
    case = case_of("class-incremental", [18, 12], stop=stop, omega=3.0, max_iterations=6, **SMALL)
    S, B = whole(case, 1), whole(case, 2) if with_buffer else None
    model = model_of(kind, case.classes)
    start = parameters(model)
    states, best = transcribed(model, S, B, case.options, 1)
    theta, kept = states[best]
    model.load_state_dict(start)
    outcome = mp2l(model, S, B, case.options, task=1)
    assert same_bits(parameters(model), theta)
    assert outcome.iterations == best

    def positions(chosen):
        return sorted(i if name == "S" else len(S) + i for name, i in chosen)

    assert sorted(outcome.kept) == positions(kept)
    last = (
        len(outcome.trace) - 1
    )  # ours may end before the printed loop, where no later iteration can be the best
    assert best <= last
    assert sorted(outcome.picked) == positions(states[last][1])
    assert last == len(states) - 1 or stop != "none"
    model.load_state_dict(start)
    again = mp2l(model, S, B, case.options, task=1, iterations=best)
    assert same_bits(parameters(model), theta)
    assert np.array_equal(again.kept, outcome.kept)


def test_p2l_ends_where_nothing_is_left_to_learn():
    case = case_of("domain-incremental", [60], noise=0.1, k=3, epochs=6, lr=0.2, batch=8)
    model = model_of("linear", 2)
    outcome = p2l(model, whole(case, 1), case.options)
    losses, wrong = score(model, whole(case, 1))
    rest = np.setdiff1d(np.arange(60), outcome.kept)
    assert 0 < len(rest) < 60
    assert len(set(outcome.kept)) == len(outcome.kept) == 3 * outcome.iterations
    assert float(losses[rest].max()) < math.log(2)
    assert not wrong[rest].any()


def test_mp2l_ends_where_no_later_iteration_can_be_the_best():
    """Every label is noise: picking costs more than it saves, and the loop need not run until all is picked."""
    case = case_of("class-incremental", [40], noise=0.5, stop="preference", **{**SMALL, "k": 1})
    model = model_of("mlp", case.classes)
    outcome = mp2l(model, whole(case, 1), None, case.options, task=1)
    last, kept = outcome.trace[-1], outcome.trace[outcome.iterations]
    assert last["worst_loss"] >= case.options.gamma
    assert last["picked"] == kept["picked"] + kept["errors"] < 40


@pytest.mark.parametrize("stop", ["kl", "preference", "combined"])
def test_more_picks_never_make_a_smaller_criterion(stop):
    """On this rests the early end: with no errors at all, later iterations cannot be better than the next one."""
    options = options_of(stop=stop, tasks=5)
    for n in (7, 100, 4000):
        picked = np.unique(np.linspace(0, n, 60).astype(int))
        least = [[criterion(options, n, int(m), 0, j) for m in picked] for j in (1, 2, 7, 40)]
        assert (np.diff(least, axis=0) >= 0).all()
        assert (np.diff(least, axis=1) >= 0).all()
        assert all(
            criterion(options, n, int(m), e, 1) >= criterion(options, n, int(m), 0, 1)
            for m in picked
            for e in range(n - m + 1)[:50]
        )


def test_divergence_is_one_sentence():
    case = case_of("domain-incremental", [30], k=3, epochs=6, lr=1e30, batch=8)
    with pytest.raises(UserError, match="Training diverged at task 1"):
        mp2l(model_of("mlp", 2), whole(case, 1), None, case.options, task=1)


def test_the_top_breaks_ties_by_mark_and_never_takes_what_is_gone():
    draw = np.random.default_rng(0)
    for _ in range(600):
        n, k = int(draw.integers(1, 12)), int(draw.integers(1, 6))
        rest, mark = draw.random(n) < 0.8, draw.permutation(n).astype(np.uint64)
        losses = draw.choice([draw.choice([0.0, 0.5, 1.0, np.inf], n), draw.random(n)]).astype(np.float32)
        losses[~rest] = -draw.choice([0.0, 0.5, 1.0, np.inf], n)[~rest]
        expected = sorted(np.flatnonzero(rest), key=lambda i: (-float(losses[i]), mark[i]))[:k]
        worst, found = top(torch.from_numpy(losses), rest, mark, k)
        assert found.tolist() == expected
        assert worst == max(losses[rest], default=-np.inf)


def test_a_loss_that_is_not_a_number_is_the_worst():
    losses, rest, mark = (
        torch.tensor([1.0, np.nan, 3.0, 2.0]),
        np.ones(4, bool),
        np.arange(4, dtype=np.uint64),
    )
    assert np.isnan(top(losses, rest, mark, 2)[0])
    rest[1] = False
    assert top(losses, rest, mark, 2)[1].tolist() == [2, 3]


@pytest.mark.parametrize("width", [3, 100_000])  # many mini-batches fit into the room, or one
def test_mini_batches_are_the_rows_in_their_order(width):
    draw = torch.Generator().manual_seed(0)
    batches = Batches()  # one object for all: its memory is used again
    for sizes, epochs in (([5], 3), ([4, 4, 3], 2), ([4] * 11 + [2], 2), ([1], 1), ([2, 1], 9)):
        n = sum(sizes)
        x, y = torch.arange(2 * n).float()[:, None].expand(-1, width).contiguous(), torch.arange(2 * n)
        orders = [torch.randperm(n, generator=draw) for _ in range(epochs)]
        expected = [at.tolist() for order in orders for at in order.split(sizes)]
        found = []
        for some_x, some_y in batches.of([x[:n], y[:n]], iter(orders), sizes):
            assert torch.equal(some_x[:, -1], some_y.float())
            found.append(some_y.tolist())
        assert found == expected


@pytest.mark.parametrize("offset", [0, 1])  # where the examples lie in memory must not matter
def test_a_single_mini_batch_is_a_step_down_the_weighted_mean(offset):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8 * 25 + offset, generator=draw)[offset:].view(8, 25)
    y, weight = torch.randint(3, (8,), generator=draw), torch.rand(8, generator=draw)
    options = options_of(batch=8, lr=0.5)
    found = []
    for copy in (x, x.clone()):
        model = model_of("mlp", 3).eval()
        expected = model_of("mlp", 3).eval()
        update(
            model, Optimiser(model, options), copy, y, weight, None, options, epochs=2, purpose="u", task=1
        )
        for _ in range(2):
            loss = (weight * F.cross_entropy(expected(x), y, reduction="none")).mean()
            for p, g in zip(
                expected.parameters(), torch.autograd.grad(loss, list(expected.parameters())), strict=True
            ):
                p.data -= 0.5 * g
        for one, other in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
        found.append(parameters(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_model_may_change_its_inputs_in_place():
    class Doubles(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 5, generator=draw), torch.randint(3, (8,), generator=draw)
    before, options = x.clone(), options_of(batch=8)
    model = Doubles(5, 3)
    update(
        model, Optimiser(model, options), x, y, torch.ones(8), None, options, epochs=3, purpose="u", task=1
    )
    assert torch.equal(x, before)


def test_logits_may_have_another_precision_than_the_weights():
    class Single(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).float()

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 5, generator=draw), torch.randint(3, (8,), generator=draw)
    model, options = Single(5, 3).double(), options_of(batch=8)
    before = model.weight.detach().clone()
    weight = torch.ones(8, dtype=torch.float64)
    update(model, Optimiser(model, options), x, y, weight, None, options, epochs=1, purpose="u", task=1)
    assert not torch.equal(model.weight, before)


def test_the_kept_iteration_is_put_back_although_state_dict_makes_copies():
    """A hook of the user may clone what state_dict() gives: then it is not the model's own memory."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 25, generator=draw), torch.randint(3, (60,), generator=draw)
    options, ends = options_of(**SMALL, stop="preference"), []
    for cloned in (False, True):
        model = model_of("mlp", 3)
        if cloned:
            model.register_state_dict_post_hook(
                lambda module, state, prefix, local: state.update({k: v.clone() for k, v in state.items()})
            )
        outcome = mp2l(model, sample(x, y, 1, 0), None, options, task=1)
        assert 0 < outcome.iterations < len(outcome.trace) - 1  # an earlier iteration than the last was kept
        ends.append(parameters(model))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_the_optimisers_are_those_of_torch(name):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 25, generator=draw), torch.randint(3, (40,), generator=draw)
    ours, theirs = model_of("mlp", 3).double().eval(), model_of("mlp", 3).double().eval()
    optimiser = Optimiser(ours, options_of(optimiser=name, lr=0.05))
    reference = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05),
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, 0.05),
    }[name](theirs.parameters())
    for _ in range(12):
        optimiser.step(F.cross_entropy(ours(x.double()), y))
        reference.zero_grad()
        F.cross_entropy(theirs(x.double()), y).backward()
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
        assert one.grad is None


def test_balanced_weights():
    y = torch.tensor([0, 0, 0, 3, 3, 7])
    weight = balanced(y)
    assert torch.allclose(
        torch.stack([weight[y == c].sum() for c in (0, 3, 7)]), torch.tensor(2.0, dtype=torch.float64)
    )
    assert float(weight.mean()) == pytest.approx(1.0)


def stays(keeper, task, after, n, own=()):
    certified = np.ones(n, bool)
    rows = np.setdiff1d(np.arange(n), own)
    return rows[keeper.stay(rows, task=task, after=after, certified=certified, own=np.array(own, np.int64))]


@pytest.mark.parametrize("policy", ["threshold", "witness", "priority"])
def test_buffers_shrink_and_never_take_back(policy):
    for seed in range(20):
        keeper = Keeper(policy, 30, seed)
        before = np.arange(200)
        for after in range(1, 12):
            now = stays(keeper, 1, after, 200, own=(3, 5, 8))
            assert np.isin(now, before).all()
            assert not np.isin((3, 5, 8), now).any()
            if policy == "priority":
                assert len(now) == 30 // after
            before = now


def test_a_threshold_looks_at_one_example_alone():
    keeper = Keeper("threshold", 30, 4)
    everything = stays(keeper, 2, 3, 200)
    picked = stays(keeper, 2, 3, 200, own=everything[:4])
    assert np.array_equal(picked, everything[4:])
    mark = marks(4, "mark", 2, n=200)
    assert mark[everything].max() < np.delete(mark, everything).min()


@pytest.mark.parametrize("memory", [5, 50, 500])
def test_the_threshold_buffer_rarely_exceeds_the_memory(memory):
    """The Poisson mean is the largest with so small a tail; simulated sizes stay inside it."""
    keeper = Keeper("threshold", memory, 0)
    n, tasks = 4 * memory, 4
    mean = tasks * n * float(keeper.threshold(n, tasks)) / 2.0**64
    assert poisson.sf(memory, mean) == pytest.approx(OVERFLOW, rel=1e-6)
    sizes = [
        sum(len(stays(Keeper("threshold", memory, seed), t, tasks, n)) for t in range(1, tasks + 1))
        for seed in range(150)
    ]
    assert np.mean(sizes) == pytest.approx(mean, abs=5 * math.sqrt(mean / 150))
    assert sum(size > memory for size in sizes) <= 3
    assert Keeper("threshold", 0, 0).threshold(n, 1) == 0


def test_uniform_sampling_keeps_its_share():
    for seed in range(10):
        keeper = Keeper("uniform", 30, seed)
        assert len(stays(keeper, 1, 4, 200)) == 7
    draws = np.concatenate([stays(Keeper("uniform", 30, seed), 1, 4, 40) for seed in range(400)])
    assert np.bincount(draws, minlength=40).min() > 35  # 70 expected


def test_the_prior_part_is_drawn_apart_from_the_marks():
    n = 20_000
    prior = prior_rows(n, 0.3, 7, 2)
    mark = marks(7, "mark", 2, n=n) / 2.0**64
    assert prior.mean() == pytest.approx(0.3, abs=0.02)
    assert mark[prior].mean() == pytest.approx(mark[~prior].mean(), abs=0.02)
    assert np.array_equal(prior_rows(n // 2, 0.3, 7, 2), prior[: n // 2])
    assert not prior_rows(n, 0.0, 7, 2).any()


@pytest.mark.parametrize("buffer", ["uniform", "priority", "threshold", "witness"])
@pytest.mark.parametrize("tasks", [None, 3])
def test_counts_and_the_bounds_of_them(buffer, tasks):
    """Counted one by one, and each bound called with arguments written out for each buffer."""
    case = case_of(
        "class-incremental", [40, 40, 40], data_seed=3, buffer=buffer, prior=0.2, prior_memory=0.2, prior_epochs=1, stop="none",
        omega=8.0, max_iterations=5, tasks=tasks, **SMALL,
    )  # fmt: skip
    model = model_of("mlp", case.classes)
    histories, _ = compress(model, case)
    messages, T = [h.iterations for h in histories], 3
    log_delta = math.log(0.05) if tasks == 3 else anytime_log_delta(math.log(0.05), 3)
    for history in histories:
        t = history.task
        wrong = score(model, whole(case, t))[1].numpy()
        found = counts(history, case.options, T, wrong, None)
        S = set(certified_rows(history, case).tolist())
        I, J, G = (set(rows.tolist()) for rows in (history.first, history.second, history.picked))
        W = {row for row in S if wrong[row]}
        assert (found.n, found.prior) == (len(S), 40 - len(S))
        assert found.errors == len(W - I - J)
        assert found.missed == len(W - G)
        assert I | J <= G
        assert found.evicted_last == sum(int(left == T) for left in history.left)
        bounds = bounds_of(found, case.options, messages)
        a, b, last = len(I), len(J), found.evicted_last
        assert bounds["kl"] == kl_certificate(len(S), a, b, len(W - I - J), messages, t, T, log_delta)
        tight = (
            kl_tight_certificate(len(S), a + last, b - last, len(W - I - J), messages, t, T, log_delta)
            if buffer == "uniform"
            else kl_tight_certificate(len(S), a, 0, len(W - I - J), messages, t, T, log_delta, priority=True)
        )
        assert bounds["kl-tight"] == tight
        if buffer in ("uniform", "priority"):
            assert set(bounds) == {"kl", "kl-tight"}
            continue
        assert b == 0
        K = history.iterations
        assert bounds["preference"] == preference_certificate(len(S), len(G), len(W - G), K, T, log_delta)
        limit = Keeper(buffer, case.options.buffer_places, case.options.seed).threshold(len(S), T)
        R = {row for row in S if marks(case.options.seed, "mark", t, n=40)[row] < limit}
        assert (found.selected, found.compressed) == (len(R), len(R & (G | W)))
        if buffer == "threshold":
            assert bounds["buffer"] == buffer_certificate(len(R), len(R & (G | W)), K, T, log_delta)
            assert "combined" not in bounds
        else:
            assert set(history.own.tolist()) == G
            assert bounds["combined"] == combined_certificate(len(S), len(G), len(W - G), K, T, log_delta)
    assert buffer != "uniform" or any(len(h.second) for h in histories)
    assert buffer == "witness" or any(len(h.picked) > len(h.own) for h in histories)
