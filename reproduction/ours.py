"""Our runs as samples: the runs of one method with one setting on one stream, and how the setting differs from the paper's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cop2l.learner.presets import PRESETS
from cop2l.report.groups import Spread, spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run

COP2L_SETTINGS = {
    ("class-incremental", "mlp"): (8, 15.0, 10, 256, 0.001),
    ("class-incremental", "cnn"): (48, 25.0, 25, 256, 0.0009),
    ("class-incremental", "linear"): (4, 25.0, 2, 256, 0.001),
    ("class-incremental", "mlp-head"): (4, 25.0, 2, 256, 0.001),
    ("task-incremental", "multi-head"): (4, 1.0, 2, 256, 0.001),
    ("domain-incremental", "mlp"): (16, 15.0, 1, 256, 0.001),
}
"""k, omega, epochs, batch and lr of the paper's CoP2L (the ViT's, on features)."""
USUAL_MODELS = frozenset({"mlp", "cnn", "linear", "multi-head"})
"""The models of the main tables; a head with a trainable layer has a table of its own."""
COP2L_KEYS = ("k", "omega", "epochs", "batch", "lr")
BASELINE_SETTINGS = {
    "finetuning": (20, 128, 0.01),
    "replay": (20, 128, 0.01),
    "der++": (20, 128, 0.01),
    "icarl": (10, 128, 0.01),
    "gdumb": (20, 128, 0.01),
    "lwf": (10, 200, 0.001),
    "lamaml": (10, 10, 0.1),
    "lfl": (3, 128, 0.01),
    "ewc": (10, 256, 0.001),
    "si": (10, 256, 0.001),
    "cclis": (50, 512, 1.0),
    "csrel": (100, 256, 0.001),
}
"""Epochs, batch and lr of the paper's baselines (the ViT's, on features); La-MAML learns its rates, and starts at this lr."""
RESNET50 = {"cop2l": {"k": 16}, "icarl": {"epochs": 30}}
"""Other settings of the paper on features of its ResNet50."""
HALVED = ("finetuning", "replay", "der++")
"""Methods with half the epochs on task-incremental streams."""
BASELINE_KEYS = ("epochs", "batch", "lr")
ON_DOMAINS = {"k": 8, "omega": 5.0, "epochs": 5, "batch": 64, "lr": 0.003, "gamma": 1.2}
"""Changes to the preset `picking` in the configurations of domain-incremental streams."""
MEMORY = 2000
ORDERS = ("class_seed", "order", "order_seed")
"""The settings that change the order of classes or tasks."""

Change = tuple[str, Any]
AS_PUBLISHED: tuple[Change, ...] = ()
DEFAULT: tuple[Change, ...] = (("preset", "picking"),)


class Setup(NamedTuple):
    """A stream and its model; `features` is empty for pictures."""

    dataset: str
    features: str
    scenario: str
    tasks: int
    model: str

    @property
    def name(self) -> str:
        inputs = self.features or self.model
        return f"{self.dataset}, {self.tasks} tasks, {self.scenario}, {inputs}"

    @property
    def pictures(self) -> str:
        """The data set of the pictures: MNIST for permuted and rotated MNIST."""
        return self.dataset.partition(",")[0].removeprefix("permuted-").removeprefix("rotated-")


@dataclass(frozen=True)
class Sample:
    """The runs of one method with one setting on one stream, one per seed (or order of tasks)."""

    stream: Setup
    method: str
    changes: tuple[Change, ...]
    """How the settings differ from the paper's."""
    runs: tuple[Run, ...]

    def spread(self, metric: str) -> Spread | None:
        """Mean and deviation of a metric over the runs; None unless every run has it."""
        values = [METRICS[metric].of(run) for run in self.runs]
        return None if None in values else spread(v for v in values if v is not None)

    @property
    def label(self) -> str:
        """The method and its changes."""
        preset = ", paper" if self.method == "cop2l" and not dict(self.changes).get("preset") else ""
        return self.method + preset + "".join(f", {key} {value}" for key, value in self.changes)


def stream_of(run: Run) -> Setup:
    """The stream of a run."""
    dataset, _, features = run.stream.partition("@")
    if run.config.get("images") == "disjoint":
        dataset += ", disjoint"
    return Setup(dataset, features, run.scenario, len(run.matrix), run.model)


def changes_of(run: Run) -> tuple[Change, ...]:
    """How the settings of a run differ from the published ones; an order of tasks counts, a seed does not."""
    config = {"optimiser": "sgd", **run.config, **run.config.get("options", {})}
    on_resnet50 = RESNET50 if "resnet50" in run.stream else {}
    changes: list[Change] = []
    values = COP2L_SETTINGS.get((run.scenario, run.model), (None,) * len(COP2L_KEYS))
    published = dict(zip(COP2L_KEYS, values, strict=True)) | on_resnet50.get("cop2l", {})
    if run.method == "cop2l" and config.get("preset") != "paper":
        on_domains = ON_DOMAINS if run.scenario == "domain-incremental" else {}
        preset = published | PRESETS["picking"] | on_domains  # its other settings are the paper's
        changes.append(("preset", "picking"))
        changes += _unequal(config, {key: preset[key] for key in preset if key in config and key != "kind"})
    elif run.method == "cop2l":
        as_published = {"buffer": "uniform", "stop": "kl", "max_iterations": None, "optimiser": "sgd"}
        changes += _unequal(config, published | as_published)
    elif run.method in BASELINE_SETTINGS:
        epochs, batch, lr = BASELINE_SETTINGS[run.method]
        if run.scenario == "task-incremental" and run.method in HALVED:
            epochs //= 2
        settings = dict(zip(BASELINE_KEYS, (epochs, batch, lr), strict=True))
        changes += _unequal(config, settings | on_resnet50.get(run.method, {}))
    changes += sorted((config.get("architecture") or {}).items())
    if config.get("memory") != MEMORY:
        changes.append(("memory", config.get("memory")))
    if config.get("holdout"):
        changes.append(("holdout", config["holdout"]))
    changes += [(key, config[key]) for key in ORDERS if config.get(key) is not None]
    if len(families := config.get("claim") or ["tasks"]) > 1:  # they share delta
        changes.append(("claim", ", ".join(families)))
    return tuple(changes)


def _unequal(config: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Change]:
    return [(key, config.get(key)) for key in settings if config.get(key) != settings[key]]


def samples_of(runs: Iterable[Run]) -> list[Sample]:
    """The runs as samples; of two runs with the same seed, the one on the CPU counts."""
    by_seed: dict[tuple[Setup, str, tuple[Change, ...]], dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: (run.config.get("device") != "cpu", str(run.folder))):
        by_seed.setdefault((stream_of(run), run.method, changes_of(run)), {}).setdefault(run.seed, run)
    ordered = sorted(by_seed.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2])))
    return [Sample(*key, tuple(seeds[s] for s in sorted(seeds))) for key, seeds in ordered]


def pick(
    samples: Sequence[Sample], stream: Setup, method: str, changes: tuple[Change, ...] = AS_PUBLISHED
) -> Sample | None:
    """The sample of a method on a stream with exactly these changes; None if there is none."""
    key = (stream, method, changes)
    return next((s for s in samples if (s.stream, s.method, s.changes) == key), None)


def streams(samples: Iterable[Sample]) -> list[Setup]:
    """The streams that were run with a model of the main tables."""
    return sorted({sample.stream for sample in samples if sample.stream.model in USUAL_MODELS})
