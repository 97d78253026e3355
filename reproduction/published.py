"""The paper's numbers: its tables, in the form that `--beside` reads, and its appendix."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cop2l.report.published import Published, read_published

HERE = Path(__file__).parent
BACKBONES = {"dino-vits16-64": "dino-vit", "dino-resnet50-64": "dino-resnet50"}
"""The frozen backbones of the tables: the features with us, and the name in the document."""


@dataclass(frozen=True)
class Printed:
    """A number of the paper's tables; on features, the model is the backbone."""

    scenario: str
    dataset: str
    tasks: int
    method: str
    model: str
    metric: str
    paper: Published

    @property
    def key(self) -> str:
        """What it is a number of, as one text."""
        about = (self.scenario, self.dataset, self.tasks, self.method, self.model, self.metric)
        return " ".join(map(str, about))


@cache
def tables() -> tuple[Printed, ...]:
    """Every number of the paper's tables."""
    made = []
    for row in read_published(HERE / "numbers.csv"):
        dataset, _, features = row.benchmark.stream.partition("@")
        model = BACKBONES.get(features, row.benchmark.model)
        where = (row.benchmark.scenario, dataset, row.benchmark.tasks)
        made.append(Printed(*where, row.method, model, row.metric, row.number))
    return tuple(made)


@cache
def appendix() -> tuple[dict[str, str], ...]:
    """Every number of the appendix, as it is printed."""
    return tuple(csv.DictReader((HERE / "appendix.csv").read_text(encoding="utf-8").splitlines()))
