"""theta_T comes back, bit for bit, from the compression sets and the messages alone."""

from functools import cache

import numpy as np
import pytest
import torch
from certify_cases import Case, case_of, compress, model_of, options_of, parameters, rebuild_theta, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cop2l.errors import UserError
from cop2l.features import load_stream
from cop2l.models import build

PROPERTY = settings(
    max_examples=260, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@st.composite
def cases(draw):
    """A stream, a model and options; small samples and updates keep hundreds of them affordable."""
    tasks = draw(st.integers(1, 10))
    sizes = [draw(st.integers(4, 40 if tasks < 4 else 12)) for _ in range(tasks)]
    kind = draw(st.sampled_from(["linear", "mlp", "cnn", "normed"]))
    k = draw(st.sampled_from([1, 4, 32]))
    if kind == "normed" and k == 1:
        k = 4
    buffer = draw(st.sampled_from(["uniform", "priority", "threshold", "witness"]))
    optimiser = draw(st.sampled_from(["sgd", "momentum", "adam"]))
    case = case_of(
        draw(st.sampled_from(["class-incremental", "task-incremental", "domain-incremental"])),
        sizes,
        data_seed=draw(st.integers(0, 10**6)),
        k=k,
        buffer=buffer,
        stop=draw(st.sampled_from(["kl", "preference", "combined", "none"])),
        prior=draw(st.sampled_from([0.0, 0.3])) if min(sizes) >= 8 else 0.0,
        prior_memory=draw(st.sampled_from([0.0, 0.5, 1.0])),
        prior_epochs=2,
        optimiser=optimiser,
        lr=0.01 if optimiser == "adam" else 0.05,
        omega=draw(st.sampled_from([1.0, 15.0])),
        memory=draw(st.integers(tasks, 5 * tasks)),
        epochs=draw(st.integers(1, 2)),
        batch=draw(st.sampled_from([3, 64])),
        max_iterations=draw(st.sampled_from([3, 8] if tasks > 4 else [4, 12, None])),
        seed=draw(st.integers(0, 2**31)),
    )
    return kind, case


def test_hundreds_of_random_streams_are_rebuilt_bit_for_bit():
    seen = dict.fromkeys(("rebuilt", "with a second set", "with picks from the buffer", "rolled back"), 0)

    @PROPERTY
    @given(cases())
    def rebuilt(drawn):
        kind, case = drawn
        model = model_of(kind, case.classes)
        theta_0 = parameters(model)
        histories, _ = compress(model, case)
        theta = parameters(model)
        model.load_state_dict(theta_0)
        rebuild_theta(model, histories, case)
        assert same_bits(parameters(model), theta)
        seen["rebuilt"] += 1
        seen["with a second set"] += any(len(h.second) for h in histories)
        seen["with picks from the buffer"] += any(len(h.first) > len(h.own) for h in histories)
        seen["rolled back"] += any(len(h.picked) > len(h.first) + len(h.second) for h in histories)

    rebuilt()
    print(seen)
    assert seen["rebuilt"] >= 240
    assert min(seen.values()) >= 10


def test_a_wrong_message_or_a_missing_example_rebuilds_something_else():
    case = case_of(
        "class-incremental", [30, 30, 30], k=4, epochs=2, lr=0.05, memory=20, stop="none", max_iterations=6
    )
    model = model_of("mlp", case.classes)
    theta_0 = parameters(model)
    histories, _ = compress(model, case)
    theta = parameters(model)
    assert all(history.iterations for history in histories)
    for history in histories:
        for change in ({"iterations": history.iterations - 1}, {"first": history.first[1:]}):
            before = {name: getattr(history, name) for name in change}
            vars(history).update(change)
            model.load_state_dict(theta_0)
            rebuild_theta(model, histories, case)
            vars(history).update(before)
            assert not same_bits(parameters(model), theta)


@cache
def five_tasks(name):
    return load_stream(name, tasks=5, download=False)


@pytest.mark.parametrize("buffer", ["uniform", "priority", "threshold", "witness"])
@pytest.mark.parametrize(("name", "kind"), [("mnist", "mlp"), ("cifar10@dinov2-vits14-224", "linear")])
def test_real_data_is_rebuilt_bit_for_bit(name, kind, buffer):
    try:
        stream = five_tasks(name)
    except UserError as error:
        pytest.skip(f"the data is not at hand: {error}")
    n = 300
    chosen = options_of(k=8, omega=15.0, memory=60, epochs=2, lr=0.02, buffer=buffer, max_iterations=12)
    case = Case(
        [np.array(task.x[:n], np.float32) for task in stream],
        [np.array(task.y[:n], np.int64) for task in stream],
        list(stream.heads),
        stream.classes,
        "class-incremental",
        chosen,
    )
    model = build(kind, inputs=case.x[0].shape[1:], classes=case.classes, seed=1)
    theta_0 = parameters(model)
    histories, _ = compress(model, case)
    theta = parameters(model)
    assert not torch.equal(theta["head.weight"], theta_0["head.weight"])
    model.load_state_dict(theta_0)
    rebuild_theta(model, histories, case)
    assert same_bits(parameters(model), theta)
