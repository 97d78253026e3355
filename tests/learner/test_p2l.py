"""mP2L against Algorithm 2 in numpy, the buffers against their definitions, and the counts against a count by hand."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from learner_cases import case_of, compress, model_of, options_of, parameters, same_bits

from cop2l.bounds import (
    anytime_log_delta,
    buffer_certificate,
    kl_certificate,
    preference_certificate,
)
from cop2l.certificates.bounding import bound_of, kinds_of
from cop2l.kernel.counting import counts
from cop2l.kernel.exact import exact_arithmetic, sample, score, threshold
from cop2l.kernel.learning import Pool, ReferenceLearner, Sets, criterion
from cop2l.kernel.options import Refusal
from cop2l.randomness import marks

SMALL = {"k": 3, "epochs": 2, "lr": 0.05, "batch": 4, "memory": 30}


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


def written_out(options, n, picked, errors):
    """The criterion from its formulas."""
    with mpmath.workdps(40):
        n_rest, delta = n - picked, mpmath.mpf(options.delta)
        if options.stop in ("preference", "none"):
            return mpmath.mpf(picked + errors) / n
        if n_rest == 0:
            return mpmath.mpf(1)
        # Bazinet et al.: kl^-1(errors/rest, ln(2 sqrt(rest) C(n, picked) / (zeta(picked) delta)) / rest)
        price = mpmath.log(2 * mpmath.sqrt(n_rest) * mpmath.binomial(n, picked) / (zeta(picked) * delta))
        return inverse(mpmath.mpf(errors) / n_rest, price / n_rest)


@pytest.mark.parametrize("stop", ["kl", "preference"])
def test_the_criterion_is_its_formula(stop):
    options, draw = options_of(stop=stop), np.random.default_rng(0)
    for _ in range(40):
        n = int(draw.integers(1, 500))
        picked = int(draw.integers(0, n + 1))
        errors = int(draw.integers(0, n - picked + 1))
        assert criterion(options, n, picked, errors) == pytest.approx(
            float(written_out(options, n, picked, errors)), rel=1e-9
        )
    assert criterion(options, 0, 0, 0) == 0


@pytest.mark.parametrize("stop", ["kl", "preference"])
def test_more_picks_never_make_a_smaller_criterion(stop):
    """On this rests the early end: with no errors at all, later iterations cannot be better than the next one."""
    options = options_of(stop=stop)
    for n in (1, 7, 100, 4000):
        picked = np.unique(np.linspace(0, n, 60).astype(int))
        assert (np.diff([criterion(options, n, int(m), 0) for m in picked]) >= 0).all()
        assert all(
            criterion(options, n, int(m), e) >= criterion(options, n, int(m), 0)
            for m in picked
            for e in range(n - m + 1)[:50]
        )


# ---- mP2L


def probabilities(W, x, head):
    """Softmax regression over the classes of each row's head, row by row: equal examples get equal bits."""
    powers = head * np.exp((x[:, None] * W).sum(2))
    return powers / powers.sum(1, keepdims=True)


def algorithm_2(W, S, B, heads, options):
    """mP2L(theta, S, B, gamma, inf) of the paper, k picks at a time, written out for softmax regression in numpy.

    For every iteration j of its loop: theta_j, C_j in picking order, and the criterion.
    """
    parts, n = [S, B] if B else [S], len(S)
    x, y, mark = (
        np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in ("x", "y", "mark")
    )
    x, rows = np.column_stack([x, np.ones(len(x))]), np.arange(len(x))
    head, w = heads[np.concatenate([part.task for part in parts])], np.where(rows < n, 1.0, options.omega)
    C, path = [], []
    while True:
        p = probabilities(W, x, head)
        loss = w * -np.log(p[rows, y])
        left = [i for i in rows if i not in C]
        errors = sum(int(p[i, y[i]] <= np.delete(p[i], y[i]).max()) for i in left if i < n)
        picked = sum(int(i < n) for i in C)
        path.append((W, list(C), written_out(options, n, picked, errors)))
        if len(path) > options.max_iterations or not any(loss[i] >= options.gamma for i in left):
            return path
        C += sorted(left, key=lambda i: (-loss[i].round(9), mark[i]))[: options.k]
        for _ in range(options.epochs):
            residual = probabilities(W, x[C], head[C]) - np.eye(len(W))[y[C]]
            W = W - options.lr * (w[C, None] * residual).T @ x[C] / len(C)


