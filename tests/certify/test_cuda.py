"""The same exactness on a CUDA device: fast path and kernel have the same bits there, and a certificate is verified there."""

import gc

import numpy as np
import pytest
import torch
from certify_cases import (
    SCENARIOS,
    case_of,
    compress,
    learn_stream,
    model_of,
    parameters,
    rebuild_theta,
    same_bits,
    standing,
)

from cop2l.audit.verify import verify as audit
from cop2l.certify.fast import FastLearner
from cop2l.certify.learner import CoP2L
from cop2l.certify.repeats import row_hashes
from cop2l.certify.scoring import Pool
from cop2l.kernel.checking import check_certificates
from cop2l.kernel.exact import LARGE_BLOCK as BLOCK
from cop2l.kernel.exact import check_alone, exact_arithmetic, sample, score
from cop2l.kernel.learning import ReferenceLearner
from cop2l.models import build

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SMALL = {
    "prior": 0.0, "buffer": "threshold", "k": 4, "epochs": 2, "lr": 0.05, "memory": 40, "max_iterations": 5, "stop": "none",
    "grid": False,
}  # fmt: skip
MODELS = [
    ("linear", (13,), {}), ("linear", (785,), {}), ("linear", (384,), {}), ("mlp", (50,), {"hidden": 50}),
    ("mlp", (785,), {"hidden": 13}), ("mlp", (13,), {"hidden": 785}), ("cnn", (1, 12, 12), {}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "shape", "architecture"), MODELS)
def test_scores_depend_on_no_other_example(name, shape, architecture, dtype):
    model = build(name, inputs=shape, classes=10, seed=0, **architecture).to("cuda", dtype)
    draw = torch.Generator().manual_seed(0)
    rows = BLOCK + 61
    x, y = torch.randn(rows, *shape, generator=draw), torch.randint(10, (rows,), generator=draw)
    examples = sample(x.cuda(), y.cuda(), 1, 0)
    with exact_arithmetic(1):
        check_alone(model, examples)
        losses, errors = score(model, examples)
        found, quick = Pool(model, [examples], None, [1.0]).score()
        assert torch.equal(found[:rows], losses)
        assert np.array_equal(quick, errors)
        for chosen in (
            np.random.default_rng(0).permutation(rows),
            np.arange(7),
            np.array([3]),
            np.array([rows - 1]),
        ):
            assert torch.equal(
                score(model, examples.take(chosen))[0], losses[torch.from_numpy(chosen).cuda()]
            )


