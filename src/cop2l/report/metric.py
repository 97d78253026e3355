"""The numbers of a run that tables compare: one name, one function, one direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from cop2l.errors import unknown
from cop2l.report.groups import Group, Spread, spread
from cop2l.report.runs import Run


class BoundKind(NamedTuple):
    """What the report says of a kind of bound, and how it draws it."""

    label: str
    colour: str
    sentence: str
    dash: tuple[int, ...] = (1, 0)


KINDS = {
    "kl": BoundKind(
        "paper's formula (kl)",
        "orange",
        "The paper's formula: the inverse of the kl divergence; larger for both compression sets and all numbers of iterations.",
    ),
    "kl-tight": BoundKind(
        "paper's formula, tightened (kl-tight)",
        "ochre",
        "The same proof without the terms that it does not need, and with the binomial tail's inverse.",
        (6, 3),
    ),
    "preference": BoundKind(
        "preference",
        "blue",
        "After Campi and Garatti: about the share of the examples that were picked or are misclassified; it does not"
        " pay for which examples were kept.",
    ),
    "combined": BoundKind(
        "combined",
        "pink",
        "Where memory holds no example to be picked: the binomial tail at ¾ of δ if nothing was picked, else preference.",
    ),
    "buffer": BoundKind(
        "buffer",
        "purple",
        "For a task whose data are gone: the preference bound on a random part of its sample, fixed in advance.",
        (6, 3),
    ),
    "holdout": BoundKind(
        "hold-out",
        "teal",
        "The binomial tail's inverse on examples withheld from learning: the usual alternative; it costs data.",
    ),
}
"""Kinds of bounds, in the order in which they are shown."""

SCALES = {"%": "100", "s": "1", "x": "1", "MB": "0.000001", "examples": "1"}
"""What a number of a run is multiplied by where it is displayed."""


@dataclass(frozen=True)
class Metric:
    """A number of a run; `of` returns None where the run does not have it."""

    name: str
    title: str
    unit: Literal["%", "s", "x", "MB", "examples"]
    better: Literal["higher", "lower", "neither"]
    of: Callable[[Run], float | None]
    certified: bool = False
    """True for bounds: a bound of a run that is not valid is shown, and never called the best."""

    def over_seeds(self, group: Group) -> Spread | None:
        """Mean and deviation over the runs of a group; None if a run lacks the number."""
        values = [self.of(run) for run in group.runs]
        return None if any(v is None for v in values) else spread(v for v in values if v is not None)


def bounds_of(run: Run, kind: str) -> list[float] | None:
    """The bounds of one kind, task by task; None unless every task has one. "bound" is the run's claim."""
    named = run.kind if kind == "bound" else kind
    values = [task.bounds[named] for task in run.tasks if named in task.bounds]
    return values if values and len(values) == len(run.tasks) else None


def kinds_in(groups: Sequence[Group]) -> list[str]:
    """The kinds of bounds that occur in the runs of some groups."""
    present = {kind for group in groups for run in group.runs for task in run.tasks for kind in task.bounds}
    return [kind for kind in KINDS if kind in present]


def test_errors(run: Run) -> list[float]:
    """Test errors of the final model, task by task."""
    return [
        1 - a if t.test_error is None else t.test_error
        for t, a in zip(run.tasks, run.matrix[-1], strict=True)
    ]


def average_metric(family: str) -> Callable[[Run], float | None]:
    """The claimed average over tasks: of the error rate, or of what was lost."""
    return lambda run: next(
        (s["value"] for s in run.claims if (s["family"], s["task"]) == (family, None)), None
    )


def most_lost(run: Run) -> float | None:
    """The largest claimed bound on what a task lost."""
    lost = [s["value"] for s in run.claims if (s["family"], s["subject"]) == ("forgetting", "lost")]
    return max(lost, default=None)


def _over_tasks(kind: str, how: Callable[[list[float]], float]) -> Callable[[Run], float | None]:
    return lambda run: how(b) if (b := bounds_of(run, kind)) else None


def _ratio(kind: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        error = fmean(test_errors(run))
        return fmean(b) / error if (b := bounds_of(run, kind)) and error else None

    return of


def _examples(name: str, title: str) -> Metric:
    """How many examples of a task there are of some kind."""

    def of(run: Run) -> float | None:
        counts = [getattr(task, name) for task in run.tasks]
        return None if None in counts else fmean(counts)

    return Metric(title.replace(" ", "-"), f"{title}, mean over tasks", "examples", "neither", of)


def _bound_metrics() -> list[Metric]:
    made = []
    for kind in ("bound", *KINDS):
        title = "certified bound" if kind == "bound" else f"bound, {KINDS[kind].label}"
        made += [
            Metric(kind, f"{title}, mean over tasks", "%", "lower", _over_tasks(kind, fmean), certified=True),
            Metric(
                f"worst-{kind}", f"{title}, worst task", "%", "lower", _over_tasks(kind, max), certified=True
            ),
            Metric(f"ratio-{kind}", f"{title}, over test error", "x", "lower", _ratio(kind), certified=True),
        ]
    return made


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "average accuracy", "%", "higher", lambda run: run.accuracy),
        Metric("forgetting", "forgetting", "%", "lower", lambda run: run.forgetting),
        Metric("plasticity", "plasticity", "%", "higher", lambda run: run.plasticity),
        Metric(
            "test-error", "test error, mean over tasks", "%", "lower", lambda run: fmean(test_errors(run))
        ),
        _examples("prior_examples", "prior examples"),
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
