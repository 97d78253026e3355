"""The same exactness on a CUDA device."""

import numpy as np
import pytest
import torch
from certify_cases import case_of, compress, model_of, parameters, rebuild_theta, same_bits

from cop2l.certify.examples import sample
from cop2l.certify.learner import CoP2L
from cop2l.certify.scoring import LARGE_BLOCK as BLOCK
from cop2l.certify.scoring import prove_exact, score
from cop2l.certify.training import exact_arithmetic
from cop2l.certify.verify import verify
from cop2l.models import build

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
SMALL = {
    "prior": 0.0,
    "buffer": "threshold",
    "k": 4,
    "epochs": 2,
    "lr": 0.05,
    "memory": 24,
    "max_iterations": 5,
}


@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [("linear", (13,), {}), ("linear", (785,), {}), ("mlp", (50,), {"hidden": 50}), ("mlp", (785,), {"hidden": 13}),
     ("cnn", (1, 12, 12), {})],
)  # fmt: skip
def test_scores_depend_on_no_other_example(name, shape, more):
    model = build(name, inputs=shape, classes=10, seed=0, **more).cuda()
    draw = torch.Generator().manual_seed(0)
    rows = BLOCK + 61
    x, y = torch.randn(rows, *shape, generator=draw), torch.randint(10, (rows,), generator=draw)
    every = sample(x.cuda(), y.cuda(), 1, 0)
    with exact_arithmetic():
        prove_exact(model, every)
        losses = score(model, every)[0]
        for chosen in (
            np.random.default_rng(0).permutation(rows),
            np.arange(7),
            np.array([3]),
            np.array([rows - 1]),
        ):
            assert torch.equal(score(model, every.take(chosen))[0], losses[torch.from_numpy(chosen).cuda()])


@pytest.mark.parametrize("kind", ["linear", "mlp", "cnn", "normed"])
@pytest.mark.parametrize("buffer", ["uniform", "threshold"])
def test_reconstruction(kind, buffer):
    case = case_of(
        "class-incremental", [40, 40, 40], buffer=buffer, k=4, epochs=2, lr=0.05, memory=20, omega=8.0, max_iterations=8,
        prior=0.2, prior_memory=0.5, prior_epochs=2,
    )  # fmt: skip
    model = model_of(kind, case.classes).cuda()
    start = parameters(model)
    histories, _ = compress(model, case)
    theta = parameters(model)
    model.load_state_dict(start)
    rebuild_theta(model, histories, case)
    assert same_bits(parameters(model), theta)


@pytest.mark.parametrize("kind", ["mlp", "linear"])
def test_learn_save_load_and_verify(tmp_path, kind):
    case = case_of("class-incremental", [60, 60], values=9)
    data = {t: (case.x[t - 1], case.y[t - 1]) for t in (1, 2)}
    straight = CoP2L(model_of(kind, case.classes).cuda(), **SMALL)
    stopped = CoP2L(model_of(kind, case.classes).cuda(), **SMALL)
    straight.learn(*data[1])
    straight.learn(*data[2])
    stopped.learn(*data[1])
    stopped.save(tmp_path / "state")
    resumed = CoP2L.load(tmp_path / "state")
    assert next(resumed.model.parameters()).device.type == "cuda"
    resumed.learn(*data[2])
    assert same_bits(parameters(resumed.model), parameters(straight.model))
    verdict = verify(straight.certify(data).save(tmp_path / "certificate"), data)
    assert verdict.exit_code == 0, str(verdict)
