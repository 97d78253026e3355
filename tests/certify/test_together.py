"""Learners side by side: each has what it has alone, an error ends one of them, an interruption all."""

import itertools
import threading
import time

import pytest
import torch
from certify_cases import Later, case_of, model_of, parameters, same_bits, standing

from cop2l.certify import cuda, together
from cop2l.certify.fast import ours
from cop2l.certify.learner import CoP2L

CPU = torch.device("cpu")
OPTIONS = {"k": 4, "epochs": 2, "lr": 0.1, "memory": 40, "prior": 0.0, "grid": False, "stop": "kl"}


@pytest.fixture
def waiting(monkeypatch):
    """The path of CUDA graphs without a device, where every iteration is waited for, as if there were one."""
    monkeypatch.setattr(cuda, "able", lambda engine, parts: ours(engine.model))
    original = cuda.Rounds.__init__

    def begin(self, *arguments):
        original(self, *arguments)
        self._done = [Later() for _ in range(cuda.PLACES)]

    monkeypatch.setattr(cuda.Rounds, "__init__", begin)


def learned(seed, optimiser="sgd", watch=None):
    case = case_of("class-incremental", [60, 50, 40])
    model = model_of("mlp", case.classes)
    learner = CoP2L(model, seed=seed, optimiser=optimiser, **OPTIONS)
    for t in (1, 2, 3):
        learner.learn(*case.data[t], progress=watch or False)
    return standing(learner.engine), parameters(model)


def test_a_seed_has_what_it_has_alone_whoever_is_beside_it(waiting):
    alone, turns = [learned(seed) for seed in range(4)], []
    state = torch.get_rng_state()
    beside = together.side_by_side(
        [lambda seed=seed: learned(seed, watch=lambda _: turns.append(seed)) for seed in range(4)], CPU
    )
    for one, other in zip(alone, beside, strict=True):
        assert one[0] == other[0]
        assert same_bits(one[1], other[1])
    assert not same_bits(alone[0][1], alone[1][1])
    assert sum(a != b for a, b in itertools.pairwise(turns)) > 20  # they did take turns
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_error_ends_one_and_no_other(waiting):
    def fails():
        raise ValueError("this one")

    one, other = together.side_by_side([fails, lambda: learned(1)], CPU)
    assert str(one) == "this one"
    assert other[0] == learned(1)[0]


def test_what_diverges_ends_its_own_learner_whichever_thread_made_the_step(waiting):
    def diverges():
        case = case_of("class-incremental", [60, 50, 40])
        CoP2L(model_of("mlp", case.classes), **{**OPTIONS, "lr": 1e12}).learn(*case.data[1], progress=False)

    alone = [learned(seed) for seed in (1, 2)]
    for place in range(3):
        works = [lambda seed=seed: learned(seed) for seed in (1, 2)]
        works.insert(place, diverges)
        ends = together.side_by_side(works, CPU)
        assert "diverged at task 1" in str(ends.pop(place))
        assert [end[0] for end in ends] == [end[0] for end in alone]


def test_an_interruption_stops_all_and_a_learner_is_as_before(waiting, monkeypatch):
    learners = [CoP2L(model_of("mlp", 6), seed=seed, **OPTIONS) for seed in range(3)]
    case, begun = case_of("class-incremental", [60, 50, 40]), threading.Event()
    before = [parameters(learner.model) for learner in learners]
    monkeypatch.setattr(Later, "query", lambda self: begun.set() or False)

    def learn(learner):
        learner.learn(*case.data[1], progress=False)

    def join(thread, usual=threading.Thread.join):
        if not begun.is_set():
            assert begun.wait(60)
            raise KeyboardInterrupt
        usual(thread)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        together.side_by_side([lambda one=one: learn(one) for one in learners], CPU)
    assert [learner.tasks_seen for learner in learners] == [0, 0, 0]
    assert all(same_bits(parameters(one.model), old) for one, old in zip(learners, before, strict=True))


def test_after_an_interruption_no_loop_goes_on(monkeypatch):
    there, late, inside, over = [], [], threading.Event(), threading.Event()

    class Never:
        query = synchronize = staticmethod(lambda: False)

    def steps():
        while not over.is_set():
            if len(there) == 3 and not inside.is_set():
                inside.set()
                assert over.wait(60)
            yield Never
        late.append(1)

    def work():
        there.append(1)
        together.finished(steps())

    def join(thread, usual=threading.Thread.join):
        if not inside.is_set():
            assert inside.wait(60)
            raise KeyboardInterrupt
        over.set()
        usual(thread)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        together.side_by_side([work] * 3, CPU)
    assert not late


def test_what_is_done_aside_leaves_the_turn_to_others():
    order, gone = [], threading.Event()

    def first():
        with together.aside():
            assert gone.wait(60)
        order.append("first")

    def second():
        gone.set()
        time.sleep(0.01)
        order.append("second")

    assert together.side_by_side([first, second], CPU) == [None, None]
    assert sorted(order) == ["first", "second"]
    with together.aside():  # nobody is beside this
        pass


def test_a_pause_lets_iterations_go_on_and_comes_back():
    """Whoever makes the iterations has the turn after each of the others, not after all of them."""
    order = []

    class Looked(Later):
        def query(self):
            order.append("looked")
            return super().query()

    def iterates():
        waiting = together._of_thread.turns._waiting
        while len(waiting) < 3:
            time.sleep(0.001)

        def steps():
            for _ in range(20):
                yield Looked()

        return together.finished(steps())

    def pauses(name):
        for _ in range(2):
            order.append(name)
            together.pause()

    together.pause()  # nobody is beside this
    works = [iterates, *(lambda name=name: pauses(name) for name in "abc")]
    assert together.side_by_side(works, CPU) == [None] * 4
    assert sorted(name for name in order if name != "looked") == [*"aabbcc"]
    assert order[0] == order[-1] == "looked"
    assert all("looked" in pair for pair in itertools.pairwise(order))