@pytest.mark.parametrize("stop", ["kl", "preference", "none"])
@pytest.mark.parametrize("with_buffer", [False, True])
@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize(("k", "scenario"), [(1, "class-incremental"), (3, "task-incremental")])
def test_mp2l_is_algorithm_2(stop, with_buffer, grid, k, scenario):
    """From weights so large that losses of S and B mix, and from zero, where all losses are equal; then again with K given."""
    case = case_of(
        scenario, [18, 12], stop=stop, omega=1.5, max_iterations=9, grid=grid, gamma=1.0, noise=0.05,
        **{**SMALL, "k": k, "batch": 64, "lr": 0.2},
    )  # fmt: skip
    S, B = case.sample(1, np.arange(18)), case.sample(2, np.arange(12)) if with_buffer else None
    model, points = model_of("linear", case.classes).double(), case.options.grid_points
    heads = np.array(
        [[scenario == "class-incremental" or c in head for c in range(4)] for head in [(), *case.heads]]
    )
    for scale in (9.0, 0.0):
        for parameter in model.parameters():
            parameter.data *= scale
        start = parameters(model)
        path = algorithm_2(np.column_stack([*map(np.asarray, start.values())]), S, B, heads, case.options)
        last = len(path) - 1
        values = [
            value if not points or j in points or j == last else mpmath.inf
            for j, (*_, value) in enumerate(path)
        ]
        best = last if stop == "none" else values.index(min(values))
        with exact_arithmetic(1):
            outcome = case.engine(model).mp2l(S, B)
            theta = parameters(model)
            model.load_state_dict(start)
            again = case.engine(model).mp2l(S, B, outcome.kept_iterations)
        W, C, _ = path[best]
        np.testing.assert_allclose(
            np.column_stack([*map(np.asarray, theta.values())]), W, rtol=1e-9, atol=1e-12
        )
        assert outcome.compression.tolist() == again.compression.tolist() == C
        assert same_bits(parameters(model), theta)
        assert outcome.kept_iterations == next(point for point in points or (best,) if point >= best)
        # it may end before the printed loop, where no later iteration can be the best
        assert outcome.picked.tolist() == path[outcome.stopped][1]
        assert outcome.stopped == last or (
            stop != "none" and min(values[: outcome.stopped + 1]) == min(values)
        )


def test_mp2l_ends_where_no_later_iteration_can_be_the_best():
    """Every label is noise: picking costs more than it saves, and the loop need not run until all is picked."""
    case = case_of("class-incremental", [40], noise=0.5, stop="preference", **{**SMALL, "k": 1})
    engine = compress(model_of("mlp", case.classes), case)
    last, kept = engine.trace[-1], engine.trace[engine.sets[0].iterations]
    assert last["worst_loss"] >= case.options.gamma
    assert last["picked"] == kept["picked"] + kept["errors"] < 40


def test_more_iterations_than_stated_are_refused():
    case = case_of("domain-incremental", [30], stop="none", max_iterations=4, gamma=1e-6, **SMALL)
    with exact_arithmetic(1):
        case.engine(model_of("mlp", 2)).learn(case.sample(1), 4)
        with pytest.raises(Refusal, match="does not stop after 3 iterations"):
            case.engine(model_of("mlp", 2)).learn(case.sample(1), 3)


def test_a_block_is_the_largest_losses_and_of_equal_ones_the_smaller_marks():
    draw = np.random.default_rng(0)
    for _ in range(300):
        n, k = int(draw.integers(1, 12)), int(draw.integers(1, 6))
        S = sample(torch.zeros(n, 1), torch.zeros(n), 1, int(draw.integers(2**31)))
        losses = draw.choice([draw.choice([0.0, 0.5, 1.0, np.inf], n), draw.random(n)]).astype(np.float32)
        pool = Pool(S, None, options_of(k=k), joined=False)
        order = sorted(range(n), key=lambda i: (-float(losses[i]), S.mark[i]))
        for start in (0, k):
            block = pool.pick(np.where(pool.remaining, losses, -np.inf))
            assert block.tolist() == order[start : start + k]
        assert pool.picked_of_S == len(order[: 2 * k])


