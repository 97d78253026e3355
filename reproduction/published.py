"""The numbers of the paper: of its tables (a file for `--beside`) and of its appendix."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cop2l.report.published import Published, read_published

HERE = Path(__file__).parent
BACKBONES = {"dino-vits16-64": "dino-vit", "dino-resnet50-64": "dino-resnet50"}
"""The frozen backbones of the paper: from the name of the features to the name in the document."""


@dataclass(frozen=True)
class Printed:
    """A number of the tables of the paper; on features, `model` is the backbone."""

    scenario: str
    dataset: str
    tasks: int
    method: str
    model: str
    metric: str
    paper: Published

    @property
    def key(self) -> str:
        """All fields but the number, as one text."""
        fields = (self.scenario, self.dataset, self.tasks, self.method, self.model, self.metric)
        return " ".join(map(str, fields))


@cache
def tables() -> tuple[Printed, ...]:
    """Every number of the tables."""
    printed = []
    for row in read_published(HERE / "numbers.csv"):
        dataset, _, features = row.benchmark.stream.partition("@")
        model = BACKBONES.get(features, row.benchmark.model)
        table = (row.benchmark.scenario, dataset, row.benchmark.tasks)
        printed.append(Printed(*table, row.method, model, row.metric, row.number))
    return tuple(printed)


@cache
def appendix() -> tuple[dict[str, str], ...]:
    """Every number of the appendix, as texts."""
    return tuple(csv.DictReader((HERE / "appendix.csv").read_text(encoding="utf-8").splitlines()))
