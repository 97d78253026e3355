"""Our runs by what they reproduce: the data, the features, the method, and how the settings differ from the paper's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cop2l.certify.presets import PRESETS
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
"""The models of the main tables; a trainable layer under the head has a table of its own."""
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
"""Epochs, batch and lr of the paper's baselines (the ViT's, on features); La-MAML's is where its learned rates start."""
RESNET50 = {"cop2l": {"k": 16}, "icarl": {"epochs": 30}}
"""What the paper sets otherwise on features of its ResNet50."""
HALVED = ("finetuning", "replay", "der++")
"""Methods with half the epochs where the task's number is told."""
BASELINE_KEYS = ("epochs", "batch", "lr")
ANALYTIC = {"prior_lr": 0.01, "start": "slda", "prior": 0.4, "prior_memory": 0.0, "max_iterations": 0}
ON_FEATURES: dict[str, dict[str, Any]] = {
    "linear": ANALYTIC | {"shrinkage": 0.1},
    "random-features": ANALYTIC | {"shrinkage": 0.0001, "ridge": 300.0},
    "multi-head": {"prior_lr": 0.01},
}
"""What the configurations of feature streams change in the preset `hybrid`, by model."""
ON_DOMAINS = {"k": 8, "omega": 5.0, "epochs": 5, "batch": 64, "lr": 0.003, "gamma": 1.2}
"""What the configurations of domain-incremental streams change in the preset `picking`."""
MEMORY = 2000
ORDERS = ("class_seed", "order", "order_seed")
"""What makes another order of classes or tasks."""

Change = tuple[str, Any]
AS_PUBLISHED: tuple[Change, ...] = ()
DEFAULT: tuple[Change, ...] = (("preset", "picking"),)
HYBRID: tuple[Change, ...] = (("preset", "hybrid"),)


class Setup(NamedTuple):
    """What is learned: the data, the features (empty: pictures), the scenario, the tasks, and the model."""

    dataset: str
    features: str
    scenario: str
    tasks: int
    model: str

    @property
    def name(self) -> str:
        """The stream in words."""
        inputs = self.features or self.model
        return f"{self.dataset}, {self.tasks} tasks, {self.scenario}, {inputs}"

    @property
    def pictures(self) -> str:
        """The data set that the pictures are from: MNIST's, where they are permuted or rotated."""
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
        """Mean and deviation of a number over the runs; None unless every run has it."""
        values = [METRICS[metric].of(run) for run in self.runs]
        return None if None in values else spread(v for v in values if v is not None)

    @property
    def label(self) -> str:
        """The method, and what was changed."""
        words = ", ".join(f"{key} {value}" for key, value in self.changes)
        preset = ", paper" if self.method == "cop2l" and not dict(self.changes).get("preset") else ""
        return self.method + preset + (f", {words}" if words else "")


def stream_of(run: Run) -> Setup:
    """Where a run stands."""
    dataset, _, features = run.stream.partition("@")
    if run.config.get("images") == "disjoint":
        dataset += ", disjoint"
    return Setup(dataset, features, run.scenario, len(run.matrix), run.model)


def changes_of(run: Run) -> tuple[Change, ...]:
    """How a run's settings differ from the published ones; the task order counts, the seed does not."""
    config = {"optimiser": "sgd", **run.config, **run.config.get("options", {})}
    other = RESNET50 if "resnet50" in run.stream else {}
    found: list[Change] = []
    wanted = COP2L_SETTINGS.get((run.scenario, run.model), (None,) * len(COP2L_KEYS))
    published = dict(zip(COP2L_KEYS, wanted, strict=True)) | other.get("cop2l", {})
    if run.method == "cop2l" and config.get("preset") != "paper":
        own = PRESETS[config["preset"]]
        if config["preset"] == "picking":  # what it does not say itself is the paper's
            own = published | own | (ON_DOMAINS if run.scenario == "domain-incremental" else {})
        elif "@" in run.stream:
            own = own | ON_FEATURES.get(run.model, {})
        found.append(("preset", config["preset"]))
        found += _unequal(config, {key: own[key] for key in own if key in config and key != "kind"})
    elif run.method == "cop2l":
        as_published = {"buffer": "uniform", "stop": "kl", "max_iterations": None, "optimiser": "sgd"}
        found += _unequal(config, published | as_published)
    elif run.method in BASELINE_SETTINGS:
        epochs, *others = BASELINE_SETTINGS[run.method]
        if run.scenario == "task-incremental" and run.method in HALVED:
            epochs //= 2
        claimed = dict(zip(BASELINE_KEYS, (epochs, *others), strict=True)) | other.get(run.method, {})
        found += _unequal(config, claimed)
    found += sorted((config.get("architecture") or {}).items())
    if config.get("memory") != MEMORY:
        found.append(("memory", config.get("memory")))
    if config.get("holdout"):
        found.append(("holdout", config["holdout"]))
    found += [(key, config[key]) for key in ORDERS if config.get(key) is not None]
    if len(families := config.get("claim") or ["tasks"]) > 1:  # they share delta
        found.append(("claim", ", ".join(families)))
    return tuple(found)


def _unequal(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Change]:
    return [(key, config.get(key)) for key in wanted if config.get(key) != wanted[key]]


def samples(runs: Iterable[Run]) -> list[Sample]:
    """Runs that differ in their seed only, together; a seed counts once, and the CPU's run before a GPU's."""
    found: dict[tuple[Setup, str, tuple[Change, ...]], dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: (run.config.get("device") != "cpu", str(run.folder))):
        found.setdefault((stream_of(run), run.method, changes_of(run)), {}).setdefault(run.seed, run)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1], str(item[0][2])))
    return [Sample(*key, tuple(seeds[s] for s in sorted(seeds))) for key, seeds in ordered]


def pick(
    found: Sequence[Sample], stream: Setup, method: str, changes: tuple[Change, ...] = AS_PUBLISHED
) -> Sample | None:
    """The sample of a method on a stream, with these changes exactly."""
    wanted = (stream, method, changes)
    return next((s for s in found if (s.stream, s.method, s.changes) == wanted), None)


def streams(found: Iterable[Sample]) -> list[Setup]:
    """Every stream that was run with a model of the paper's kind."""
    return sorted({sample.stream for sample in found if sample.stream.model in USUAL_MODELS})
