"""The table of families: certified average, forgetting and classes beside what the test part measured."""

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
    """A row for every stream and method whose runs claim an average; bounds are rounded upwards, means over the seeds."""
    claiming = [run for run in runs if METRICS["average"].of(run) is not None]
    return table(HEADER, [_row(one) for one in group(claiming)]) + "\n"


def _row(one: Group) -> tuple[str, ...]:
    stream = f"{one.benchmark.stream}, {one.benchmark.tasks} tasks" + "†" * bool(one.not_valid)
    settings = one.runs[0].settings
    what = (
        f"`{one.method}`, {settings['holdout']:g} withheld"
        if settings["holdout"]
        else f"`preset={settings['preset']}`"
    )
    return (
        stream,
        f"{what} ({len(one.runs)})",
        _measured(one, "test-error"),
        *(_bound(one, METRICS[name].of) for name in ("average", "bound")),
        _measured(one, "forgetting"),
        *(_bound(one, METRICS[name].of) for name in ("lost", "worst-lost")),
        *(_bound(one, how) for how in (_mean_class, _worst_class)),
    )


def _measured(one: Group, name: str) -> str:
    found = METRICS[name].over_seeds(one)
    return "–" if found is None else f"{100 * found.mean:.2f}"


def _bound(one: Group, of: Callable[[Run], float | None]) -> str:
    values = [value for run in one.runs if (value := of(run)) is not None]
    return percent(fmean(values)).removesuffix(" %") if values else "–"


def _classes(run: Run) -> list[float]:
    return [s["value"] for s in run.claims if s["family"] == "classes"]


def _mean_class(run: Run) -> float | None:
    return fmean(values) if (values := _classes(run)) else None


def _worst_class(run: Run) -> float | None:
    return max(_classes(run), default=None)
