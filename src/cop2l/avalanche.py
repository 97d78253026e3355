"""CoP2L in Avalanche: a strategy, a metric, and streams that go both ways. `pip install 'cop2l[avalanche]'`."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from cop2l.certificates.certificate import Certificate
from cop2l.errors import UserError, missing_extra
from cop2l.holdout.holdout import Holdout
from cop2l.learner.cop2l import CoP2L
from cop2l.learner.inputs import labelled
from cop2l.learner.scoring import outputs
from cop2l.streams.task import Scenario, Stream, Task

try:
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
    from avalanche.benchmarks.utils import DataAttribute, TaskAwareSupervisedClassificationDataset
    from avalanche.evaluation import PluginMetric
    from avalanche.evaluation.metric_results import MetricValue
    from avalanche.training.plugins.evaluation import default_evaluator
    from avalanche.training.templates import SupervisedTemplate
except ImportError:
    raise missing_extra("avalanche-lib 0.6", "avalanche", "cop2l.avalanche") from None

TASK_INCREMENTAL: Scenario = "task-incremental"


class CoP2LStrategy(SupervisedTemplate):  # type: ignore[misc]
    """CoP2L, or a hold-out, as a strategy: every training experience is a task, and `certify` certifies all of them.

    Examples are read through the evaluation transforms, which must not be random: a certificate is about examples, not about
    augmented copies. Only a task-incremental learner uses the task labels.
    """

    def __init__(
        self,
        *,
        learner: CoP2L | Holdout,
        criterion: Any = None,
        eval_mb_size: int = 256,
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
        eval_every: int = -1,
    ) -> None:
        """Wrap a learner.

        Args:
            learner: A `CoP2L`, or a `Holdout` of a method.
            criterion: The loss for the metrics only; by default the cross-entropy.
            eval_mb_size: The size of mini-batches in evaluation.
            plugins: Plugins of Avalanche.
            evaluator: The plugin that computes the metrics.
            eval_every: As in every strategy of Avalanche.
        """
        if learner.tasks_seen and learner.scenario == TASK_INCREMENTAL:
            raise UserError(
                "A task-incremental learner must be new here, because the task labels of its tasks are not known."
            )
        super().__init__(
            model=learner.model,
            optimizer=None,
            criterion=criterion or nn.CrossEntropyLoss(),
            eval_mb_size=eval_mb_size,
            device=next(learner.model.parameters()).device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
        )
        self.learner = learner
        self.learned: list[int] = list(range(learner.tasks_seen))
        """For each task, the number of its experience. A learner with tasks has learned the first experiences."""
        self.heads: dict[int, dict[int, int]] = {}
        """For each task label, the model's output of each class, if task-incremental."""

    @property
    def certificate(self) -> Certificate | None:
        """The certificate after the newest task; None until `certify` is called."""
        return self.learner.certificate

    def certify(self, experiences: Any = ()) -> Certificate:
        """The certificate for every task, from its training experience.

        Args:
            experiences: A stream, a list of experiences, or one. Their data is read once, only to count errors. A task without
                its experience is bounded from what the learner keeps. An experience that was not learned is ignored.
        """
        experiences = experiences if isinstance(experiences, Iterable) else [experiences]
        by_number = {experience.current_experience: experience for experience in experiences}
        tasks = {task: by_number.get(number) for task, number in enumerate(self.learned, 1)}
        data = {t: self._examples(experience) for t, experience in tasks.items() if experience is not None}
        is_partial = isinstance(self.learner, Holdout) and len(data) < len(tasks)
        return self.learner.certify(None if is_partial else data)

    def forward(self) -> Tensor:
        """The logits of the mini-batch; if task-incremental, only of the classes of each example's task."""
        logits = torch.cat(list(outputs(self.model, self.mb_x))).to(self.device)
        if self.learner.scenario != TASK_INCREMENTAL:
            return logits
        head_logits = torch.full_like(logits, -torch.inf)
        for label in self.mb_task_id.unique().tolist():
            rows, head = self.mb_task_id == label, self.heads.get(label)
            for c in classes_of(self.experience) if head is None else head:
                # A task that was not learned yet has the same logit for all its classes.
                head_logits[rows, c] = 0 if head is None else logits[rows, head[c]]
        return head_logits

    def _train_exp(self, experience: Any, eval_streams: Any = None, **_: Any) -> None:  # noqa: ARG002
        head: dict[int, int] = {}
        if self.learner.scenario == TASK_INCREMENTAL:
            label = task_label(experience)
            if label in self.heads:
                raise UserError(
                    f"Two experiences have the task label {label}; a task-incremental learner needs one of its own for each: "
                    "see avalanche.benchmarks.task_incremental_benchmark."
                )
            used = [c for earlier in self.heads.values() for c in earlier.values()]
            head = outputs_of(classes_of(experience), used)
        data = Examples(experience, head)
        self.learner.learn(data, classes=tuple(head.values()) or None, progress=self._tick)
        self.model = self.learner.model  # the first task may have wrapped it with a scale
        if head:
            self.heads[label] = head
        self.learned.append(experience.current_experience)

    def _tick(self, _: Any) -> None:
        """Count an iteration of the learner as a training iteration, for the loggers."""
        self.clock.after_training_iteration(self)

    def _examples(self, experience: Any) -> "Examples":
        task_incremental = self.learner.scenario == TASK_INCREMENTAL
        return Examples(experience, self.heads[task_label(experience)] if task_incremental else {})

    # The learner has its own mini-batches and optimiser, and a model of fixed size.

    def make_train_dataloader(self, **_: Any) -> None:
        self.dataloader: list[Any] = []

    def check_model_and_optimizer(self, **_: Any) -> None:
        pass

    def model_adaptation(self, model: Any = None) -> Any:
        return self.model if model is None else model


