"""Small honest certificates to be attacked: every preset, scenario and claim, fixed and anytime, models of one's own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cop2l import CoP2L
from cop2l.errors import UserError
from cop2l.files import file_digest
from cop2l.kernel.checking import Policy, check_certificates
from cop2l.kernel.exact import digest
from cop2l.kernel.form import canonical_json, content_digest
from cop2l.kernel.options import Options
from cop2l.models import build
from cop2l.randomness import private_randomness

FILES = ("sets", "theta", "theta_0")
POLICY = Policy(operations=3e10)
Samples = dict[int, tuple[Any, np.ndarray]]


class Own(nn.Module):
    """A network of the issuer's own, whose running statistics are part of theta."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def own_model() -> nn.Module:
    """What the auditor's function builds."""
    with private_randomness(torch.device("cpu"), 0, "own model"):
        return Own()


def clouds(seed: int, classes: int, same: bool, rows: int = 60) -> Samples:
    """Two tasks of two classes, six numbers per example, some labels wrong."""
    draw = np.random.default_rng(seed)
    samples = {}
    for task in (1, 2):
        label = draw.integers(0, 2, rows)
        x = draw.normal(size=(rows, 6)).astype(np.float32)
        x[np.arange(rows), label + 2 * (task - 1)] += 4
        wrong = draw.random(rows) < 0.05
        samples[task] = (x, np.where(wrong, 1 - label, label) + (0 if same else 2 * (task - 1)))
    assert all(y.max() < classes for _, y in samples.values())
    return samples


def few_digits(seed: int) -> Samples:
    """Two tasks of two digits, sixty pictures each."""
    from cop2l.streams import load

    samples: Samples = {}
    for x, y, t in list(load("digits"))[:2]:
        rows = np.random.default_rng(seed).permutation(len(y))[:60]
        samples[t] = (np.asarray(x)[rows], np.asarray(y)[rows])
    return samples


