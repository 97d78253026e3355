"""Runs that differ in their seed only form a group; groups on the same stream are compared."""

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
"""Keys of a configuration that do not make it another experiment."""

SHOWN_FIRST = (
    "preset",
    "memory",
    "buffer",
    "stop",
    "prior",
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
"""If fewer keys are enough to tell two groups apart, these are the ones to show, the first first."""

FIRST_METHODS = ("cop2l", "joint")


class Benchmark(NamedTuple):
    """What runs are compared on: the stream, how it was split, and the model that learns it."""

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
    """The keys that tell this group from the method's others, with their values."""
    benchmark: Benchmark
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method, and its setting where the method has several."""
        return self.label_without(None)

    def label_without(self, left_out: str | None) -> str:
        """The label, less one key; a key that was not given (None) goes without saying."""
        given = [(key, value) for key, value in self.setting if value is not None and key != left_out]
        words = ", ".join(f"{key} {_word(value)}" for key, value in given)
        return f"{self.method} ({words})" if words else self.method

    def task(self, number: int) -> str:
        """The number of a task, with its name if it has one."""
        return f"{number}{self.runs[0].names.task(number)}"

    @property
    def order(self) -> tuple[Any, ...]:
        """CoP2L first, then by name; a method's settings by size."""
        rank = FIRST_METHODS.index(self.method) if self.method in FIRST_METHODS else len(FIRST_METHODS)
        values = [(float(v), "") if isinstance(v, int | float) else (inf, _word(v)) for _, v in self.setting]
        return rank, self.method, values

    @property
    def kind(self) -> str | None:
        """The kind of bound that was named in advance."""
        kinds = {run.kind for run in self.runs}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def not_valid(self) -> tuple[str, ...]:
        """Every reason against the certificates of these runs."""
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
    settings = [{k: v for k, v in run.settings.items() if k not in ignored} for run in runs]
    benchmarks = [benchmark_of(run) for run in runs]
    shown = _telling_keys(runs, settings, benchmarks)
    members: dict[tuple[Benchmark, str, str], list[int]] = {}
    for i, run in enumerate(runs):
        members.setdefault((benchmarks[i], run.method, _key(settings[i])), []).append(i)
    groups = []
    for (benchmark, method, _), indices in members.items():
        setting = tuple((key, settings[indices[0]].get(key)) for key in shown[method])
        ordered = sorted((runs[i] for i in indices), key=lambda run: (run.seed, str(run.folder)))
        groups.append(Group(method, setting, benchmark, tuple(ordered)))
    return sorted(groups, key=lambda g: (g.benchmark, g.order))


def by_benchmark(runs: Sequence[Run], over: Sequence[str] = ("seed",)) -> list[list[Group]]:
    """The groups of each benchmark by themselves: a setting that is varied elsewhere is not named here."""
    benchmarks = sorted({benchmark_of(run) for run in runs})
    return [group([run for run in runs if benchmark_of(run) == benchmark], over) for benchmark in benchmarks]


def benchmark_of(run: Run) -> Benchmark:
    """The benchmark of a run."""
    return Benchmark(run.stream, run.scenario, run.model, len(run.matrix))


def not_valid(groups: Iterable[Group]) -> list[tuple[str, str]]:
    """The groups whose certificates are not valid, by reason."""
    against: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        if group.not_valid:
            against.setdefault((group.benchmark.stream, " ".join(group.not_valid)), []).append(group.label)
    return [(f"{listing(labels)} on {s}", reasons) for (s, reasons), labels in against.items()]


def repeated(groups: Iterable[Group]) -> list[str]:
    """A sentence for every seed that a group counts more than once."""
    sentences = []
    for g in groups:
        same: dict[str, list[Run]] = {}
        for run in g.runs:
            same.setdefault(
                _key({k: run.config.get(k) for k in ("seed", "class_seed", "order", "order_seed")}), []
            ).append(run)
        sentences += [
            f"{g.label} on {g.benchmark.stream} counts seed {runs[0].seed} {len(runs)} times: "
            + ", ".join(str(run.folder) for run in runs)
            + "."
            for runs in same.values()
            if len(runs) > 1
        ]
    return sentences


def _telling_keys(
    runs: Sequence[Run], settings: Sequence[dict[str, Any]], benchmarks: Sequence[Benchmark]
) -> dict[str, list[str]]:
    """For each method, the fewest keys that tell its groups on one benchmark apart."""
    cells: dict[tuple[str, Benchmark], list[dict[str, Any]]] = {}
    for run, setting, benchmark in zip(runs, settings, benchmarks, strict=True):
        cells.setdefault((run.method, benchmark), []).append(setting)
    shown: dict[str, list[str]] = {}
    for method in {run.method for run in runs}:
        own = [cell for (name, _), cell in cells.items() if name == method]
        names = {key for cell in own for setting in cell for key in setting}
        varying = [k for k in names if any(len({_key(s.get(k)) for s in cell}) > 1 for cell in own)]
        varying.sort(key=lambda k: (SHOWN_FIRST.index(k) if k in SHOWN_FIRST else len(SHOWN_FIRST), k))
        needed = list(varying)
        for key in reversed(varying):
            fewer = [k for k in needed if k != key]
            if all(_kinds(cell, fewer) == _kinds(cell, varying) for cell in own):
                needed = fewer
        shown[method] = needed
    return shown


def _kinds(cell: Iterable[dict[str, Any]], keys: Sequence[str]) -> int:
    return len({_key([setting.get(key) for key in keys]) for setting in cell})


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
