"""Streams of tasks: how labelled data is cut, and where it comes from."""

from pathlib import Path
from typing import Any

from cop2l.errors import UserError, unknown
from cop2l.streams.catalog import DATASETS, data_set, digits
from cop2l.streams.domains import views
from cop2l.streams.fingerprint import fingerprint
from cop2l.streams.places import home
from cop2l.streams.scenarios import Labelled, class_incremental, cut, domain_incremental, task_incremental
from cop2l.streams.synthetic import Synthetic, synthetic
from cop2l.streams.task import SCENARIOS, Scenario, Stream, Task

__all__ = [
    "DATASETS",
    "SCENARIOS",
    "Labelled",
    "Scenario",
    "Stream",
    "Synthetic",
    "Task",
    "class_incremental",
    "cut",
    "domain_incremental",
    "fingerprint",
    "home",
    "load",
    "synthetic",
    "task_incremental",
]

DOMAINS = {"permuted-mnist": ("mnist", "permuted"), "rotated-mnist": ("mnist", "rotated")}
NAMES = (*DATASETS, *DOMAINS, "digits", "synthetic")


def load(
    name: str,
    *,
    scenario: str | None = None,
    tasks: int | None = None,
    order_seed: int | None = None,
    images: str = "shared",
    folder: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Stream:
    """The stream of a data set by name."""
    if scenario is not None and scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    if name == "synthetic":
        given: dict[str, Any] = {"tasks": tasks, "scenario": scenario}
        return synthetic(seed=seed, **{k: v for k, v in given.items() if v is not None}, **options)
    domains = options.pop("domains", None)
    if name in DOMAINS:
        name, domains = DOMAINS[name]
    if domains is not None:
        if scenario not in (None, "domain-incremental"):
            raise UserError(f"{domains} domains make a domain-incremental stream, not a {scenario} one.")
        return views(data_set(name).open(folder), domains, tasks=tasks, images=images, seed=seed)
    if name not in NAMES:
        raise unknown("data set", name, NAMES)
    data = digits() if name == "digits" else data_set(name).open(folder)
    return cut(data, scenario or "class-incremental", tasks=tasks, order_seed=order_seed, **options)
