"""CoP2L inside Avalanche; run by `make test-avalanche`, in an environment that has it."""

import warnings
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from doc_pages import python

if find_spec("avalanche") is None:
    pytest.skip("avalanche-lib is not installed: make test-avalanche", allow_module_level=True)
with warnings.catch_warnings():  # Avalanche and what it imports warn as they please
    warnings.simplefilter("ignore")
    import_module("benchmarks.torchvision_operators")
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        class_incremental_benchmark,
        nc_benchmark,
        task_incremental_benchmark,
    )
    from avalanche.benchmarks.utils.transform_groups import TransformGroups
    from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics, loss_metrics
    from avalanche.logging import BaseLogger
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin

    from cop2l.avalanche import CertifiedError, CoP2LStrategy, Examples, as_benchmark, as_stream, outputs_of

from cop2l import CoP2L
from cop2l.audit.verify import verify
from cop2l.errors import UserError
from cop2l.methods import method
from cop2l.models import build
from cop2l.streams import Stream, Task, from_arrays

pytestmark = pytest.mark.filterwarnings("ignore")
SCENARIOS = ("class-incremental", "task-incremental", "domain-incremental")
ACCURACY = "Top1_Acc_Exp/eval_phase/test_stream/Task{label:03d}/Exp{number:03d}"


class Kept(BaseLogger):
    """A logger of Avalanche's that keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def log_single_metric(self, name, value, x_plot):
        self.values.setdefault(name, []).append((x_plot, value))


def strategy(scenario="class-incremental", *, loggers=(), classes=6, **options):
    learner = CoP2L(
        build("linear", inputs=(4,), classes=classes, seed=0),
        preset="picking",
        scenario=scenario,
        **{"memory": 60, "max_iterations": 8, **options},
    )
    metrics = (accuracy_metrics(experience=True, stream=True), loss_metrics(experience=True))
    evaluator = EvaluationPlugin(
        *metrics, forgetting_metrics(experience=True), CertifiedError(), loggers=loggers
    )
    return CoP2LStrategy(learner=learner, evaluator=evaluator)


def clouds(scenario):
    """Six clouds, in three tasks or three domains; no row comes twice."""
    draws, y = np.random.default_rng(0), np.arange(600) % 6
    x = (draws.normal(size=(600, 4)) / 4 + np.eye(6, 4)[y] - np.eye(6, 4, -2)[y]).astype(np.float32)
    domain = np.arange(600) // 6 % 3 if scenario == "domain-incremental" else None
    return from_arrays(
        x[:300], y[:300], x[300:], y[300:], scenario=scenario, tasks=3,
        domain=None if domain is None else domain[:300], domain_test=None if domain is None else domain[300:],
    )  # fmt: skip


def tensors(stream):
    """A stream's training part as one Avalanche data set."""
    x = torch.cat([torch.as_tensor(task.x) for task in stream])
    y = torch.cat([torch.as_tensor(task.y) for task in stream])
    one = [Task(x, y, 1)]
    whole = Stream("whole", "class-incremental", one, one, classes=6, heads=(tuple(range(6)),))
    return as_benchmark(whole).train_stream[0].dataset


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_it_learns_what_the_learner_alone_learns_and_its_certificate_is_valid(scenario, tmp_path):
    stream = clouds(scenario)
    benchmark, logger = as_benchmark(stream), Kept()
    trainer = strategy(scenario, loggers=[logger], classes=stream.classes, tasks=3)
    learner = strategy(scenario, classes=stream.classes, tasks=3).learner
    for (x, y, t), experience in zip(stream, benchmark.train_stream, strict=True):
        trainer.train(experience)
        learner.learn(x, y, classes=stream.heads[t - 1] if scenario == "task-incremental" else None)
        metrics = trainer.eval(benchmark.test_stream)
        for task in stream.test[:t]:
            label = task.t - 1 if scenario == "task-incremental" else 0
            right = learner.predict(task.x, task=task.t) == torch.as_tensor(task.y)
            assert metrics[ACCURACY.format(label=label, number=task.t - 1)] == pytest.approx(
                float(right.float().mean())
            )
    certificate = trainer.certify(benchmark.train_stream)
    assert certificate is trainer.certificate
    assert certificate.bounds == learner.certify({t: (x, y) for x, y, t in stream}).bounds
    metrics = trainer.eval(benchmark.test_stream)
    assert [metrics[f"Certified_Error/Exp{n:03d}"] for n in range(3)] == list(certificate.bounds.values())
    assert any(name.startswith("ExperienceForgetting/") for name in logger.values)
    steps = [step for step, _ in logger.values[ACCURACY.format(label=0, number=0)]]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    certificate.save(tmp_path)
    verdict = verify(tmp_path, {t: (x, y) for x, y, t in as_stream(benchmark)})
    assert verdict.status == "valid", str(verdict)
    certificate.content["not_valid"].append("Tasks share pictures.")
    assert CertifiedError().after_eval(trainer) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_stream_goes_to_avalanche_and_back(scenario):
    stream = clouds(scenario)
    back = as_stream(as_benchmark(stream))
    assert (back.scenario, back.heads, back.classes) == (stream.scenario, stream.heads, stream.classes)
    for part in ("train", "test"):
        for mine, restored in zip(getattr(stream, part), getattr(back, part), strict=True):
            assert torch.equal(torch.as_tensor(mine.x), restored.x)
            assert torch.equal(torch.as_tensor(mine.y).long(), restored.y)
            assert mine.t == restored.t


