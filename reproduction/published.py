"""The numbers of the paper: of its tables and of its appendix."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BACKBONES = {"dino-vits16-64": "dino-vit", "dino-resnet50-64": "dino-resnet50"}
"""The frozen backbones of the paper: from the name of the features to the name in the document."""


class Published(NamedTuple):
    """A published mean and its standard deviation; rates are in [0, 1]."""

    mean: float
    sd: float | None


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
    for row in _rows("numbers.csv"):
        dataset, _, features = row["stream"].partition("@")
        model = BACKBONES.get(features, row["model"])
        table = (row["scenario"], dataset, int(row["tasks"]))
        unit = 1 if row["metric"] == "seconds" else 100
        number = Published(*(round(float(row[name]) / unit, 6) for name in ("value", "sd")))
        printed.append(Printed(*table, row["method"], model, row["metric"], number))
    return tuple(printed)


@cache
def appendix() -> tuple[dict[str, str], ...]:
    """Every number of the appendix, as texts."""
    return tuple(_rows("appendix.csv"))


def _rows(name: str) -> Iterator[dict[str, str]]:
    """The lines of a file of numbers, by the names of its columns."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
