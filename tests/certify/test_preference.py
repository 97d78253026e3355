"""The property on which our certificate rests: examples outside c(S_t) can go, and nothing changes."""

import numpy as np
import pytest
import torch
from certify_cases import case_of, certified_rows, compress, model_of, parameters, same_bits, whole

from cop2l.certify.examples import sample
from cop2l.certify.history import History, Memory, certified_mask, prior_part, train_on_prior
from cop2l.certify.p2l import mp2l
from cop2l.certify.scoring import score
from cop2l.certify.training import exact_arithmetic


def rerun(model, case, present, kept=None, order=None):
    """CoP2L on part of the sample: rows keep their marks, tau its nominal n; K is fixed for the tasks in `kept`.

    Written apart from `compress_task`: it knows rows by number and may see them in any order. Returns, for each task,
    (rows of C_t in S_t, rows of G_t).
    """
    memory, own, picked = Memory(case.options), {}, {}
    for t in range(1, case.tasks + 1):
        rows = present.get(t, np.arange(len(case.y[t - 1])))
        rows = rows[certified_mask(History(t, len(case.y[t - 1]), ()), case.options)[rows]]
        rows = rows if order is None else order.permutation(rows)
        x, y = torch.from_numpy(case.x[t - 1]), torch.from_numpy(case.y[t - 1])
        S, B = sample(x[rows], y[rows], t, case.options.seed, rows), memory.buffer()
        own_prior = prior_part(sample(x, y, t, case.options.seed), t, case.options)
        prior = memory.prior_set(own_prior)
        with exact_arithmetic():
            train_on_prior(model, prior, case.outside, case.options, t)
            outcome = mp2l(
                model, S, B, case.options, task=t, outside=case.outside, prior=prior, iterations=(kept or {}).get(t)
            )  # fmt: skip
        own[t] = picked[t] = np.sort(S.row[outcome.kept[outcome.kept < len(S)]])
        at = outcome.picked[outcome.picked >= len(S)] - len(S)
        for i in range(1, t):
            picked[i] = np.union1d(picked[i], B.row[at][B.task[at] == i] if len(at) else [])
        memory.candidates.append(S.take(np.flatnonzero(~np.isin(rows, own[t]))))
        for i, held in enumerate(memory.candidates, start=1):
            mask = certified_mask(History(i, len(case.y[i - 1]), ()), case.options)
            if not case.options.marked and i in present:  # only tau is fixed in advance
                mask &= np.isin(np.arange(len(mask)), present[i])
            stays = memory.keeper.stay(held.row, task=i, after=t, certified=mask, own=own[i])
            memory.candidates[i - 1] = held.take(np.flatnonzero(stays))
        memory.store_prior(own_prior, t)
    return own, picked


def missed_rows(model, case, t, picked):
    wrong = score(model, whole(case, t), case.outside)[1].numpy()
    return np.setdiff1d(np.flatnonzero(wrong), picked)


