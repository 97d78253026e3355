"""mP2L against a transcription, the buffers against their definitions, and the counts against a count by hand."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from certify_cases import case_of, certified, compress, model_of, options_of, parameters, same_bits
from cop2l.learner.fast import FastLearner

from cop2l.bounds import (
    anytime_log_delta,
    buffer_certificate,
    combined_certificate,
    kl_certificate,
    kl_tight_certificate,
    preference_certificate,
)
from cop2l.certificates.bounding import bound_of, kinds_of
from cop2l.kernel.counting import counts
from cop2l.kernel.exact import Examples, certified_rows, exact_arithmetic, sample, score, threshold
from cop2l.kernel.learning import (
    Optimiser,
    ReferenceLearner,
    Sets,
    balanced_order,
    class_balanced_weights,
    criterion,
)
from cop2l.kernel.options import Refusal
from cop2l.learner.scoring import top_block
from cop2l.randomness import marks

SMALL = {"k": 3, "epochs": 2, "lr": 0.05, "batch": 4, "memory": 30}
ENGINES = [ReferenceLearner, FastLearner]


# ---- the criterion


def zeta(k):
    return mpmath.mpf(6) / (mpmath.pi * (k + 1)) ** 2


def inverse(q, eps):
    """The largest p with kl(q, p) <= eps, at 40 digits."""

    def kl(p):
        left = q * mpmath.log(q / p) if q else 0
        return left + ((1 - q) * mpmath.log((1 - q) / (1 - p)) if q < 1 else 0)

    low, high = mpmath.mpf(q), mpmath.mpf(1)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) <= eps else (low, middle)
    return high


def written_out(options, n, picked, errors, iterations):
    """The criterion from its formulas."""
    with mpmath.workdps(40):
        n_rest, delta = n - picked, mpmath.mpf(options.delta)
        if options.stop in ("preference", "none"):
            return mpmath.mpf(picked + errors) / n
        if (
            options.stop == "kl"
        ):  # Bazinet et al.: kl^-1(errors/rest, ln(2 sqrt(rest) C(n, picked) / (zeta(picked) delta)) / rest)
            if n_rest == 0:
                return mpmath.mpf(1)
            price = mpmath.log(2 * mpmath.sqrt(n_rest) * mpmath.binomial(n, picked) / (zeta(picked) * delta))
            return inverse(mpmath.mpf(errors) / n_rest, price / n_rest)
        share = delta / (options.tasks or 1)
        if iterations == 0:
            return inverse(mpmath.mpf(errors) / n, -mpmath.log(share * 3 / 4) / n)
        points = len(options.grid_points)
        share *= mpmath.mpf(1) / 4 * (mpmath.mpf(1) / (points - 1) if points else zeta(iterations))
        size = picked + errors
        return inverse(mpmath.mpf(size) / n, (mpmath.log(size + 1) / 2 - mpmath.log(share)) / n)


STOPS = [{"stop": stop, "tasks": tasks, **grid} for stop in ("kl", "preference", "combined") for tasks in (None, 5)
         for grid in ({}, {"grid": True, "max_iterations": 40})]  # fmt: skip


@pytest.mark.parametrize("chosen", STOPS, ids=str)
def test_the_criterion_is_its_formula(chosen):
    options, draw = options_of(**chosen), np.random.default_rng(0)
    for _ in range(40):
        n = int(draw.integers(1, 500))
        j = int(draw.integers(0, 41))
        picked = int(draw.integers(0, n + 1)) if j else 0
        errors = int(draw.integers(0, n - picked + 1))
        assert criterion(options, n, picked, errors, j) == pytest.approx(
            float(written_out(options, n, picked, errors, j)), rel=1e-9
        )
    assert criterion(options, 0, 0, 0, 0) == 0


@pytest.mark.parametrize("chosen", STOPS, ids=str)
def test_more_picks_never_make_a_smaller_criterion(chosen):
    """On this rests the early end: with no errors at all, later iterations cannot be better than the next one."""
    options = options_of(**chosen)
    for n in (1, 7, 100, 4000):
        picked = np.unique(np.linspace(0, n, 60).astype(int))
        least = [[criterion(options, n, int(m), 0, j) for m in picked] for j in (1, 2, 7, 40)]
        assert (np.diff(least, axis=0) >= 0).all()
        assert (np.diff(least, axis=1) >= 0).all()
        assert all(
            criterion(options, n, int(m), e, 1) >= criterion(options, n, int(m), 0, 1)
            for m in picked
            for e in range(n - m + 1)[:50]
        )


# ---- mP2L


def transcribed(model, S, B, options):
    """Algorithm 2 with its corrections, one example at a time: no masks, no positions, no running sums."""
    pool = [("S", i) for i in range(len(S))] + [("B", i) for i in range(len(B) if B else 0)]
    source, weight = {"S": S, "B": B}, {"S": 1.0, "B": options.omega}
    in_picking = {"S": 1.0, "B": options.omega if options.pick_omega is None else options.pick_omega}
    engine = ReferenceLearner(model, options)
    C, states, values = [], [], []
    optimiser, points = Optimiser(engine.model, options), options.grid_points
    for j in itertools.count():
        losses = {
            (name, i): float(score(model, source[name].take(np.array([i])))[0][0] * in_picking[name])
            for name, i in pool
        }
        left = [e for e in pool if e[0] == "S"]
        errors = sum(bool(score(model, S.take(np.array([i])))[1][0]) for _, i in left)
        stopped = not losses or max(losses.values()) < options.gamma
        value = written_out(options, len(S), len(S) - len(left), errors, j)
        allowed = not points or j in points or stopped
        values.append((mpmath.mpf(-j) if options.stop == "none" else value) if allowed else mpmath.inf)
        states.append((parameters(model), list(C)))
        if stopped or j == options.max_iterations:
            break
        order = sorted(pool, key=lambda e: (-losses[e], source[e[0]].mark[e[1]]))[: options.k]
        C += order
        pool = [e for e in pool if e not in order]
        parts = [source[name].take(np.array([i])) for name, i in C]
        numbers = [np.concatenate([getattr(p, name) for p in parts]) for name in ("task", "row", "mark")]
        trained = Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), *numbers)
        factor = torch.tensor([weight[name] for name, _ in C])
        engine.update(optimiser, trained, factor, options.epochs, "update", j + 1)
    return states, values.index(min(values))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("stop", "kind"), [("kl", "mlp"), ("preference", "normed"), ("combined", "mlp"), ("none", "normed")]
)
@pytest.mark.parametrize(
    ("with_buffer", "pick_omega"), [(False, None), (True, None), (True, 0.5), (True, 20.0)]
)
@pytest.mark.parametrize("grid", [False, True])
def test_mp2l_is_its_transcription(engine, stop, kind, with_buffer, pick_omega, grid):
    case = case_of(
        "class-incremental", [18, 12], stop=stop, omega=3.0, max_iterations=7, grid=grid, gamma=1.0, noise=0.05,
        pick_omega=pick_omega, **SMALL,
    )  # fmt: skip
    S, B = case.sample(1), case.sample(2) if with_buffer else None
    model, candidates = model_of(kind, case.classes).eval(), np.ones(18, bool)
    start, points = parameters(model), case.options.grid_points
    with exact_arithmetic(1):
        states, best = transcribed(model, S, B, case.options)
        theta, kept_iterations = states[best]
        model.load_state_dict(start)
        outcome = case.engine(model, engine).mp2l(S, B, candidates, None)
        assert same_bits(parameters(model), theta)
        assert outcome.kept_iterations == next(
            point for point in points or range(best, best + 1) if point >= best
        )

        def positions(chosen):
            return [i if name == "S" else len(S) + i for name, i in chosen]

        assert outcome.compression.tolist() == positions(kept_iterations)
        # ours may end before the printed loop, where no later iteration can be the best
        assert best <= outcome.stopped <= len(states) - 1
        assert outcome.picked.tolist() == positions(states[outcome.stopped][1])
        assert outcome.stopped == len(states) - 1 or stop != "none"
        model.load_state_dict(start)
        again = case.engine(model, engine).mp2l(
            S, B, candidates, None, kept_iterations=outcome.kept_iterations
        )
        assert same_bits(parameters(model), theta)
        assert np.array_equal(again.compression, outcome.compression)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_candidate_is_never_picked_nor_counted(engine):
    case = case_of("class-incremental", [30], stop="none", max_iterations=20, gamma=1e-6, **SMALL)
    model, candidates = model_of("mlp", case.classes), np.arange(30) % 3 > 0
    with exact_arithmetic(1):
        outcome = case.engine(model, engine).mp2l(case.sample(1), None, candidates, None)
    assert sorted(outcome.picked) == np.flatnonzero(candidates).tolist()
    assert outcome.stopped == math.ceil(20 / 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_mp2l_ends_where_no_later_iteration_can_be_the_best(engine):
    """Every label is noise: picking costs more than it saves, and the loop need not run until all is picked."""
    case = case_of("class-incremental", [40], noise=0.5, stop="preference", **{**SMALL, "k": 1})
    outcome = compress(model_of("mlp", case.classes), case, engine).sets[0]
    assert 0 < outcome.stopped < 40
    fast = compress(model_of("mlp", case.classes), case)
    last, kept = fast.trace[-1], fast.trace[fast.sets[0].iterations]
    assert last["worst_loss"] >= case.options.gamma
    assert last["picked"] == kept["picked"] + kept["errors"] < 40


@pytest.mark.parametrize("engine", ENGINES)
def test_more_iterations_than_stated_are_refused(engine):
    case = case_of("domain-incremental", [30], stop="none", max_iterations=4, gamma=1e-6, **SMALL)
    for longest, good in ((4, True), (3, False)):
        learner = case.engine(model_of("mlp", 2), engine)
        with exact_arithmetic(1):
            if good:
                learner.learn(case.sample(1), longest)
                continue
            with pytest.raises(Refusal, match="does not stop after 3 iterations"):
                learner.learn(case.sample(1), longest)


def test_the_top_breaks_ties_by_mark_and_never_takes_what_is_gone():
    draw = np.random.default_rng(0)
    for _ in range(600):
        n, k = int(draw.integers(1, 12)), int(draw.integers(1, 6))
        is_open, mark = draw.random(n) < 0.8, draw.permutation(n).astype(np.uint64)
        losses = draw.choice([draw.choice([0.0, 0.5, 1.0, np.inf], n), draw.random(n)]).astype(np.float32)
        losses[~is_open] = -np.inf
        expected = sorted(np.flatnonzero(is_open), key=lambda i: (-float(losses[i]), mark[i]))[:k]
        worst, block = top_block(losses, is_open, mark, k)
        assert block.tolist() == expected
        assert worst == max(losses[is_open], default=-np.inf)


def test_a_loss_that_is_not_a_number_is_the_worst():
    losses, is_open = np.array([1.0, np.nan, 3.0, 2.0]), np.ones(4, bool)
    assert np.isnan(top_block(losses, is_open, np.arange(4, dtype=np.uint64), 2)[0])


# ---- training


class Watched(torch.nn.Linear):
    """Remembers what it was trained on."""

    batches: list

    def forward(self, x):
        if self.training:
            self.batches.append(x[:, 0].tolist())
        return super().forward(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 11])
def test_every_mini_batch_is_filled_with_its_own_rows(engine, n):
    x, y = torch.arange(n).float()[:, None].expand(-1, 6).contiguous(), torch.zeros(n, dtype=torch.int64)
    model = Watched(6, 2)
    model.batches = []
    learner = engine(model, options_of(batch=4, lr=1e-9))
    learner.update(Optimiser(learner.model, learner.options), sample(x, y, 1, 0), torch.ones(n), 2, "u")
    sizes = [4] * (n // 4) + [n % 4] * (n % 4 > 0)
    assert len(model.batches) == 2 * len(sizes)
    for epoch in (model.batches[: len(sizes)], model.batches[len(sizes) :]):
        assert all(len(batch) == 4 for batch in epoch)
        rows = [batch[:size] for batch, size in zip(epoch, sizes, strict=True)]
        assert sorted(itertools.chain(*rows)) == list(range(n))
        assert all(batch == (some * 4)[:4] for batch, some in zip(epoch, rows, strict=True))
    assert n > 4 or rows == [list(range(n))]  # a single mini-batch is not shuffled
    assert n < 11 or model.batches[: len(sizes)] != model.batches[len(sizes) :]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n", [5, 8])
def test_a_single_mini_batch_is_a_step_down_the_weighted_mean(engine, n):
    draw = torch.Generator().manual_seed(0)
    x, y, weight = (
        torch.randn(n, 25, generator=draw),
        torch.randint(3, (n,), generator=draw),
        torch.rand(n, generator=draw),
    )
    model, expected = model_of("linear", 3), model_of("linear", 3)
    learner = engine(model, options_of(batch=8, lr=0.5))
    learner.update(Optimiser(learner.model, learner.options), sample(x, y, 1, 0), weight, 2, "u")
    for _ in range(2):
        loss = (weight * F.cross_entropy(expected(x), y, reduction="none")).mean()
        gradients = torch.autograd.grad(loss, list(expected.parameters()))
        for p, g in zip(expected.parameters(), gradients, strict=True):
            p.data -= 0.5 * g
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_logits_may_have_another_precision_than_the_weights():
    class Single(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).float()

    draw, ends = torch.Generator().manual_seed(0), []
    x, y = torch.randn(8, 5, generator=draw), torch.randint(3, (8,), generator=draw)
    start = Single(5, 3).double().state_dict()
    for engine in ENGINES:
        model = Single(5, 3).double()
        model.load_state_dict(start)
        learner = engine(model, options_of(batch=8))
        learner.update(
            Optimiser(learner.model, learner.options),
            sample(x, y, 1, 0),
            torch.ones(8, dtype=torch.float64),
            1,
            "u",
        )
        assert not same_bits(parameters(model), start)
        ends.append(parameters(model))
    assert same_bits(*ends)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_the_optimisers_are_those_of_torch(name):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 25, generator=draw), torch.randint(3, (40,), generator=draw)
    direct, composed = model_of("mlp", 3).double().eval(), model_of("mlp", 3).double().eval()
    optimiser = Optimiser(direct, options_of(optimiser=name, lr=0.05))
    reference = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05),
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, 0.05),
    }[name](composed.parameters())
    for _ in range(12):
        optimiser.descend(torch.autograd.grad(F.cross_entropy(direct(x.double()), y), optimiser.parameters))
        reference.zero_grad()
        F.cross_entropy(composed(x.double()), y).backward()
        reference.step()
    for one, other in zip(direct.parameters(), composed.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
        assert one.grad is None


def test_balanced_weights():
    y = torch.tensor([0, 0, 0, 3, 3, 7])
    weight = class_balanced_weights(y)
    assert torch.allclose(
        torch.stack([weight[y == c].sum() for c in (0, 3, 7)]), torch.tensor(2.0, dtype=torch.float64)
    )
    assert float(weight.mean()) == pytest.approx(1.0)


def test_every_beginning_of_the_stored_prior_examples_is_balanced():
    draw = np.random.default_rng(0)
    y = torch.from_numpy(draw.choice([1, 4, 6], 90, p=[0.6, 0.3, 0.1]))
    order = balanced_order(sample(torch.zeros(90, 1), y, 2, 5), 5)
    assert sorted(order) == list(range(90))
    for length in range(1, 91):
        class_counts = torch.bincount(y[order[:length]], minlength=7)[[1, 4, 6]]
        whole = torch.bincount(y, minlength=7)[[1, 4, 6]]
        short = class_counts < whole  # classes that could still be given more
        assert not short.any() or class_counts.max() - class_counts[short].min() <= 1


# ---- buffers and the prior part


def kept_in_buffer(options, task, after, n, own_picks=()):
    sets = [Sets(own_picks=np.array(own_picks, np.int64))] * after
    engine = ReferenceLearner(model_of("linear", 2), options, sizes=[(n, n)] * after, sets=sets)
    rows = np.setdiff1d(np.arange(n), own_picks)
    return rows[engine.kept_in_buffer(rows, task, after)]


@pytest.mark.parametrize("buffer", ["threshold", "count-only"])
def test_buffers_shrink_and_never_take_back(buffer):
    for seed in range(20):
        options, before = options_of(buffer=buffer, memory=60, seed=seed), np.arange(200)
        for after in range(1, 12):
            now = kept_in_buffer(options, 1, after, 200, own_picks=(3, 5, 8))
            assert np.isin(now, before).all()
            assert not np.isin((3, 5, 8), now).any()
            before = now


def test_a_threshold_looks_at_one_example_alone():
    """And at how many were picked: what those leave of the memory, others fill."""
    options, mark = options_of(memory=60, seed=4), marks(4, "mark", 2, n=200)
    everything = kept_in_buffer(options, 2, 3, 200)
    assert len(everything) > 5
    assert mark[everything].max() < np.delete(mark, everything).min()
    with_picks, without_picks = (
        kept_in_buffer(options, 2, 3, 200, own_picks=everything[:4]),
        kept_in_buffer(options, 2, 3, 200, own_picks=range(100)),
    )
    assert set(everything[4:]) <= set(with_picks)
    assert np.array_equal(
        without_picks, np.flatnonzero((mark < threshold(100, 3, options)) & (np.arange(200) >= 100))
    )
    assert len(without_picks) > len(everything[everything >= 100])


def test_the_memory_is_divided_between_prior_examples_and_the_buffer():
    options = options_of(memory=100, prior=0.5, prior_memory=0.7)
    assert options.prior_memory_size == 70
    assert threshold(40, 3, options) == threshold(40, 3, options_of(memory=30))
    assert options_of(memory=100, prior_memory=0.7).prior_memory_size == 0
    assert (
        len(kept_in_buffer(options_of(memory=100, prior=0.5, prior_memory=0.7, buffer="uniform"), 1, 2, 200))
        == 15
    )


def test_uniform_sampling_keeps_its_share():
    for seed in range(10):
        assert len(kept_in_buffer(options_of(buffer="uniform", memory=30, seed=seed), 1, 4, 200)) == 7
    draws = np.concatenate(
        [kept_in_buffer(options_of(buffer="uniform", memory=30, seed=s), 1, 4, 40) for s in range(400)]
    )
    assert np.bincount(draws, minlength=40).min() > 35  # 70 expected


@pytest.mark.parametrize("rows", [1, 2, 9, 10, 1000])
@pytest.mark.parametrize("prior", [0.0, 0.1, 0.6, 0.999])
def test_the_prior_part_has_its_number(rows, prior):
    for seed in range(3):
        found = certified_rows(rows, 2, options_of(prior=prior, seed=seed))
        assert (~found).sum() == math.floor(prior * rows) < rows


def test_the_prior_part_is_drawn_apart_from_the_marks():
    n = 20_000
    prior = ~certified_rows(n, 2, options_of(prior=0.3, seed=7))
    mark = marks(7, "mark", 2, n=n) / 2.0**64
    for part in (prior, ~prior):  # uniform in both parts: a tenth in each tenth
        found = np.histogram(mark[part], bins=10, range=(0, 1))[0] / part.sum()
        assert abs(found - 0.1).max() < 5 * math.sqrt(0.09 / part.sum())
    assert not np.array_equal(prior, ~certified_rows(n, 3, options_of(prior=0.3, seed=7)))
    assert not np.array_equal(prior, ~certified_rows(n, 2, options_of(prior=0.3, seed=8)))


# ---- counts


@pytest.mark.parametrize("buffer", ["uniform", "threshold", "count-only"])
@pytest.mark.parametrize("tasks", [None, 3])
@pytest.mark.parametrize("grid", [False, True])
def test_counts_and_the_bounds_of_them(buffer, tasks, grid):
    """Counted one by one, and each bound called with arguments written out for each buffer."""
    case = case_of(
        "class-incremental", [40, 40, 40], data_seed=3, buffer=buffer, prior=0.2, prior_memory=0.2, prior_epochs=1, stop="none",
        omega=8.0, max_iterations=5, tasks=tasks, grid=grid, **{**SMALL, "memory": 80},
    )  # fmt: skip
    model = model_of("mlp", case.classes)
    sets = compress(model, case).sets
    messages, T, grid_options = (
        [task_sets.iterations for task_sets in sets],
        3,
        {"grid": 6 if grid else None},
    )  # 0, 1, 2, 3, 4, 5
    log_delta = math.log(0.05) if tasks == 3 else anytime_log_delta(math.log(0.05), 3)
    for t, task_sets in enumerate(sets, 1):
        errors = score(model, case.sample(t))[1]
        record = {"task": t, **counts(case.options, T, t, task_sets, errors)}
        S = set(certified(case, t).tolist())
        I, J, G = (
            set(rows.tolist()) for rows in (task_sets.compression, task_sets.evicted, task_sets.picked)
        )
        W = {row for row in S if errors[row]}
        assert (record["n"], record["prior"]) == (len(S), 40 - len(S)) == (32, 8)
        assert (record["errors"], record["errors_not_picked"]) == (len(W - I - J), len(W - G))
        assert (record["compression"], record["evicted"], record["picked"]) == (len(I), len(J), len(G))
        assert I | J <= G <= S
        from_memory = counts(case.options, T, t, task_sets, errors, data_gone=True)
        assert from_memory == {
            **{k: v for k, v in record.items() if k != "task"},
            "errors": None,
            "errors_not_picked": None,
        }
        bounds = {
            kind: bound_of(kind, record, t, case.options, messages, log_delta)
            for kind in kinds_of(record, case.options)
        }
        last = (len(W - I - J), messages, t, T, log_delta)
        assert bounds["kl"] == kl_certificate(len(S), len(I), len(J), *last, **grid_options)
        assert bounds["kl-tight"] == kl_tight_certificate(len(S), len(I | J), *last, **grid_options)
        if buffer == "uniform":
            assert set(bounds) == {"kl", "kl-tight"}
            assert (record["selected"], record["compressed"]) == (None, None)
            continue
        assert not J
        K = task_sets.iterations
        assert bounds["preference"] == preference_certificate(
            len(S), len(G), len(W - G), K, T, log_delta, **grid_options
        )
        limit = threshold(len(S), T, case.options)
        R = {row for row in S if marks(case.options.seed, "mark", t, n=40)[row] < limit}
        assert (record["selected"], record["compressed"]) == (len(R), len(R & (G | W)))
        if buffer == "threshold":
            assert bounds["buffer"] == buffer_certificate(
                len(R), len(R & (G | W)), K, T, log_delta, **grid_options
            )
            assert "combined" not in bounds
        else:
            assert set(task_sets.own_picks.tolist()) == G
            assert bounds["combined"] == combined_certificate(
                len(S), len(G), len(W - G), K, T, log_delta, **grid_options
            )
            same = combined_certificate(len(R), 0, len(R & (G | W)), K, T, log_delta, **grid_options)
            assert bounds["buffer"].value == same.value
    assert buffer != "uniform" or any(len(task_sets.evicted) for task_sets in sets)
    assert buffer == "count-only" or any(
        len(task_sets.picked) > len(task_sets.own_picks) for task_sets in sets
    )