def test_methods_learn_from_a_benchmark():
    stream = as_stream(as_benchmark(clouds("class-incremental")))
    learner = method("replay")(build("mlp", inputs=(4,), classes=6), memory=60, epochs=2)
    for x, y, _ in stream:
        learner.learn(x, y)
    assert learner.predict(stream.test[0].x).shape == (len(stream.test[0].y),)


def benchmarks_of(data):
    """The ways in which Avalanche cuts data, old and new."""
    order = [4, 1, 0, 3, 5, 2]
    yield nc_benchmark(data, data, 3, task_labels=False, fixed_class_order=order), "class-incremental"
    split = class_incremental_benchmark({"train": data, "test": data}, num_experiences=3, class_order=order)
    yield split, "class-incremental"
    yield task_incremental_benchmark(split, reset_task_labels=True), "task-incremental"
    yield (
        nc_benchmark(
            data, data, 3, task_labels=True, class_ids_from_zero_in_each_exp=True, fixed_class_order=order
        ),
        "task-incremental",
    )
    yield benchmark_from_datasets(train=[data, data], test=[data]), "domain-incremental"


def test_any_benchmark():
    heads = []
    for benchmark, scenario in benchmarks_of(tensors(clouds("class-incremental"))):
        trainer, learner, stream = strategy(scenario), strategy(scenario).learner, as_stream(benchmark)
        trainer.train(benchmark.train_stream)
        for x, y, t in stream:
            learner.learn(x, y, classes=stream.heads[t - 1] if scenario == "task-incremental" else None)
        metrics = trainer.eval(benchmark.test_stream)
        accuracies = [value for name, value in metrics.items() if name.startswith("Top1_Acc_Exp")]
        right = [learner.predict(x, task=t) == y for x, y, t in stream.test]
        expected = [float(part.float().mean()) for part in right]
        assert accuracies == pytest.approx(expected[: len(accuracies)])
        assert all(torch.isfinite(torch.tensor(v)) for name, v in metrics.items() if name.startswith("Loss"))
        assert (stream.scenario, len(stream)) == (scenario, trainer.learner.tasks_seen)
        assert all({*y.tolist()} == set(stream.heads[t - 1]) for _, y, t in (*stream.train, *stream.test))
        heads.append(stream.heads)
    split = ((1, 4), (0, 3), (2, 5))
    assert heads == [split, split, split, ((0, 1), (2, 3), (4, 5)), (tuple(range(6)),) * 2]


def test_classes_counted_from_0_in_every_experience_have_outputs_of_their_own():
    assert outputs_of([0, 1], []) == {0: 0, 1: 1}
    assert outputs_of({1, 0}, [0, 1]) == {0: 2, 1: 3}
    assert outputs_of([4, 2], [0, 1]) == {2: 2, 4: 4}


