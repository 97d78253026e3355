"""The ladders of docs/results.md: the certificates on one stream, from the paper's formula to hold-out."""

from collections.abc import Callable, Sequence
from typing import Any

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from reproduction.markdown import rate, table
from reproduction.ours import MEMORY, ORDERS, stream_of

SEEDS = range(5)
HOLDOUT_LR, HOLDOUT_EPOCHS = 0.1, 20
"""Learning rate and epochs of Replay; configs/ladder.toml says why."""
OTHER_MODELS = ("cnn", "mlp-head")

Settings = dict[str, Any]
RUNGS: tuple[tuple[str, str, Callable[[Settings], bool]], ...] = (
    ("`preset=paper`", "the paper's formula", lambda s: s["preset"] == "paper" and s["buffer"] == "uniform"),
    (
        "`preset=paper buffer=threshold`",
        "the same learning, by preference",
        lambda s: s["preset"] == "paper" and s["buffer"] == "threshold",
    ),
    ("`preset=picking`", "preference", lambda s: s["preset"] == "picking"),
    (
        "`method=replay holdout=0.5`",
        "hold-out",
        lambda s: (
            (s["method"], s["holdout"], s["lr"], s["epochs"]) == ("replay", 0.5, HOLDOUT_LR, HOLDOUT_EPOCHS)
        ),
    ),
)
"""Of each rung: its options, the kind of its claim, and whether settings belong to it."""
ON_FEATURES: tuple[tuple[str, str, Callable[[Settings], bool]], ...] = (
    *RUNGS[:3],
    ("`method=replay holdout=0.5`", "hold-out", lambda s: s["method"] == "replay" and s["holdout"] == 0.5),
    ("`method=ncm holdout=0.8`", "hold-out", lambda s: s["method"] == "ncm" and s["holdout"] == 0.8),
    ("`method=slda holdout=0.8`", "hold-out", lambda s: s["method"] == "slda" and s["holdout"] == 0.8),
    ("`method=ranpac holdout=0.6`", "hold-out", lambda s: s["method"] == "ranpac" and s["holdout"] == 0.6),
)
"""The rungs on frozen features, with the learners in closed form."""
LADDERS = {
    ("mnist", "", "class-incremental", 5): RUNGS,
    ("cifar100", "dinov2-vits14-224", "class-incremental", 10): ON_FEATURES,
}


def ladder(runs: Sequence[Run]) -> str:
    """A table for each stream: accuracy, claimed bound, test error, picks and seconds of every rung."""
    return "\n".join(_table(runs, stream, rungs) for stream, rungs in LADDERS.items())


def _table(
    runs: Sequence[Run], stream: tuple[Any, ...], rungs: Sequence[tuple[str, str, Callable[[Settings], bool]]]
) -> str:
    candidates = [run for run in runs if stream_of(run)[:4] == stream and _has_usual_settings(run)]
    candidates.sort(
        key=lambda run: run.config.get("device") == "cpu"
    )  # of two runs with the same seed, it counts
    rows = []
    for name, claim, belongs in rungs:
        by_seed = {run.seed: run for run in candidates if belongs(_SettingsOrNone(run.settings))}
        rung_runs = [by_seed[seed] for seed in sorted(by_seed)]
        metrics = ("accuracy", "bound", "test-error", "picked", "seconds")
        rows.append((name, claim, *(_cell(rung_runs, metric) for metric in metrics)))
    header = (
        "what is run",
        "the claim",
        "accuracy (seeds)",
        "claimed bound",
        "test error",
        "picked",
        "seconds",
    )
    return table(header, rows) + "\n"


class _SettingsOrNone(dict[str, Any]):
    """Settings; one that a method does not have is None."""

    def __missing__(self, key: str) -> None:
        return None


def _has_usual_settings(run: Run) -> bool:
    settings = run.settings
    omega = 25.0 if "@" in run.stream else 15.0
    return (
        settings.get("memory") == MEMORY
        and all(settings.get(key) is None for key in ORDERS)
        and run.model not in OTHER_MODELS
        and settings.get("optimiser") in (None, "sgd")
        and settings.get("stop") != "none"
        and run.seed in SEEDS
        and settings.get("omega") in (None, omega)
        and len(settings.get("claim") or ["tasks"]) == 1
    )


def _cell(runs: Sequence[Run], name: str) -> str:
    values = [number for run in runs if (number := METRICS[name].of(run)) is not None]
    if not runs or len(values) < len(runs):
        return "–"
    value = spread(values)
    if name == "accuracy":
        return rate(value)
    if METRICS[name].unit == "%":
        return rate_text(value.mean, upwards=METRICS[name].certified)
    return f"{value.mean:.0f}"
