"""Runs with other settings than the paper's, made to find out why a number differs."""

from collections.abc import Sequence

from reproduction.markdown import rate, table
from reproduction.numbers import Number, published_cell, resolution, sweep_command
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
                *(published_cell(numbers, stream, sample.method, m) for m in ("accuracy", "forgetting")),
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