@pytest.mark.parametrize("number", range(24))
def test_the_fast_path_is_the_kernel_and_both_are_repeatable(number):
    """Models, buffers, scenarios, stops and optimisers in turn."""
    buffer = ("uniform", "threshold", "count-only")[number % 3]
    optimiser = ("adam", "sgd", "momentum")[number // 3 % 3]
    case = case_of(
        SCENARIOS[number // 2 % 3], [60, 50, 40], data_seed=number, buffer=buffer, optimiser=optimiser,
        stop=("none", "preference", "kl", "combined")[number % 4], grid=number % 5 == 0, k=(3, 8)[number % 2], epochs=2,
        lr=0.01 if optimiser == "adam" else 0.1, memory=60, omega=8.0, max_iterations=8, batch=(7, 64)[number // 2 % 2],
        prior=(0.0, 0.3)[number // 3 % 2], prior_memory=0.5, prior_epochs=2, seed=number,
    )  # fmt: skip
    model = model_of(("linear", "mlp", "cnn", "normed")[number // 2 % 4], case.classes).cuda().eval()
    if number % 6 == 5:
        model.double()
    theta_0, ends = parameters(model), []
    for kind in (ReferenceLearner, FastLearner, FastLearner, ReferenceLearner):
        model.load_state_dict(theta_0)
        engine, after = learn_stream(model, case, kind, "cuda")
        ends.append(after)
    for other in ends[1:]:
        for t, (first_sets, two) in enumerate(zip(ends[0], other, strict=True), 1):
            assert all(first_sets[name] == two[name] for name in first_sets), (
                t,
                [name for name in first_sets if first_sets[name] != two[name]],
            )
    theta = parameters(model)
    model.load_state_dict(theta_0)
    rebuild_theta(model, engine, case)
    assert same_bits(parameters(model), theta)


@pytest.mark.parametrize("number", range(6))
def test_what_is_recorded_is_the_kernel(number):
    """Shapes of real runs: several blocks, several mini-batches, dropout, masks, momentum, the last partial block."""
    name, shape, architecture = [
        ("linear", (384,), {}), ("mlp", (784,), {"hidden": 512}), ("mlp", (50,), {"hidden": 13}), ("linear", (13,), {}),
        ("cnn", (1, 12, 12), {}), ("multi-head", (48,), {}),
    ][number]  # fmt: skip
    case = case_of(
        SCENARIOS[number % 3], [700, 2300, 300], data_seed=number, inputs=int(np.prod(shape)), values=5,
        buffer=("uniform", "threshold")[number % 2], optimiser=("sgd", "momentum")[number // 2 % 2], k=(40, 37)[number % 2],
        epochs=(2, 3)[number % 2], lr=0.01, memory=300, omega=8.0, stop=("kl", "none")[number // 3], batch=(256, 100)[number % 2],
        max_iterations=(40, None)[number % 2], prior=(0.0, 0.3)[number // 2 % 2], prior_memory=0.5, prior_epochs=3,
    )  # fmt: skip
    case.x = [x.reshape(-1, *shape) for x in case.x]
    model = build(name, inputs=shape, classes=case.classes, seed=0, **architecture).cuda()
    theta_0, ends = parameters(model), []
    for kind in (ReferenceLearner, FastLearner):
        model.load_state_dict(theta_0)
        torch.manual_seed(number)
        engine, after = learn_stream(model, case, kind, "cuda")
        ends.append([*after, torch.cuda.get_rng_state().tolist()])
    assert engine._graphs is not None
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", ["linear", "mlp", "cnn", "normed"])
@pytest.mark.parametrize("buffer", ["uniform", "threshold"])
def test_reconstruction(kind, buffer):
    case = case_of(
        "class-incremental", [40, 40, 40], buffer=buffer, k=4, epochs=2, lr=0.05, memory=60, omega=8.0, max_iterations=8,
        prior=0.2, prior_memory=0.5, prior_epochs=2, stop="none",
    )  # fmt: skip
    model = model_of(kind, case.classes).cuda()
    start = parameters(model)
    engine = compress(model, case)
    theta = parameters(model)
    assert not same_bits(theta, start)
    for way in (ReferenceLearner, FastLearner):
        model.load_state_dict(start)
        rebuild_theta(model, engine, case, way)
        assert same_bits(parameters(model), theta)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(("name", "shape", "architecture"), MODELS)
def test_learn_save_load_and_verify(tmp_path, name, shape, architecture, optimiser):
    case = case_of("class-incremental", [60, 60], inputs=int(np.prod(shape)), values=9, copies=False)
    case.x = [x.reshape(-1, *shape) for x in case.x]
    options = {**SMALL, "optimiser": optimiser, "lr": 0.05 if optimiser == "sgd" and name != "cnn" else 0.01}

    def new_model():
        return build(name, inputs=shape, classes=case.classes, seed=0, **architecture).cuda()

    straight, stopped = (
        CoP2L(new_model(), preset="picking", **options),
        CoP2L(new_model(), preset="picking", **options),
    )
    for t in (1, 2):
        straight.learn(*case.data[t])
    stopped.learn(*case.data[1])
    stopped.save(tmp_path / "state")
    resumed = CoP2L.load(tmp_path / "state")
    assert next(resumed.model.parameters()).device.type == "cuda"
    resumed.learn(*case.data[2])
    assert standing(resumed.engine) == standing(straight.engine)
    straight.certify(case.data).save(tmp_path / "certificate")
    verdict = check_certificates([tmp_path / "certificate"], case.data, new_model())
    assert verdict.exit_code == 0, str(verdict)


def test_memory_is_free_when_a_learner_is_gone():
    case = case_of("class-incremental", [700, 500], inputs=48)

    def learn():
        model = build("mlp", inputs=(48,), classes=case.classes, seed=0).cuda()
        learner = CoP2L(model, preset="picking", **SMALL)
        for t in (1, 2):
            learner.learn(*case.data[t], progress=False)
        assert learner.engine._graphs is not None

    learn()  # what libraries keep
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        learn()
        assert torch.cuda.memory_allocated() <= before
    finally:
        gc.enable()


def test_a_run_that_scales_its_inputs_is_verified(tmp_path):
    """The scale is found again from rows on the device, and rows have the hashes that they have on the processor."""
    x, y = torch.randn(400, 5) * torch.tensor([1, 10, 100, 0.1, 1]), torch.arange(400) % 2
    learner = CoP2L(build("mlp", inputs=(5,), classes=2, seed=0).cuda())
    learner.learn(x, y, progress=False)
    learner.certify({1: (x, y)}).save(tmp_path)
    assert audit(tmp_path, {1: (x, y)}).status == "valid"
    like = next(learner.model.parameters())
    assert (row_hashes(x, like, 0) == row_hashes(x, like.cpu(), 0)).all()
