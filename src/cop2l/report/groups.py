"""Groups of runs: the runs of a group differ in their seed alone."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, stdev
from typing import Any, NamedTuple

from cop2l.report.runs import Run
from cop2l.text import listing

SHOWN_BY_BENCHMARK = frozenset({"method", "stream", "scenario", "model", "tasks"})
NOT_A_SETTING = frozenset({"seed", "hash", "device", "threads", "folder", "name"})
"""Keys of a configuration whose values do not tell groups apart."""

SHOWN_FIRST = (
    "preset",
    "memory",
    "buffer",
    "stop",
    "k",
    "omega",
    "holdout",
    "epochs",
    "lr",
    "optimiser",
    "images",
    "class_seed",
    "order",
    "order_seed",
)
"""The keys that a label prefers, the most telling first, where several would tell the groups apart."""

FIRST_METHODS = ("cop2l", "joint")
"""The methods at the top of every table."""


class Benchmark(NamedTuple):
    """What compared runs have in common: the stream, its split and the model."""

    stream: str
    scenario: str
    model: str
    tasks: int


class Spread(NamedTuple):
    """Mean and sample standard deviation over the seeds; one seed has no deviation."""

    mean: float
    sd: float | None
    seeds: int


@dataclass(frozen=True)
class Group:
    """The runs of one method with one setting on one benchmark, in the order of their seeds."""

    method: str
    setting: tuple[tuple[str, Any], ...]
    """The keys, with their values, that tell this group from the other groups of its method."""
    benchmark: Benchmark
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method, and its setting where the method has several."""
        return self.label_without(None)

    def label_without(self, left_out: str | None) -> str:
        """The label without one key, and without keys that the group does not have."""
        settings = [(key, value) for key, value in self.setting if value is not None and key != left_out]
        setting = ", ".join(f"{key} {_value_text(value)}" for key, value in settings)
        return f"{self.method} ({setting})" if setting else self.method

    def task(self, number: int) -> str:
        """The number of a task, with its name if it has one."""
        return f"{number}{self.runs[0].names.task(number)}"

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key: `FIRST_METHODS`, then by name; the settings of a method by size."""
        rank = FIRST_METHODS.index(self.method) if self.method in FIRST_METHODS else len(FIRST_METHODS)
        values = [
            (float(v), "") if isinstance(v, int | float) else (inf, _value_text(v)) for _, v in self.setting
        ]
        return rank, self.method, values

    @property
    def kind(self) -> str | None:
        """The kind of bound that all runs claim; None if they claim different kinds."""
        kinds = {run.kind for run in self.runs}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def not_valid(self) -> tuple[str, ...]:
        """The reasons why certificates of these runs are not valid."""
        return tuple(dict.fromkeys(reason for run in self.runs for reason in run.not_valid))


def spread(values: Iterable[float]) -> Spread:
    """Mean and deviation of one number per seed.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, sd=1.4142135623730951, seeds=2)
    >>> spread([0.5])
    Spread(mean=0.5, sd=None, seeds=1)
    """
    numbers = list(values)
    return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def group(runs: Sequence[Run], over: Sequence[str] = ("seed",)) -> list[Group]:
    """Sort runs into groups; `over` names the configuration keys that are averaged over."""
    ignored = SHOWN_BY_BENCHMARK | NOT_A_SETTING | set(over)
    settings = [{k: v for k, v in run.settings.items() if k not in ignored and v is not None} for run in runs]
    benchmarks = [benchmark_of(run) for run in runs]
    shown_keys = _distinguishing_keys(runs, settings, benchmarks)
    members: dict[tuple[Benchmark, str, str], list[int]] = {}
    for i, run in enumerate(runs):
        members.setdefault((benchmarks[i], run.method, _key(settings[i])), []).append(i)
    groups = []
    for (benchmark, method, _), indices in members.items():
        setting = tuple((key, settings[indices[0]].get(key)) for key in shown_keys[method])
        ordered = sorted((runs[i] for i in indices), key=lambda run: (run.seed, str(run.folder)))
        groups.append(Group(method, setting, benchmark, tuple(ordered)))
    return sorted(groups, key=lambda g: (g.benchmark, g.order))


def by_benchmark(runs: Sequence[Run], over: Sequence[str] = ("seed",)) -> list[list[Group]]:
    """The groups of each benchmark; a label names no setting that varies on other benchmarks only."""
    benchmarks = sorted({benchmark_of(run) for run in runs})
    return [group([run for run in runs if benchmark_of(run) == benchmark], over) for benchmark in benchmarks]


def benchmark_of(run: Run) -> Benchmark:
    return Benchmark(run.stream, run.scenario, run.model, len(run.matrix))


def not_valid(groups: Iterable[Group]) -> list[tuple[str, str]]:
    """The groups whose certificates are not valid, and the reasons: one entry for the groups with the same reasons."""
    labels_by_reason: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        if group.not_valid:
            key = group.benchmark.stream, " ".join(group.not_valid)
            labels_by_reason.setdefault(key, []).append(group.label)
    return [(f"{listing(labels)} on {s}", reasons) for (s, reasons), labels in labels_by_reason.items()]


def repeated(groups: Iterable[Group]) -> list[str]:
    """A sentence for each seed that occurs more than once in a group."""
    sentences = []
    for g in groups:
        by_seeds: dict[str, list[Run]] = {}
        for run in g.runs:
            seeds = {k: run.config.get(k) for k in ("seed", "class_seed", "order", "order_seed")}
            by_seeds.setdefault(_key(seeds), []).append(run)
        sentences += [
            f"{g.label} on {g.benchmark.stream} counts seed {runs[0].seed} {len(runs)} times: "
            + ", ".join(str(run.folder) for run in runs)
            + "."
            for runs in by_seeds.values()
            if len(runs) > 1
        ]
    return sentences


def _distinguishing_keys(
    runs: Sequence[Run], settings: Sequence[dict[str, Any]], benchmarks: Sequence[Benchmark]
) -> dict[str, list[str]]:
    """For each method, the fewest keys that tell its groups on the same benchmark apart."""
    settings_by_cell: dict[tuple[str, Benchmark], list[dict[str, Any]]] = {}
    for run, setting, benchmark in zip(runs, settings, benchmarks, strict=True):
        settings_by_cell.setdefault((run.method, benchmark), []).append(setting)
    shown_keys: dict[str, list[str]] = {}
    for method in {run.method for run in runs}:
        cells = [cell for (name, _), cell in settings_by_cell.items() if name == method]
        keys = {key for cell in cells for setting in cell for key in setting}
        varying = [k for k in keys if any(_count_distinct(cell, [k]) > 1 for cell in cells)]
        varying.sort(key=lambda k: (SHOWN_FIRST.index(k) if k in SHOWN_FIRST else len(SHOWN_FIRST), k))
        needed = list(varying)
        for key in reversed(varying):
            fewer = [k for k in needed if k != key]
            if all(_count_distinct(cell, fewer) == _count_distinct(cell, varying) for cell in cells):
                needed = fewer
        shown_keys[method] = needed
    return shown_keys


def _count_distinct(settings: Iterable[dict[str, Any]], keys: Sequence[str]) -> int:
    """How many combinations of values these keys take."""
    return len({_key([setting.get(key) for key in keys]) for setting in settings})


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
