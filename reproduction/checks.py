"""Runs with a setting that the paper does not have, made to find out why a number differs."""

from collections.abc import Sequence

from reproduction.machines import Machines
from reproduction.markdown import published_rate, rate, table
from reproduction.numbers import OWN_MODELS, Number, resolution, stands_for, sweep_command
from reproduction.ours import USUAL_MODELS, Sample

CHANGED = frozenset({"lr", "batch", "epochs", "dropout"})
MOMENTUM = (("optimiser", "momentum"),)


def is_check(sample: Sample) -> bool:
    """Whether a sample changes how the paper trains a baseline, or gives CoP2L momentum."""
    if sample.stream.model not in USUAL_MODELS:
        return False
    keys = {key for key, _ in sample.changes}
    return sample.changes == MOMENTUM if sample.method == "cop2l" else bool(keys and keys <= CHANGED)


def section(found: Sequence[Sample], every: Sequence[Number], machines: Machines) -> str:
    """What was changed, what came of it, and the published row."""
    rows = []
    for sample in filter(is_check, found):
        stream = sample.stream
        rows.append(
            (
                f"{stream.dataset}, {stream.tasks} tasks, {stream.scenario}"
                + (f", {resolution(stream.features)} px" if stream.features else ""),
                sample.method,
                ", ".join(f"{key} {value}" for key, value in sample.changes),
                *(rate(sample.spread(metric)) for metric in ("accuracy", "forgetting", "plasticity")),
                *(_published(sample, every, metric) for metric in ("accuracy", "forgetting")),
                f"`{sweep_command(sample.runs)}`",
                machines.cell(sample),
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
    return table((*header, "command", "machine, seconds a run"), rows)


def _published(sample: Sample, every: Sequence[Number], metric: str) -> str:
    s = sample.stream
    model = s.model if s.model in OWN_MODELS else stands_for(s.features)
    wanted = (s.scenario, s.dataset, s.tasks, sample.method, model, metric)
    own = [n for n in every if (n.scenario, n.dataset, n.tasks, n.method, n.model, n.metric) == wanted]
    return published_rate(own[0].paper if own else None)
