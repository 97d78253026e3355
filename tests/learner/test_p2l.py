"""mP2L against Algorithm 2 in numpy, the buffers against their definitions, and the counts against a count by hand."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from learner_cases import case_of, certified, compress, model_of, options_of, parameters, same_bits

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
from cop2l.kernel.exact import certified_rows, exact_arithmetic, sample, score, threshold
from cop2l.kernel.learning import (
    Pool,
    ReferenceLearner,
    Sets,
    balanced_order,
    class_balanced_weights,
    criterion,
)
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
        path.append((W, list(C), written_out(options, n, picked, errors, len(path))))
        if len(path) > options.max_iterations or not any(loss[i] >= options.gamma for i in left):
            return path
        C += sorted(left, key=lambda i: (-loss[i].round(9), mark[i]))[: options.k]
        for _ in range(options.epochs):
            residual = probabilities(W, x[C], head[C]) - np.eye(len(W))[y[C]]
            W = W - options.lr * (w[C, None] * residual).T @ x[C] / len(C)


@pytest.mark.parametrize("stop", ["kl", "preference", "combined", "none"])
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
    model, points, everything = (
        model_of("linear", case.classes).double(),
        case.options.grid_points,
        np.ones(18, bool),
    )
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
            outcome = case.engine(model).mp2l(S, B, everything, None)
            theta = parameters(model)
            model.load_state_dict(start)
            again = case.engine(model).mp2l(S, B, everything, None, kept_iterations=outcome.kept_iterations)
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


def test_what_is_no_candidate_is_never_picked_nor_counted():
    case = case_of("class-incremental", [30], stop="none", max_iterations=20, gamma=1e-6, **SMALL)
    engine, candidates = case.engine(model_of("mlp", case.classes)), np.arange(30) % 3 > 0
    errors = score(engine.model, case.sample(1))[1] & candidates
    with exact_arithmetic(1):
        outcome = engine.mp2l(case.sample(1), None, candidates, None)
    assert engine.trace[0]["errors"] == errors.sum()
    assert sorted(outcome.picked) == np.flatnonzero(candidates).tolist()
    assert outcome.stopped == math.ceil(20 / 3)


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
        S, is_open = (
            sample(torch.zeros(n, 1), torch.zeros(n), 1, int(draw.integers(2**31))),
            draw.random(n) < 0.8,
        )
        losses = draw.choice([draw.choice([0.0, 0.5, 1.0, np.inf], n), draw.random(n)]).astype(np.float32)
        pool = Pool(S, None, is_open, options_of(k=k), joined=False)
        order = sorted(np.flatnonzero(is_open), key=lambda i: (-float(losses[i]), S.mark[i]))
        for start in (0, k):
            block = pool.pick(np.where(pool.remaining, losses, -np.inf))
            assert block.tolist() == order[start : start + k]
        assert pool.picked_of_S == len(order[: 2 * k])


@pytest.mark.parametrize("joined", [False, True])
def test_weights_are_those_of_the_buffer_and_errors_those_of_the_sample(joined):
    S, B = (sample(torch.zeros(n, 1), torch.zeros(n), t, 0) for t, n in ((1, 4), (2, 3)))
    pool = Pool(S, B, np.array([True, True, False, True]), options_of(omega=3.0, k=1), joined)
    losses, errors = torch.tensor([1.0, 9.0, 9.0, 3.0, 1.0, 2.0, 0.5]), np.array([True] * 7)
    pool.pick(np.where(pool.remaining, losses, -np.inf))
    sizes = [len(part) for part in pool.parts]
    scores = [*zip(losses.split(sizes), np.split(errors, np.cumsum(sizes)[:-1]), strict=True)]
    weighted, count = pool.weighted_losses(scores)
    assert weighted.tolist() == [1, -math.inf, -math.inf, 3, 3, 6, 1.5]
    assert count == 2
    assert sizes == ([7] if joined else [4, 3])


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


# ---- prior examples


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
