"""The contract of every method: results, reproducibility, memory, saving, progress, refusals."""

import numpy as np
import pytest
import torch

from cop2l.errors import UserError
from cop2l.methods import METHODS, method
from cop2l.models import build
from cop2l.randomness import generator
from cop2l.streams.task import SCENARIOS

FROZEN = ("ncm", "slda", "ranpac")
"""Methods on frozen features: no epochs, and a model without trainable parameters below its head."""
WITHOUT_LOSS = (*FROZEN, "weighted-replay")
"""Methods whose training steps are not their own, or that take none."""
BASELINES = [name for name in METHODS if name != "cop2l"]
QUICK: dict[str, dict] = {
    "cclis": {"head_epochs": 12, "dimensions": 8, "epochs": 12},
    "gdumb": {"epochs": 16},  # its epochs are over 24 kept examples
    "csrel": {"reference_epochs": 3, "selections": 3, "selection_steps": 4, "alpha": 1.0},
    "lamaml": {"epochs": 4, "inner": 2},
    "ranpac": {"random_features": 64},
    "si": {"strength": 1.0},
    "weighted-replay": {"lr": 0.01},  # of Adam
}
"""Options for quick learning of 48 examples; the common ones are in `learner`."""
ALLOWED = [(name, s) for name in BASELINES for s in SCENARIOS if s not in method(name).refuses]
FORGETS = {"finetuning", "lwf", "ewc", "si"}
"""Methods that store no examples, and forget old classes if class-incremental."""


def tasks(scenario, n=48):
    """Three tasks of two well separated clusters each: x (n, 2, 4), y, head; class or domain moves."""
    draws = generator(7, "toy")
    for t in range(3):
        head = (0, 1) if scenario == "domain-incremental" else (2 * t, 2 * t + 1)
        y = torch.arange(n) % 2
        x = 0.3 * torch.randn(n, 8, generator=draws)
        if scenario == "domain-incremental":
            x[:, 0] += 3 * (2.0 * y - 1)
            x[:, 1 + t] += 3
        else:
            x[torch.arange(n), 2 * t + y] += 3
        yield x.reshape(n, 2, 4), y + head[0], head


def network(name):
    if name in FROZEN:
        return build("linear", inputs=(2, 4), classes=6, seed=3)
    return build("mlp", inputs=(2, 4), classes=6, seed=3, hidden=16, dropout=0.25)


def learner(name, scenario, *, memory=24, model=None, **options):
    model = model or network(name)
    chosen = {"epochs": 8, "batch": 8, "lr": 0.1} | QUICK.get(name, {}) | options
    if name in FROZEN:
        chosen = {key: value for key, value in chosen.items() if key not in ("epochs", "batch", "lr")}
    return method(name)(model, memory=memory, seed=5, scenario=scenario, **chosen)


def learn_all(learned, scenario, start=0):
    for x, y, head in list(tasks(scenario))[start:]:
        learned.learn(x, y, classes=head)
    return learned


def weights(learned):
    return torch.cat([p.detach().flatten() for p in learned.model.parameters()])


@pytest.mark.parametrize(("name", "scenario"), ALLOWED)
class TestContract:
    def test_learns_a_separable_stream(self, name, scenario):
        learned = learn_all(learner(name, scenario), scenario)
        accuracies = [
            (learned.predict(x, task=t) == y).float().mean() for t, (x, y, _) in enumerate(tasks(scenario), 1)
        ]
        assert learned.tasks_seen == 3
        if name not in FORGETS or scenario != "class-incremental":
            assert min(accuracies) > 0.9, accuracies
        assert accuracies[-1] > 0.9, accuracies

    def test_same_seed_same_bits_and_nothing_outside_changes(self, name, scenario):
        before = torch.get_rng_state()
        first = learner(name, scenario)
        stream = list(tasks(scenario))
        copies = [(x.clone(), y.clone()) for x, y, _ in stream]
        next(first.model.children()).eval()
        modes = [module.training for module in first.model.modules()]
        for x, y, head in stream[:2]:
            first.learn(x, y, classes=head)
            first.predict(x)
        assert torch.equal(torch.get_rng_state(), before)
        assert [module.training for module in first.model.modules()] == modes
        assert all(p.requires_grad for p in first.model.parameters())
        for (x, y, _), (x0, y0) in zip(stream, copies, strict=True):
            assert torch.equal(x, x0)
            assert torch.equal(y, y0)
        torch.rand(3)
        second = learner(name, scenario)
        next(second.model.children()).eval()
        for x, y, head in stream[:2]:
            arrays = x.numpy().astype(np.float64), y.numpy().astype(np.uint8)
            for array in arrays:
                array.setflags(write=False)
            second.learn(*arrays, classes=head)
        assert torch.equal(weights(first), weights(second))
        assert torch.equal(first.predict(stream[0][0]), second.predict(stream[0][0]))
        torch.set_rng_state(before)

    def test_memory_stays_within_its_budget(self, name, scenario):
        learned = learner(name, scenario, memory=13, epochs=1)
        for x, y, head in tasks(scenario):
            learned.learn(x, y, classes=head)
            if name != "joint":
                assert learned.memory_used <= 13
            assert learned.memory_used == len(learned.buffer)

    def test_save_load_continue_is_uninterrupted(self, name, scenario, tmp_path):
        uninterrupted = learner(name, scenario)
        for number, (x, y, head) in enumerate(tasks(scenario), 1):
            uninterrupted.learn(x, y, classes=head)
            if number == 2:
                uninterrupted.save(tmp_path / "state")
        resumed = learn_all(method(name).load(tmp_path / "state"), scenario, start=2)
        assert torch.equal(weights(uninterrupted), weights(resumed))
        assert uninterrupted.memory_used == resumed.memory_used
        assert uninterrupted.tensors.keys() == resumed.tensors.keys()
        for t, (x, _, _) in enumerate(tasks(scenario), 1):
            assert torch.equal(uninterrupted.predict(x, task=t), resumed.predict(x, task=t))

    def test_progress_is_reported(self, name, scenario):
        reports = []
        learned = learner(name, scenario)
        for x, y, head in list(tasks(scenario))[:2]:
            learned.learn(x, y, classes=head, progress=reports.append)
        assert {report["task"] for report in reports} == {1, 2}
        keys = {"task", "epoch", "epochs"} | ({"loss"} if name not in WITHOUT_LOSS else set())
        assert all(report.keys() == keys for report in reports)
        assert all(1 <= report["epoch"] <= report["epochs"] for report in reports)
        assert all(np.isfinite(report.get("loss", 0)) for report in reports)


