"""The path of CUDA graphs without a device: the same work, called instead of repeated, has the bits of the kernel."""

import gc
import weakref

import pytest
import torch
from certify_cases import SCENARIOS, case_of, learn_stream, model_of, parameters, same_bits

from cop2l.certify import cuda, cuda_steps
from cop2l.certify.cuda_steps import Steps
from cop2l.certify.fast import FastLearner
from cop2l.certify.scoring import is_builtin_model
from cop2l.kernel.exact import LARGE_BLOCK, exact_arithmetic
from cop2l.kernel.learning import ReferenceLearner
from cop2l.kernel.options import Refusal


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """What would be recorded on CUDA goes the same way here."""
    monkeypatch.setattr(
        cuda,
        "can_record",
        lambda engine, parts: is_builtin_model(engine.model) and engine.options.optimiser != "adam",
    )


@pytest.mark.parametrize("number", range(24))
def test_learning_is_the_kernels(number):
    """Models, buffers, scenarios, stops and optimisers in turn; with and without an end that is known beforehand."""
    grid = number % 5 == 0
    case = case_of(
        SCENARIOS[number // 2 % 3], [60, 50, 40], data_seed=number, buffer=("uniform", "threshold", "count-only")[number % 3],
        optimiser=("sgd", "momentum")[number // 3 % 2], stop=("none", "preference", "kl", "combined")[number % 4], grid=grid,
        k=(3, 8)[number % 2], epochs=(2, 5, 3)[number % 3], lr=0.1, memory=60, omega=8.0,
        max_iterations=8 if grid or number % 2 else None, batch=(7, 64)[number // 2 % 2], prior=(0.0, 0.3)[number // 3 % 2],
        prior_memory=0.5, prior_epochs=2, seed=number,
    )  # fmt: skip
    model = model_of(("linear", "mlp")[number // 2 % 2], case.classes).eval()
    theta_0, ends = parameters(model), []
    for kind in (ReferenceLearner, FastLearner):
        model.load_state_dict(theta_0)
        torch.manual_seed(number)
        engine, after = learn_stream(model, case, kind)
        ends.append([*after, torch.get_rng_state().tolist()])
    assert engine._graphs is not None
    assert ends[0] == ends[1]


@pytest.mark.parametrize("table", [1, 2**15])
def test_an_update_may_go_to_the_device_in_parts(monkeypatch, table):
    """Many epochs in several transfers, or many iterations in one, and what is sent is what the kernel draws."""
    case = case_of(
        "class-incremental", [150, 120], k=16, epochs=20, lr=0.01, batch=64, prior=0.3, prior_epochs=40, max_iterations=4,
        stop="none",
    )  # fmt: skip
    monkeypatch.setattr(cuda_steps, "TABLE", table)
    original, sent, ends = Steps._send, [], []
    monkeypatch.setattr(Steps, "_send", lambda *a: sent.append(original(*a)) or sent[-1])
    for kind in (ReferenceLearner, FastLearner):
        model = model_of("mlp", case.classes).eval()
        ends.append((learn_stream(model, case, kind)[1], parameters(model)))
    assert ends[0][0] == ends[1][0]
    assert same_bits(ends[0][1], ends[1][1])
    assert (len(sent) > 10) == (table == 1)  # two tasks of four iterations, and the prior parts


def test_divergence_is_refused_with_the_iteration():
    case = case_of(
        "class-incremental", [40], k=4, epochs=2, lr=1e12, memory=20, max_iterations=8, stop="none"
    )
    messages = []
    for kind in (ReferenceLearner, FastLearner):
        with exact_arithmetic(1), pytest.raises(Refusal) as refused:
            case.engine(model_of("mlp", case.classes), kind).learn(case.sample(1))
        messages.append(str(refused.value).split(":")[0])
    assert messages[0] == messages[1]


def test_a_pool_is_recorded_once_for_tasks_of_about_one_size(monkeypatch):
    """And its results are the kernel's, whatever the pool held before."""
    pools, original = [], cuda.Scores.__init__

    def counted(self, model, steps, rows, *arguments):
        pools.append(rows)
        original(self, model, steps, rows, *arguments)

    monkeypatch.setattr(cuda.Scores, "__init__", counted)
    sizes = [11 * LARGE_BLOCK - 40, 9 * LARGE_BLOCK - 7, 8 * LARGE_BLOCK - 2, 60, 70]
    case = case_of(
        "domain-incremental", sizes, k=40, epochs=1, lr=0.05, memory=60, max_iterations=3, stop="none"
    )
    model = model_of("linear", case.classes).eval()
    theta_0, ends = parameters(model), []
    for kind in (ReferenceLearner, FastLearner):
        model.load_state_dict(theta_0)
        ends.append(learn_stream(model, case, kind)[1])
    assert ends[0] == ends[1]
    assert pools == [
        rows * LARGE_BLOCK for rows in (11, 9, 2)
    ]  # the second fits into the first, the fifth into the fourth


def test_what_is_recorded_goes_with_the_learner():
    """Its memory on a device is free at once, without a collection of garbage."""
    case = case_of("class-incremental", [60, 50, 40], k=4, lr=0.05, memory=40, max_iterations=4)
    gc.collect()
    gc.disable()
    try:
        engine, _ = learn_stream(model_of("mlp", case.classes), case, FastLearner)
        left = weakref.ref(engine), weakref.ref(engine._graphs)
        assert all(left)
        del engine
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()
