"""The table of families: certified average, forgetting and classes beside the measured ones."""

from collections.abc import Callable, Sequence
from statistics import fmean

from cop2l.report.groups import Group, group
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from cop2l.text import percent
from reproduction.markdown import table

HEADER = (
    "stream",
    "what is run (seeds)",
    "test error",
    "certified average",
    "mean of the tasks' bounds",
    "forgetting, measured",
    "certified, average",
    "lost at most, worst task",
    "classes: mean bound",
    "worst class",
)


def families(runs: Sequence[Run]) -> str:
    """A row for each stream and method whose runs claim an average; bounds are means over the seeds, rounded upwards."""
    claiming_runs = [run for run in runs if METRICS["average"].of(run) is not None]
    return table(HEADER, [_row(runs_of_one) for runs_of_one in group(claiming_runs)]) + "\n"


def _row(group: Group) -> tuple[str, ...]:
    stream = f"{group.benchmark.stream}, {group.benchmark.tasks} tasks" + "†" * bool(group.not_valid)
    settings = group.runs[0].settings
    options = (
        f"`{group.method}`, {settings['holdout']:g} withheld"
        if settings["holdout"]
        else f"`preset={settings['preset']}`"
    )
    return (
        stream,
        f"{options} ({len(group.runs)})",
        _measured(group, "test-error"),
        *(_bound(group, METRICS[name].of) for name in ("average", "bound")),
        _measured(group, "forgetting"),
        *(_bound(group, METRICS[name].of) for name in ("lost", "worst-lost")),
        *(_bound(group, of) for of in (_mean_class, _worst_class)),
    )


def _measured(group: Group, name: str) -> str:
    value = METRICS[name].over_seeds(group)
    return "–" if value is None else f"{100 * value.mean:.2f}"


def _bound(group: Group, of: Callable[[Run], float | None]) -> str:
    values = [value for run in group.runs if (value := of(run)) is not None]
    return percent(fmean(values)).removesuffix(" %") if values else "–"


def _classes(run: Run) -> list[float]:
    return [s["value"] for s in run.claims if s["family"] == "classes"]


def _mean_class(run: Run) -> float | None:
    return fmean(values) if (values := _classes(run)) else None


def _worst_class(run: Run) -> float | None:
    return max(_classes(run), default=None)
