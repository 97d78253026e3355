"""Runs with other settings than the paper's, made to find out why a number differs."""

from collections.abc import Sequence

from reproduction.markdown import published_rate, rate, table
from reproduction.numbers import OWN_MODELS, Number, resolution, stands_for, sweep_command
from reproduction.ours import USUAL_MODELS, Sample

CHANGED = frozenset({"lr", "batch", "epochs", "dropout"})
MOMENTUM = (("optimiser", "momentum"),)


def is_check(sample: Sample) -> bool:
    """Whether a sample changes the training of a baseline, or gives CoP2L momentum."""
    if sample.stream.model not in USUAL_MODELS:
        return False
    keys = {key for key, _ in sample.changes}
    return sample.changes == MOMENTUM if sample.method == "cop2l" else bool(keys and keys <= CHANGED)


def section(samples: Sequence[Sample], numbers: Sequence[Number]) -> str:
    """The changes, our numbers, and those of the paper."""
    rows = []
    for sample in filter(is_check, samples):
        stream = sample.stream
        rows.append(
            (
                f"{stream.dataset}, {stream.tasks} tasks, {stream.scenario}"
                + (f", {resolution(stream.features)} px" if stream.features else ""),
                sample.method,
                ", ".join(f"{key} {value}" for key, value in sample.changes),
                *(rate(sample.spread(metric)) for metric in ("accuracy", "forgetting", "plasticity")),
                *(_published(sample, numbers, metric) for metric in ("accuracy", "forgetting")),
                f"`{sweep_command(sample.runs)}`",
            )
        )
    if not rows:
        return "No check was recorded."
    header = (
        "stream",
        "method",
        "changed",
        "accuracy",
        "forgetting",
        "plasticity",
        "paper's accuracy",
        "paper's forgetting",
    )
    return table((*header, "command"), rows)


def _published(sample: Sample, numbers: Sequence[Number], metric: str) -> str:
    s = sample.stream
    model = s.model if s.model in OWN_MODELS else stands_for(s.features)
    key = ((s.scenario, s.dataset, s.tasks), sample.method, model, metric)
    matches = [n for n in numbers if (n.title, n.method, n.model, n.metric) == key]
    return published_rate(matches[0].paper if matches else None)