@dataclass
class Certificate:
    """A certificate in memory: its text and its tensors."""

    content: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]

    @classmethod
    def read(cls, folder: Path) -> "Certificate":
        """As it lies there."""
        tensors = {name: load_file(folder / f"{name}.safetensors") for name in FILES}
        return cls(json.loads((folder / "certificate.json").read_text()), tensors)

    def write(self, folder: Path, keep: frozenset[str] = frozenset()) -> Path:
        """Write it with all hashes made again, but for those to keep."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for name, tensors in self.tensors.items():
            path = folder / f"{name}.safetensors"
            save_file({key: value.contiguous() for key, value in tensors.items()}, path)
            files[path.name] = file_digest(path)
        made = {"files": files, **{name: digest(tensors) for name, tensors in self.tensors.items()}}
        self.content |= {
            name: value for name, value in made.items() if name not in keep and name in self.content
        }
        if "digest" not in keep and "digest" in self.content:
            self.content["digest"] = content_digest(self.content)
        (folder / "certificate.json").write_text(json.dumps(self.content))
        return folder


@dataclass
class Base:
    """An honest run, and all that its auditor has."""

    name: str
    samples: Samples
    model: Callable[[], nn.Module]
    scenario: str
    chosen: dict[str, Any]
    heads: list[list[int]] | None = None
    gone: tuple[int, ...] = ()
    groups: dict[int, np.ndarray] = field(default_factory=dict)
    """The name of the group of every example, if groups are claimed."""
    folders: list[Path] = field(default_factory=list)
    run: list[Certificate] = field(default_factory=list)
    honest: dict[str, Any] = field(default_factory=dict)

    def issue(self, folder: Path) -> "Base":
        """Learn and certify; anytime runs certify after each task."""
        learner = self._learner(self.scenario, self.chosen)
        for task, (x, y) in self.samples.items():
            learner.learn(
                x, y, classes=self.heads[task - 1] if self.heads else None, groups=self.groups.get(task)
            )
            if learner.options.anytime or task == len(self.samples):
                self.folders.append(folder / f"after-{task}")
                data = {one: self.samples[one] for one in range(1, task + 1) if one not in self.gone}
                learner.certify(data).save(self.folders[-1])
        self.run = [Certificate.read(one) for one in self.folders]
        return self

    def audit(self, folders: list[Path], with_data: bool = True) -> Any:
        """The kernel's verdict, with the data and the model or without."""
        if not with_data:
            return check_certificates(folders, policy=POLICY)
        samples = {task: (*pair, self.groups.get(task)) for task, pair in self.samples.items()}
        return check_certificates(folders, samples, self.model(), policy=POLICY)

    def truth(self, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the learner itself issues with the options, heads and missing data that a certificate states; None if nothing."""
        heads = [record["head"] for record in content["records"]]
        data_gone = [record["errors"] is None for record in content["records"]]
        key = canonical_json([content["scenario"], content["options"], heads, data_gone])
        if key not in self.honest:
            try:
                learner = self._learner(content["scenario"], Options(**content["options"]).as_dict())
                for task, head in enumerate(heads, 1):
                    learner.learn(*self.samples[task], classes=head, groups=self.groups.get(task))
                data = {task: self.samples[task] for task, missing in enumerate(data_gone, 1) if not missing}
                self.honest[key] = learner.certify(data).content
            except UserError:
                self.honest[key] = None
        return self.honest[key]

    def _learner(self, scenario: str, chosen: Mapping[str, Any]) -> CoP2L:
        return CoP2L(self.model(), scenario=scenario, **{"preset": "picking", **chosen})


def linear(inputs: tuple[int, ...], classes: int, seed: int = 0) -> Callable[[], nn.Module]:
    """A builder of cop2l's own linear model; its seed must be the learner's."""
    return lambda: build("linear", inputs=inputs, classes=classes, seed=seed)


def wide(seed: int) -> nn.Module:
    """A network that can learn random labels by heart; an auditor's function, which the checker imports by its name."""
    return build("mlp", inputs=(6,), classes=8, seed=seed, hidden=512, dropout=0.0)


QUICK = {"memory": 30, "k": 3, "epochs": 3, "lr": 0.05, "batch": 16, "max_iterations": 4, "seed": 3}
PAPER = {**QUICK, "preset": "paper"}
PICKING = {**QUICK, "preset": "picking"}
HEADS = [[0, 1], [2, 3]]
ALL = {"claim": ["tasks", "average", "forgetting", "classes", "groups"], "groups": ["north", "south"]}
PICKED = {**PICKING, **ALL, "stop": "none"}
GROUPS = {task: np.array(ALL["groups"])[np.arange(60) % 5 % 2] for task in (1, 2)}


def planned() -> list[Base]:
    """All the honest runs before they are made, then their siblings: another seed, on other data."""
    ci, ti, di = "class-incremental", "task-incremental", "domain-incremental"
    bases = []
    for other in (0, 1):
        data, two_classes, pictures = clouds(other, 4, False), clouds(other + 9, 2, True), few_digits(other)
        seeds = {"seed": 3 + other}
        shapes = (((6,), 4), ((6,), 2), ((1, 8, 8), 10))
        four, two, digits = (linear(*shape, **seeds) for shape in shapes)
        bases += [
            Base("paper, class-incremental, fixed", data, four, ci, {**PAPER, "tasks": 2, **seeds}),
            Base("paper, task-incremental, anytime", data, four, ti, {**PAPER, "memory": 6, **seeds}, HEADS),
            Base("cop2l, digits, Adam, anytime", pictures, digits, ci, {**PICKING, "optimiser": "adam", **seeds}),
            Base("cop2l, task-incremental, fixed", data, four, ti, {**PICKING, "tasks": 2, **seeds}, HEADS),
            Base("cop2l, domain-incremental, anytime", two_classes, two, di, {**PICKING, **seeds}),
            Base("cop2l, class-incremental, a task's data gone", data, four, ci, {**PICKING, "tasks": 2, **seeds}, gone=(1,)),
            Base("paper, own model, class-incremental, fixed", data, own_model, ci, {**PAPER, "tasks": 2, **seeds}),
            Base("all claims, picks, fixed", data, four, ci, {**PICKED, "tasks": 2, **seeds}, groups=GROUPS),
            Base("all claims, anytime", two_classes, two, di, {**PICKED, **seeds}, groups=GROUPS),
            Base("all claims, a task's data gone", data, four, ti, {**PICKED, "tasks": 2, **seeds}, HEADS, (1,), groups=GROUPS),
        ]  # fmt: skip
    for number, base in enumerate(bases):
        base.name += " (sibling)" * (number >= len(bases) // 2)
    return bases


def bases(folder: Path) -> dict[str, Base]:
    """The honest runs, made."""
    return {base.name: base.issue(folder / str(number)) for number, base in enumerate(planned())}