@pytest.mark.parametrize("name", [n for n in BASELINES if "task-incremental" not in method(n).refuses])
def test_predictions_stay_in_the_head_of_the_task(name):
    learned = learn_all(learner(name, "task-incremental"), "task-incremental")
    anything = torch.randn(50, 2, 4, generator=generator(0, "anything"))
    for t, head in enumerate([(0, 1), (2, 3), (4, 5)], 1):
        assert set(learned.predict(anything, task=t).tolist()) <= set(head)


@pytest.mark.parametrize(
    ("name", "scenario"), [(n, s) for n in BASELINES for s in SCENARIOS if (n, s) not in ALLOWED]
)
def test_a_scenario_that_makes_no_sense_is_refused_with_the_reason(name, scenario):
    with pytest.raises(UserError, match=f"cannot learn a {scenario} stream: .*[.]"):
        learner(name, scenario)


@pytest.mark.parametrize("memory", [0, 1])
@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"icarl"}))
def test_without_memory_each_method_still_runs(name, memory):
    scenario = "domain-incremental" if "class-incremental" in method(name).refuses else "class-incremental"
    learned = learner(name, scenario, memory=memory, epochs=1)
    for x, y, head in tasks(scenario):
        learned.learn(x, y, classes=head)
    assert learned.tasks_seen == 3
    assert learned.memory_used <= memory or name == "joint"


def test_unknown_names_get_a_hint():
    with pytest.raises(UserError, match="did you mean 'replay'"):
        method("reply")
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        learner("replay", "class-incremental", epoch=3)
    with pytest.raises(UserError, match="did you mean 'class-incremental'"):
        learner("replay", "class-incrementl")


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 2.5}, {"lr": -1.0}, {"batch": "many"}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match="The option"):
        learner("replay", "class-incremental", **options)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("ewc", "fisher_examples"),
        ("si", "damping"),
        ("lwf", "temperature"),
        ("lamaml", "inner"),
        ("csrel", "selections"),
        ("cclis", "temperature"),
        ("cclis", "temperature_old"),
        ("cclis", "temperature_new"),
        ("cclis", "dimensions"),
    ],
)
def test_an_option_that_is_divided_by_is_not_0(name, option):
    with pytest.raises(UserError, match=f"The option {option} is 0.*larger than 0"):
        learner(name, "class-incremental", **{option: 0})


def test_tasks_that_make_no_sense_are_refused():
    x, y, head = next(tasks("task-incremental"))
    learned = learner("finetuning", "task-incremental")
    with pytest.raises(UserError, match="needs its head"):
        learned.learn(x, y)
    with pytest.raises(UserError, match="give one per row"):
        learned.learn(x, y[:-1], classes=head)
    with pytest.raises(UserError, match=r"labels \[1\] that are not among its classes"):
        learned.learn(x, y, classes=(0,))
    with pytest.raises(UserError, match="outputs 0 to 5 only"):
        learned.learn(x, y, classes=(0, 1, 9))
    with pytest.raises(UserError, match="has not been learned"):
        learned.predict(x, task=1)
    assert learned.tasks_seen == 0


def test_restoring_something_else_is_refused(tmp_path):
    learned = learner("replay", "class-incremental")
    with pytest.raises(UserError, match="no saved method"):
        learned.restore(tmp_path)
    learned.save(tmp_path)
    with pytest.raises(UserError, match="saved with options"):
        learner("replay", "class-incremental", epochs=2).restore(tmp_path)


def test_a_model_of_ones_own_needs_an_instance_to_load_into(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 6))
    learner("replay", "class-incremental", model=model).save(tmp_path)
    with pytest.raises(UserError, match="pass an instance as model="):
        method("replay").load(tmp_path)
    again = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 6))
    assert torch.equal(weights(method("replay").load(tmp_path, again)), weights_of(model))


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "scenario"), ALLOWED)
def test_on_cuda_it_learns_repeats_and_resumes(name, scenario, tmp_path):
    def fresh():
        return learner(name, scenario, model=network(name).cuda())

    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    uninterrupted = fresh()
    for number, (x, y, head) in enumerate(tasks(scenario), 1):
        uninterrupted.learn(x, y, classes=head)
        if number == 2:
            uninterrupted.save(tmp_path)
    resumed = fresh()
    resumed.restore(tmp_path)
    learn_all(resumed, scenario, start=2)
    again = learn_all(fresh(), scenario)
    assert torch.equal(weights(uninterrupted), weights(resumed))
    assert torch.equal(weights(uninterrupted), weights(again))
    x, y, _ = list(tasks(scenario))[2]
    assert (uninterrupted.predict(x, task=3) == y).float().mean() > 0.9
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])
