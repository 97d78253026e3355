"""The published numbers, and the rows of them that a configuration names."""

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from cop2l.report.groups import Group


class Published(NamedTuple):
    """A published mean and its standard deviation, in the units of our summaries."""

    mean: float
    sd: float | None


COLUMNS = ("scenario", "dataset", "tasks", "method", "model")
PERCENT = frozenset({"accuracy", "forgetting"})


def published(group: Group, metric: str) -> Published | None:
    """The paper's number for a group, if its configuration names a published row."""
    named = group.runs[0].config.get("paper")
    if not isinstance(named, Mapping) or not named:
        return None
    given = {key: value for key, value in named.items() if key in COLUMNS and value is not None}
    wanted = {"method": group.method, "scenario": group.place.scenario, **given, "metric": metric}
    found = [row for row in rows() if all(row[key] == str(value) for key, value in wanted.items())]
    if len(found) != 1:
        return None
    value, sd = found[0]["value"], found[0]["sd"]
    return Published(in_our_unit(value, metric), in_our_unit(sd, metric) if sd else None)


def published_models(groups: Iterable[Group]) -> list[str]:
    """The models behind the published numbers, which may not be ours: another backbone, for instance."""
    named = [group.runs[0].config.get("paper") for group in groups]
    return sorted({str(row["model"]) for row in named if isinstance(row, Mapping) and row.get("model")})


def in_our_unit(number: str, metric: str) -> float:
    """A printed number; rates are between 0 and 1 with us."""
    return round(float(number) / 100, 6) if metric in PERCENT else float(number)


@cache
def rows(file: str = "paper_numbers.csv") -> tuple[dict[str, str], ...]:
    """Every published number of a file, as it is printed: the tables, or `paper_appendix.csv`."""
    text = (resources.files("cop2l.report") / file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
