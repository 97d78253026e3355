"""The metrics of tables: each has a name, a function of a run, and a direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from cop2l.errors import unknown
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.runs import Run
from cop2l.text import percent, rounded_text


class BoundKind(NamedTuple):
    """The name, the colour and the explanation of a kind of bound in a report."""

    label: str
    colour: str
    sentence: str
    dash: tuple[int, ...] = (1, 0)


KINDS = {
    "kl": BoundKind(
        "paper's formula (kl)",
        "orange",
        "The inverse of the kl divergence, with terms for both compression sets and the iterations.",
    ),
    "preference": BoundKind(
        "preference",
        "blue",
        "A bound of Campi and Garatti: about the share of examples that were picked or are misclassified. It has no term for"
        " the choice of the examples that are kept.",
    ),
    "buffer": BoundKind(
        "buffer",
        "purple",
        "For a task whose data are deleted: the preference bound on a random part of its sample that was fixed in advance.",
        (6, 3),
    ),
    "holdout": BoundKind(
        "hold-out",
        "teal",
        "The inverse of the binomial tail on examples withheld from learning. It is the usual alternative, and costs data.",
    ),
}
"""The kinds of bounds, in the order of tables and figures."""

UNITS = {"%": ("100", 2), "s": ("1", 1), "x": ("1", 2), "MB": ("0.000001", 0), "examples": ("1", 0)}
"""The factor from a number of a run to its display unit, and the digits that are displayed."""


@dataclass(frozen=True)
class Metric:
    """A number of a run; `of` returns None if the run does not have it."""

    name: str
    title: str
    unit: Literal["%", "s", "x", "MB", "examples"]
    better: Literal["higher", "lower", "neither"]
    of: Callable[[Run], float | None]
    certified: bool = False
    """True for bounds: the bound of a run that is not valid is shown, but is never the best."""

    def text(self, value: float) -> str:
        """A number in its display unit; bounds are rounded upwards.

        >>> METRICS["accuracy"].text(0.95121), METRICS["kl"].text(0.05121)
        ('95.12', '5.13')
        """
        if self.certified and self.unit == "%":
            return percent(value).removesuffix(" %")
        scale, digits = UNITS[self.unit]
        return rounded_text(value, digits, scale)

    def sd_text(self, value: float | None) -> str:
        """The deviation behind a mean; empty if there is none."""
        scale, digits = UNITS[self.unit]
        return "" if value is None else f" ± {rounded_text(value, digits, scale)}"

    def over_seeds(self, group: Group) -> Spread | None:
        """Mean and deviation over the runs of a group; None if a run does not have the number."""
        values = [self.of(run) for run in group.runs]
        return None if any(v is None for v in values) else spread(v for v in values if v is not None)


def bounds_of(run: Run, kind: str) -> list[float] | None:
    """The bounds of one kind, task by task; None unless every task has one. The kind "bound" is the claim."""
    key = run.kind if kind == "bound" else kind
    values = [task.bounds[key] for task in run.tasks if key in task.bounds]
    return values if values and len(values) == len(run.tasks) else None


def kinds_in(groups: Sequence[Group]) -> list[str]:
    """The kinds of bounds that occur in groups."""
    present = {kind for group in groups for run in group.runs for task in run.tasks for kind in task.bounds}
    return [kind for kind in KINDS if kind in present]


def test_errors(run: Run) -> list[float]:
    """Test errors of the final model, task by task."""
    return [
        1 - a if t.test_error is None else t.test_error
        for t, a in zip(run.tasks, run.matrix[-1], strict=True)
    ]


def average_metric(family: str) -> Callable[[Run], float | None]:
    """The claimed average over tasks: of the error ("average") or of what was lost ("forgetting")."""
    return lambda run: next(
        (s["value"] for s in run.claims if (s["family"], s["task"]) == (family, None)), None
    )


def most_lost(run: Run) -> float | None:
    """The largest claimed bound on what a task lost."""
    lost = [s["value"] for s in run.claims if (s["family"], s["subject"]) == ("forgetting", "lost")]
    return max(lost, default=None)


def _over_tasks(kind: str, aggregate: Callable[[list[float]], float]) -> Callable[[Run], float | None]:
    return lambda run: aggregate(b) if (b := bounds_of(run, kind)) else None


def _ratio(kind: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        error = fmean(test_errors(run))
        return fmean(b) / error if (b := bounds_of(run, kind)) and error else None

    return of


def _examples(name: str, title: str) -> Metric:
    """The number of examples of a task, from a field of its summary."""

    def of(run: Run) -> float | None:
        counts = [getattr(task, name) for task in run.tasks]
        return None if None in counts else fmean(counts)

    return Metric(title.replace(" ", "-"), f"{title}, mean over tasks", "examples", "neither", of)


def _bound_metrics() -> list[Metric]:
    metrics = []
    for kind in ("bound", *KINDS):
        title = "certified bound" if kind == "bound" else f"bound, {KINDS[kind].label}"
        metrics += [
            Metric(kind, f"{title}, mean over tasks", "%", "lower", _over_tasks(kind, fmean), certified=True),
            Metric(
                f"worst-{kind}", f"{title}, worst task", "%", "lower", _over_tasks(kind, max), certified=True
            ),
            Metric(f"ratio-{kind}", f"{title}, over test error", "x", "lower", _ratio(kind), certified=True),
        ]
    return metrics


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "average accuracy", "%", "higher", lambda run: run.accuracy),
        Metric("forgetting", "forgetting", "%", "lower", lambda run: run.forgetting),
        Metric("plasticity", "plasticity", "%", "higher", lambda run: run.plasticity),
        Metric(
            "test-error", "test error, mean over tasks", "%", "lower", lambda run: fmean(test_errors(run))
        ),
        _examples("n", "learned from"),
        _examples("certified_on", "certified on"),
        _examples("picked", "picked"),
        Metric("seconds", "time", "s", "lower", lambda run: run.seconds),
        Metric("peak-memory", "peak memory", "MB", "lower", lambda run: run.over_tasks("peak_memory")),
        *_bound_metrics(),
        Metric("average", "certified average error", "%", "lower", average_metric("average"), certified=True),
        Metric(
            "lost",
            "certified forgetting, average",
            "%",
            "lower",
            average_metric("forgetting"),
            certified=True,
        ),
        Metric("worst-lost", "certified forgetting, worst task", "%", "lower", most_lost, certified=True),
    )
}


def metric(name: str) -> Metric:
    """A metric by its name.

    >>> metric("worst-kl").title
    "bound, paper's formula (kl), worst task"
    """
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name]