@pytest.mark.parametrize("joined", [False, True])
def test_weights_are_those_of_the_buffer_and_errors_those_of_the_sample(joined):
    S, B = (sample(torch.zeros(n, 1), torch.zeros(n), t, 0) for t, n in ((1, 3), (2, 3)))
    pool = Pool(S, B, options_of(omega=3.0, k=1), joined)
    losses, errors = torch.tensor([1.0, 9.0, 3.0, 1.0, 2.0, 0.5]), np.array([True] * 6)
    pool.pick(np.where(pool.remaining, losses, -np.inf))
    sizes = [len(part) for part in pool.parts]
    scores = [*zip(losses.split(sizes), np.split(errors, np.cumsum(sizes)[:-1]), strict=True)]
    weighted, count = pool.weighted_losses(scores)
    assert weighted.tolist() == [1, -math.inf, 3, 3, 6, 1.5]
    assert count == 2
    assert sizes == ([6] if joined else [3, 3])


def test_a_loss_that_equals_gamma_is_picked():
    case = case_of("domain-incremental", [30], stop="none", max_iterations=1, **SMALL)
    largest = float(score(model_of("linear", 2), case.sample(1))[0].max())
    for gamma, stopped in ((largest, 1), (math.nextafter(largest, 9), 0)):
        case.options = replace(case.options, gamma=gamma)
        assert compress(model_of("linear", 2), case).sets[0].stopped == stopped


def test_a_loss_that_is_not_a_number_is_refused():
    case = case_of("domain-incremental", [30], **SMALL)
    model = model_of("linear", 2)
    case.x[0][7] = np.nan
    with pytest.raises(Refusal, match="diverged at task 1, iteration 0"):
        compress(model, case)


# ---- buffers


def kept_in_buffer(options, task, after, n, own_picks=()):
    sets = [Sets(own_picks=np.array(own_picks, np.int64))] * after
    engine = ReferenceLearner(model_of("linear", 2), options, sizes=[n] * after, sets=sets)
    rows = np.setdiff1d(np.arange(n), own_picks)
    return rows[engine.kept_in_buffer(rows, task, after)]


def test_the_threshold_buffer_shrinks_and_never_takes_back():
    for seed in range(20):
        options, before = options_of(memory=60, seed=seed), np.arange(200)
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


def test_uniform_sampling_keeps_its_share():
    for seed in range(10):
        assert len(kept_in_buffer(options_of(buffer="uniform", memory=30, seed=seed), 1, 4, 200)) == 7
    draws = np.concatenate(
        [kept_in_buffer(options_of(buffer="uniform", memory=30, seed=s), 1, 4, 40) for s in range(400)]
    )
    assert np.bincount(draws, minlength=40).min() > 35  # 70 expected


# ---- counts


@pytest.mark.parametrize("buffer", ["uniform", "threshold"])
@pytest.mark.parametrize("tasks", [None, 3])
@pytest.mark.parametrize("grid", [False, True])
def test_counts_and_the_bounds_of_them(buffer, tasks, grid):
    """Counted one by one, and each bound called with arguments written out for each buffer."""
    case = case_of(
        "class-incremental", [40, 40, 40], data_seed=3, buffer=buffer, stop="none", omega=8.0, max_iterations=5, tasks=tasks,
        grid=grid, **{**SMALL, "memory": 80},
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
        S = set(range(40))
        I, J, G = (
            set(rows.tolist()) for rows in (task_sets.compression, task_sets.evicted, task_sets.picked)
        )
        W = {row for row in S if errors[row]}
        assert record["n"] == 40
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
        if buffer == "uniform":
            assert set(bounds) == {"kl"}
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
        assert bounds["buffer"] == buffer_certificate(
            len(R), len(R & (G | W)), K, T, log_delta, **grid_options
        )
    if buffer == "uniform":
        assert any(len(task_sets.evicted) for task_sets in sets)
    assert any(len(task_sets.picked) > len(task_sets.own_picks) for task_sets in sets)