def test_an_experience_that_is_not_learned_yet_is_guessed():
    benchmark = as_benchmark(clouds("task-incremental"))
    trainer = strategy("task-incremental")
    trainer.train(benchmark.train_stream[0])
    metrics = trainer.eval(benchmark.test_stream)
    later = [ACCURACY.format(label=n, number=n) for n in (1, 2)]
    assert all(0.2 < metrics[name] < 0.8 for name in later)  # two classes, all alike
    assert "Certified_Error/Exp000" not in metrics


def test_a_certificate_after_every_experience_and_without_the_data():
    benchmark = as_benchmark(clouds("class-incremental"))
    trainer = strategy(tasks=None)
    trainer.train(benchmark.train_stream[0])
    assert sorted(trainer.certify(benchmark.train_stream).bounds) == [1]  # those not learned are left out
    trainer.train(benchmark.train_stream[1])
    assert trainer.certificate is None
    kinds = [s["kind"] for s in trainer.certify(benchmark.train_stream[1]).statements]
    assert kinds == ["buffer", "preference"]


def test_a_module_of_the_users_is_evaluated_behind_the_scale_of_its_inputs():
    benchmark, learner = as_benchmark(clouds("class-incremental")), CoP2L(torch.nn.Linear(4, 6), memory=60)
    trainer = CoP2LStrategy(learner=learner, evaluator=EvaluationPlugin())
    before = trainer.model
    trainer.train(benchmark.train_stream[0])
    assert trainer.model is learner.model is not before


def test_examples_come_through_the_evaluation_transforms():
    data = tensors(clouds("class-incremental"))
    groups = {"train": (lambda x: x + torch.randn(4), None), "eval": (lambda x: 2 * x, None)}
    with_transforms = type(data)([data], transform_groups=TransformGroups(groups))
    (experience,) = benchmark_from_datasets(train=[with_transforms]).train_stream
    x, y = Examples(experience)[5]
    assert torch.equal(x, 2 * data[5][0])
    assert y == data[5][1]


def test_wrong_use_is_one_sentence():
    benchmark = as_benchmark(clouds("class-incremental"))
    trainer = strategy("task-incremental")
    with pytest.raises(UserError, match="Two experiences have the task label 0"):
        trainer.train(benchmark.train_stream)
    assert trainer.learner.tasks_seen == 1
    with pytest.raises(UserError, match="must be new here"):
        CoP2LStrategy(learner=trainer.learner)
    data = tensors(clouds("class-incremental"))
    with pytest.raises(UserError, match="3 experiences to train on and 2 to test on"):
        as_stream(benchmark_from_datasets(train=[data] * 3, test=[data] * 2))
    small = strategy("task-incremental", classes=3)
    with pytest.raises(UserError, match="classes must name outputs of the model, 0 to 2"):
        small.train(as_benchmark(clouds("task-incremental")).train_stream)


def test_a_learner_goes_on(tmp_path):
    benchmark = as_benchmark(clouds("class-incremental"))
    trainer = strategy(tasks=3)
    trainer.train(benchmark.train_stream[:2])
    trainer.learner.save(tmp_path)
    again = CoP2LStrategy(learner=CoP2L.load(tmp_path), evaluator=EvaluationPlugin())
    for one in (trainer, again):
        one.train(benchmark.train_stream[2])
    first, second = (one.certify(benchmark.train_stream) for one in (trainer, again))
    assert first.content["theta"] == second.content["theta"]


def test_avalanches_own_strategies_learn_from_a_stream():
    benchmark = as_benchmark(clouds("class-incremental"))
    model = build("linear", inputs=(4,), classes=6, seed=0)
    naive = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_epochs=5,
        train_mb_size=16,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True)),
    )
    naive.train(benchmark.train_stream)
    found = naive.eval(benchmark.test_stream)
    assert found[ACCURACY.format(label=0, number=2)] > 0.6


def test_the_page_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(python("integrations.md", "Avalanche")), "integrations.md", "exec"), {})
    said = capsys.readouterr().out
    assert "error <=" in said
    assert said.splitlines()[-1] == "valid"
