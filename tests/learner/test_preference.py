"""The property on which our certificate rests: examples outside c(S_t) can go, and nothing changes."""

import math

import numpy as np
import pytest
from learner_cases import SCENARIOS, case_of, compress, model_of, parameters, same_bits

from cop2l.kernel.exact import exact_arithmetic, join, score, threshold
from cop2l.kernel.learning import ReferenceLearner, Sets
from cop2l.randomness import marks

BLOCKS = ("linear", "mlp", "cnn", "normed")


class HardCap(ReferenceLearner):
    """A buffer that never exceeds its share: the smallest marks stay, and so an example depends on the others."""

    def kept_in_buffer(self, rows, task, after):
        keys = marks(self.options.seed, "mark", task, n=self.sizes[task - 1])[rows]
        chosen = np.zeros(len(rows), bool)
        chosen[np.argsort(keys)[: self.options.memory // after]] = True
        return chosen


class AsManyAsThereAre(ReferenceLearner):
    """A threshold divided by how many examples there are in the buffer, not by how many were left unpicked."""

    def kept_in_buffer(self, rows, task, after):
        keys = marks(self.options.seed, "mark", task, n=self.sizes[task - 1])[rows]
        return np.asarray(keys < threshold(len(rows), after, self.options))


def rerun(engine, case, present, kept_iterations=None, order=None):
    """CoP2L on part of the sample: rows keep their marks, tau its nominal n; K is fixed for the tasks in `kept_iterations`.

    Written apart from `ReferenceLearner.learn`: it knows rows by number and may see them in any order. Returns, for each task,
    (rows of C_t in S_t, rows of G_t).
    """
    own_picks, picked = {}, {}
    engine.sizes = [len(y) for y in case.y]
    for t in range(1, case.tasks + 1):
        rows = present.get(t, np.arange(len(case.y[t - 1])))
        rows = rows if order is None else order.permutation(rows)
        S, B = case.sample(t, rows=rows), join(engine.buffer)
        with exact_arithmetic(1):
            outcome = engine.mp2l(S, B, (kept_iterations or {}).get(t))
        own_picks[t] = picked[t] = np.sort(rows[outcome.compression[outcome.compression < len(S)]])
        at = outcome.picked[outcome.picked >= len(S)] - len(S)
        for i in range(1, t):
            picked[i] = np.union1d(picked[i], B.row[at][B.task[at] == i] if len(at) else [])
        engine.buffer.append(S.take(np.flatnonzero(~np.isin(rows, own_picks[t]))))
        engine.sets.append(
            Sets(own_picks=own_picks[t])
        )  # their number is read, and what was picked at the task itself
        for i, held in enumerate(engine.buffer, start=1):
            engine.buffer[i - 1] = held.take(np.flatnonzero(engine.kept_in_buffer(held.row, i, t)))
    return own_picks, picked


def missed_rows(model, case, t, picked, masked_classes):
    """Rows of task t that are misclassified and were never picked."""
    wrong = np.flatnonzero(score(model, case.sample(t), masked_classes)[1])
    return np.setdiff1d(wrong, picked)


def trials(runs, drops, kind=ReferenceLearner, enough=math.inf, **chosen):
    """(trials, exceptions, stops off the grid): drop examples outside c(S_t) at random, learn again with K_t fixed, compare."""
    runs_done = exceptions = off = 0
    for number in range(runs):
        if exceptions >= enough:
            break
        draw = np.random.default_rng(number)
        case = case_of(
            SCENARIOS[number % 3],
            [int(n) for n in draw.integers(15, 45, size=2 + number % 3)],
            data_seed=number,
            seed=number,
            **{
                "k": (2, 4, 8)[number % 3],
                "stop": ("preference", "kl", "none")[number // 3 % 3],
                "optimiser": ("sgd", "adam")[number % 2],
                "memory": 50, "omega": 8.0, "lr": 0.02, "epochs": 2, "batch": 16, "max_iterations": 6, **chosen,
            },
        )  # fmt: skip
        model = model_of(BLOCKS[number % 4], case.classes)
        theta_0 = parameters(model)
        engine = compress(model, case, kind)
        theta, sets, masked_classes = parameters(model), engine.sets, engine.masked_classes
        points = case.options.grid_points
        off += any(
            points and task_sets.stopped not in points and task_sets.iterations > task_sets.stopped
            for task_sets in sets
        )
        missed = {
            t: missed_rows(model, case, t, task_sets.picked, masked_classes)
            for t, task_sets in enumerate(sets, 1)
        }
        for _ in range(drops):
            t = 1 + int(draw.integers(case.tasks))
            outside_c = np.setdiff1d(np.arange(len(case.y[t - 1])), np.union1d(sets[t - 1].picked, missed[t]))
            if not len(outside_c):
                continue
            gone = draw.permutation(outside_c)[: int(draw.integers(1, len(outside_c) + 1))]
            present = np.setdiff1d(np.arange(len(case.y[t - 1])), gone)
            model.load_state_dict(theta_0)
            own_picks, picked = rerun(
                case.engine(model, kind), case, {t: present}, {t: sets[t - 1].iterations}, draw
            )
            same = same_bits(parameters(model), theta)
            same &= all(
                np.array_equal(own_picks[s], task_sets.own_picks) for s, task_sets in enumerate(sets, 1)
            )
            # Picks of earlier tasks' examples at task t, beyond K_t, are no part of c(S_t): K_t is fixed.
            same &= all(
                np.array_equal(picked[s], task_sets.picked) for s, task_sets in enumerate(sets, 1) if s >= t
            )
            same &= np.array_equal(missed_rows(model, case, t, picked[t], masked_classes), missed[t])
            runs_done += 1
            exceptions += not same
    return runs_done, exceptions, off


GRID = {"grid": True, "max_iterations": 24, "k": 2, "lr": 0.1, "gamma": 1.0}


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [pytest.param(32, {}, id="any iteration", marks=pytest.mark.long), pytest.param(9, GRID, id="on a grid")],
)
def test_dropping_examples_outside_the_compression_changes_nothing(runs, chosen):
    done, exceptions, off = trials(runs, drops=6, **chosen)
    print(f"{exceptions} exceptions in {done} trials, {off} runs kept a stop off the grid")
    assert done >= 4 * runs
    assert exceptions == 0
    assert not chosen or off


@pytest.mark.parametrize(
    ("kind", "buffer"),
    [(ReferenceLearner, "uniform"), (HardCap, "threshold"), (AsManyAsThereAre, "threshold")],
    ids=["uniform", "hard cap", "as many as there are"],
)
def test_the_same_trials_show_exceptions_where_the_buffer_depends_on_other_examples(kind, buffer):
    done, exceptions, _ = trials(15, 4, kind, enough=3, buffer=buffer, memory=24)
    print(f"{kind.__name__} {buffer} buffer: {exceptions} exceptions in {done} trials")
    assert exceptions >= 3


def test_counting_only_the_kept_picks_would_not_be_a_preferent_compression():
    """Why G counts the whole trajectory at later tasks: examples picked there and rolled back do matter."""
    exceptions = 0
    for number in range(12):
        case = case_of(
            "domain-incremental", [40, 40], data_seed=number, seed=number, k=4, memory=60, omega=8.0, lr=0.02, epochs=2,
            stop="preference", max_iterations=10,
        )  # fmt: skip
        model = model_of("mlp", case.classes)
        theta_0 = parameters(model)
        first = compress(model, case).sets[0]
        theta = parameters(model)
        rolled_back = np.setdiff1d(first.picked, first.compression)
        if not len(rolled_back):
            continue
        model.load_state_dict(theta_0)
        present = np.setdiff1d(np.arange(40), rolled_back)
        _, picked = rerun(case.engine(model, ReferenceLearner), case, {1: present}, {1: first.iterations})
        exceptions += not (
            same_bits(parameters(model), theta) and np.isin(picked[1], first.compression).all()
        )
    assert exceptions >= 1