class CertifiedError(PluginMetric):  # type: ignore[misc]
    """A metric: after every evaluation, the bounds of the newest certificate if it is valid, one for each experience."""

    def result(self) -> None:
        pass

    def reset(self) -> None:
        pass

    def after_eval(self, strategy: CoP2LStrategy) -> list[MetricValue]:
        certificate, step = strategy.certificate, strategy.clock.train_iterations
        bounds = certificate.bounds if certificate is not None and not certificate.not_valid else {}
        return [
            MetricValue(self, f"{self}/Exp{strategy.learned[t - 1]:03d}", bound, step)
            for t, bound in bounds.items()
        ]

    def __str__(self) -> str:
        return "Certified_Error"


class Examples(Dataset[tuple[Any, int]]):
    """The examples of an experience, through its evaluation transforms; labels are outputs of the model."""

    def __init__(self, experience: Any, head: dict[int, int] | None = None) -> None:
        self.data, self.head = experience.dataset.eval(), head or {}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        x, y, *_ = self.data[row]
        return x, self.head.get(int(y), int(y))


def as_stream(benchmark: Any, *, name: str = "avalanche", scenario: Scenario | None = None) -> Stream:
    """The stream of an Avalanche benchmark, in memory: a task for each experience of `train_stream` and `test_stream`.

    If `scenario` is None, a benchmark with several task labels is task-incremental, one with the same classes in every experience
    is domain-incremental, and any other is class-incremental. If there is only one test experience, each task is tested on the
    examples of its classes.
    """
    train, test = list(benchmark.train_stream), list(benchmark.test_stream)
    if len(test) not in (1, len(train)):
        raise UserError(
            f"The benchmark has {len(train)} experiences to train on and {len(test)} to test on; give as many, or one for all."
        )
    labels = {label for experience in train for label in labels_of(experience)}
    sets = [frozenset(classes_of(experience)) for experience in train]
    if scenario is None:
        scenario = TASK_INCREMENTAL if len(labels) > 1 else "class-incremental"
        if len(labels) == 1 and len(set(sets)) == 1 < len(sets):
            scenario = "domain-incremental"
    heads: list[tuple[int, ...]] = []
    parts: tuple[list[Task], list[Task]] = ([], [])
    for t, experience in enumerate(train, 1):
        used = [c for earlier in heads for c in earlier] if scenario == TASK_INCREMENTAL else []
        head = outputs_of(classes_of(experience), used)
        heads.append(tuple(sorted(head.values())))
        for part, source in zip(parts, (experience, test[t - 1] if len(test) > 1 else test[0]), strict=True):
            x, y = labelled(Examples(source))
            rows = [row for row, c in enumerate(y.tolist()) if c in head]
            part.append(Task(x[rows], torch.tensor([head[c] for c in y[rows].tolist()]), t))
    classes = 1 + max(c for head in heads for c in head)
    return Stream(name, scenario, parts[0], parts[1], classes, tuple(heads), description={"name": name})


def as_benchmark(stream: Stream) -> Any:
    """The Avalanche benchmark of a stream: an experience per task; task labels 0, 1, ... if task-incremental, else 0."""

    def data(task: Task) -> Any:
        x, y = torch.as_tensor(task.x), torch.as_tensor(task.y).long()
        label = task.t - 1 if stream.scenario == TASK_INCREMENTAL else 0
        attributes = [
            DataAttribute(y.tolist(), "targets"),
            DataAttribute([label] * len(y), "targets_task_labels", use_in_getitem=True),
        ]
        return TaskAwareSupervisedClassificationDataset([TensorDataset(x, y)], data_attributes=attributes)

    parts = {"train": [data(task) for task in stream.train], "test": [data(task) for task in stream.test]}
    return with_task_labels(with_classes_timeline(benchmark_from_datasets(**parts)))


def outputs_of(classes: Collection[int], used: Collection[int]) -> dict[int, int]:
    """The model's output of each class of a task: the number of the class, or the next free ones if an earlier task uses it.

    Avalanche may number the classes from 0 in every experience, although they are other classes each time.
    """
    free = 0 if set(used).isdisjoint(classes) else max(used) + 1
    return {c: free + i if free else c for i, c in enumerate(sorted(classes))}


def classes_of(experience: Any) -> list[int]:
    """The classes of an experience, from its benchmark if it names them, otherwise from its labels."""
    classes = getattr(experience, "classes_in_this_experience", None)
    return sorted(int(c) for c in (experience.dataset.targets.uniques if classes is None else classes))


def labels_of(experience: Any) -> list[int]:
    """The task labels of an experience; 0 if it has none."""
    return list(getattr(experience, "task_labels", None) or [0])


def task_label(experience: Any) -> int:
    """The one task label of an experience."""
    labels = labels_of(experience)
    if len(labels) != 1:
        raise UserError(
            f"An experience has the task labels {labels}; a task-incremental learner needs one in each."
        )
    return int(labels[0])