def trials(buffer, runs, drops):
    """(trials, exceptions): drop examples outside c(S_t) at random, learn again with K_t fixed, compare everything."""
    done = exceptions = 0
    for number in range(runs):
        draw = np.random.default_rng(number)
        kind = ("linear", "mlp", "cnn", "normed")[number % 4]
        case = case_of(
            ("class-incremental", "task-incremental", "domain-incremental")[number % 3],
            [int(n) for n in draw.integers(15, 45, size=2 + number % 3)],
            data_seed=number,
            seed=number,
            buffer=buffer,
            k=(2, 4, 8)[number % 3],
            stop=("preference", "kl", "none", "combined")[number // 3 % 4],
            optimiser=("sgd", "momentum", "adam")[number % 3],
            prior=(0.0, 0.0, 0.3)[number % 3],
            prior_memory=0.5,
            prior_epochs=2,
            memory=30,
            omega=8.0,
            lr=0.02,
            epochs=2,
            batch=16,
            max_iterations=6,
        )
        model = model_of(kind, case.classes)
        theta_0 = parameters(model)
        histories, _ = compress(model, case)
        theta = parameters(model)
        first_missed = {h.task: missed_rows(model, case, h.task, h.picked) for h in histories}
        for _ in range(drops):
            history = histories[int(draw.integers(case.tasks))]
            t = history.task
            compressed = np.union1d(history.picked, first_missed[t])
            outside_c = np.setdiff1d(certified_rows(history, case), compressed)
            if not len(outside_c):
                continue
            gone = draw.permutation(outside_c)[: int(draw.integers(1, len(outside_c) + 1))]
            present = np.setdiff1d(np.arange(history.rows), gone)
            model.load_state_dict(theta_0)
            own, picked = rerun(model, case, {t: present}, {t: history.iterations}, draw)
            same = same_bits(parameters(model), theta)
            same &= all(np.array_equal(own[h.task], h.own) for h in histories)
            # Picks of earlier tasks' examples at task t, beyond K_t, are no part of c(S_t): K_t is fixed.
            same &= all(np.array_equal(picked[h.task], h.picked) for h in histories[t - 1 :])
            same &= np.array_equal(
                np.intersect1d(missed_rows(model, case, t, picked[t]), certified_rows(history, case)),
                np.intersect1d(first_missed[t], certified_rows(history, case)),
            )
            done += 1
            exceptions += not same
    return done, exceptions


@pytest.mark.parametrize(("buffer", "runs"), [("threshold", 32), ("witness", 8)])
def test_dropping_examples_outside_the_compression_changes_nothing(buffer, runs):
    done, exceptions = trials(buffer, runs, drops=8)
    print(f"{buffer} buffer: {exceptions} exceptions in {done} trials")
    assert done >= 6 * runs
    assert exceptions == 0


@pytest.mark.parametrize("buffer", ["uniform", "priority"])
def test_the_same_trials_show_exceptions_where_the_buffer_depends_on_other_examples(buffer):
    done, exceptions = trials(buffer, runs=9, drops=4)
    print(f"{buffer} buffer: {exceptions} exceptions in {done} trials")
    assert exceptions >= 3


@pytest.mark.parametrize("buffer", ["threshold", "uniform", "priority"])
def test_the_order_of_the_rows_does_not_matter(buffer):
    """The rerun, which sees rows in another order, is the run itself when nothing is dropped."""
    for number in range(4):
        case = case_of(
            "class-incremental", [30, 25, 20], data_seed=number, seed=number, buffer=buffer, k=4, memory=15, lr=0.02,
            epochs=2, max_iterations=6, stop="none",
        )  # fmt: skip
        model = model_of("mlp", case.classes)
        theta_0 = parameters(model)
        histories, _ = compress(model, case)
        theta = parameters(model)
        model.load_state_dict(theta_0)
        own, picked = rerun(model, case, {}, order=np.random.default_rng(number))
        assert same_bits(parameters(model), theta)
        assert all(np.array_equal(picked[h.task], h.picked) for h in histories)
        assert all(np.array_equal(own[h.task], h.own) for h in histories)


def test_counting_only_the_kept_picks_would_not_be_a_preferent_compression():
    """Why G counts the whole trajectory at later tasks: examples picked there and rolled back do matter."""
    exceptions = 0
    for number in range(12):
        case = case_of(
            "domain-incremental", [40, 40], data_seed=number, seed=number, k=4, memory=40, omega=8.0, lr=0.02, epochs=2,
            stop="preference", max_iterations=10,
        )  # fmt: skip
        model = model_of("mlp", case.classes)
        theta_0 = parameters(model)
        histories, _ = compress(model, case)
        first, theta = histories[0], parameters(model)
        rolled_back = np.setdiff1d(first.picked, first.first)
        if not len(rolled_back):
            continue
        model.load_state_dict(theta_0)
        present = np.setdiff1d(np.arange(first.rows), rolled_back)
        _, picked = rerun(model, case, {1: present}, {1: first.iterations})
        exceptions += not (same_bits(parameters(model), theta) and np.isin(picked[1], first.first).all())
    assert exceptions >= 1
