"""All randomness is a function of (seed, task, iteration); nothing outside is read or changed."""

import random
from contextlib import suppress
from copy import deepcopy

import numpy as np
import pytest
import torch
from learner_cases import case_of, compress, model_of, parameters, same_bits
from torch import nn

from cop2l.kernel.exact import exact_arithmetic
from cop2l.learner.cop2l import CoP2L

SMALL = {
    "buffer": "threshold",
    "k": 4,
    "epochs": 2,
    "lr": 0.05,
    "batch": 8,
    "memory": 12,
    "max_iterations": 5,
    "stop": "none",
}


def learned(seed=0, **options):
    case = case_of("class-incremental", [25, 25], seed=seed, **{**SMALL, **options})
    model = model_of("mlp", case.classes)
    return parameters(model), compress(model, case).sets, parameters(model)


def precision():
    """Every setting of torch that may change bits."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    owners = [*backends, *(getattr(b, name, None) for b in backends for name in ("matmul", "conv", "rnn"))]
    return [
        *(getattr(owner, "fp32_precision", None) for owner in owners if owner is not None),
        *(getattr(torch.backends.cudnn, name) for name in ("deterministic", "benchmark")),
    ]


def everything_global():
    return (
        precision(),
        torch.get_deterministic_debug_mode(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().numpy().tobytes(),
        np.random.get_state()[1].tobytes(),  # noqa: NPY002
        random.getstate(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
    )


def test_same_seed_same_bits_other_seed_other_bits():
    start, sets, first = learned()
    _, same, again = learned()
    _, other_sets, other_theta = learned(seed=1)
    assert same_bits(first, again)
    assert not same_bits(first, other_theta)
    assert not same_bits(first, start)
    assert all(np.array_equal(one.picked, two.picked) for one, two in zip(sets, same, strict=True))
    assert not all(np.array_equal(one.picked, two.picked) for one, two in zip(sets, other_sets, strict=True))


def test_the_global_generators_are_neither_read_nor_written():
    *_, reference = learned()
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = everything_global()
        *_, found = learned()
        assert everything_global() == before
        assert same_bits(found, reference)


class Recorder(nn.Module):
    """Dropout that remembers what it drew."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def forward(self, x):
        if not self.training:
            return x
        self.drawn.append(torch.rand(x.shape[1]))
        return x * (self.drawn[-1] > 0.5) * 2


def test_dropout_is_a_function_of_task_and_iteration():
    case = case_of("domain-incremental", [25, 25], **{**SMALL, "epochs": 1, "batch": 99, "gamma": 1e-9})
    case.x[1], case.y[1] = case.x[0], case.y[0]  # the same task again must not see the same masks
    runs = []
    for change in (0, 1):
        recorder = Recorder()
        model = nn.Sequential(model_of("linear", 13), recorder, model_of("linear", 2, inputs=13))
        if change:
            nn.init.zeros_(model[0].head.weight)
        compress(model, case)
        runs.append([draw.numpy().tobytes() for draw in recorder.drawn])
    assert len(runs[0]) == len(set(runs[0])) == 2 * SMALL["max_iterations"]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ],
    ids=["matmul precision", "default dtype", "deterministic"],
)
def test_global_settings_do_not_reach_the_bits_and_are_put_back(setting):
    rows = np.random.default_rng(0).normal(size=(120, 64)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int64)
    initial = model_of("mlp", 2, inputs=64)

    def run():
        model = deepcopy(initial)
        learner = CoP2L(model, preset="picking", **SMALL)
        learner.learn(rows, labels)
        return parameters(model), learner.certify({1: (rows, labels)}).bounds

    reference = run()
    before = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    try:
        setting()
        inside = everything_global()
        result = run()
        assert everything_global() == inside
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_default_dtype(before[1])
        torch.use_deterministic_algorithms(False)
    assert same_bits(result[0], reference[0])
    assert result[1] == reference[1]


def test_exact_arithmetic_is_exact_inside_and_puts_everything_back():
    threads, before = torch.get_num_threads(), everything_global()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        masked_classes = everything_global()
        with suppress(KeyError), exact_arithmetic(threads + 1):
            assert torch.get_num_threads() == threads + 1
            assert torch.get_deterministic_debug_mode() == 2
            assert not torch.is_autocast_enabled("cpu")
            assert set(precision()) - {None, "none"} <= {"ieee", True, False}
            assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
            raise KeyError
        assert everything_global() == masked_classes
    assert everything_global() == before


@pytest.mark.parametrize("name", ["fp32_precision", "deterministic", "benchmark"])
def test_exact_arithmetic_puts_back_what_was_not_the_default(name):
    owner = torch.backends.mkldnn.matmul if name == "fp32_precision" else torch.backends.cudnn
    if not hasattr(owner, name):
        pytest.skip("this torch has no such setting")
    before = getattr(owner, name)
    changed = "bf16" if name == "fp32_precision" else not before
    try:
        setattr(owner, name, changed)
        with exact_arithmetic(1):
            assert (
                getattr(owner, name)
                == {"fp32_precision": "ieee", "deterministic": True, "benchmark": False}[name]
            )
        assert getattr(owner, name) == changed
    finally:
        setattr(owner, name, before)


@pytest.fixture
def threads():
    """Sets the number of threads; then it is as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_a_later_task_uses_the_threads_of_the_first(threads):
    case = case_of("class-incremental", [25, 25], **SMALL)
    used = []
    threads(1)
    learner = CoP2L(model_of("mlp", case.classes), preset="picking", **SMALL)
    learner.learn(case.x[0], case.y[0])
    threads(2)
    learner.learn(case.x[1], case.y[1], progress=lambda event: used.append(torch.get_num_threads()))
    assert torch.get_num_threads() == 2
    assert set(used) == {1}
    content = learner.certify(case.data).content
    assert content["threads"] == 1
    assert content["earlier"] == []
