"""Our methods without a published number on these features, for orientation."""

from collections.abc import Sequence

from cop2l.report.groups import Spread
from reproduction.machines import Machines
from reproduction.markdown import paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import AS_PUBLISHED, DEFAULT, Sample, pick, streams

REFERENCES = (
    ("csrel", AS_PUBLISHED, "csrel"),
    ("joint", AS_PUBLISHED, "joint"),
    ("cop2l", DEFAULT, "cop2l, preset picking"),
)
"""Method, settings, and the name in the tables."""


def references_of(
    samples: Sequence[Sample], scenario: str, dataset: str, tasks: int
) -> list[tuple[str, Sample]]:
    """The names and the samples of these methods, on every kind of features."""
    title = (scenario, dataset, tasks)
    setups = [s for s in streams(samples) if (s.scenario, s.dataset, s.tasks) == title and s.features]
    picked = [
        (label, pick(samples, s, method, changes)) for method, changes, label in REFERENCES for s in setups
    ]
    return [(label, sample) for label, sample in picked if sample]


def accuracies(references: Sequence[tuple[str, Sample]]) -> dict[str, dict[str, Spread]]:
    """The accuracies of these methods, by features."""
    by_features: dict[str, dict[str, Spread]] = {}
    for label, sample in references:
        if value := sample.spread("accuracy"):
            by_features.setdefault(sample.stream.features, {})[label] = value
    return by_features


def reference_table(references: Sequence[tuple[str, Sample]], machines: Machines) -> str:
    """The numbers of these methods, with commands."""
    rows = [
        (
            label,
            sample.stream.features,
            *(rate(sample.spread(metric)) for metric in ("accuracy", "forgetting")),
            f"`{sweep_command(sample.runs)}`",
            machines.cell(sample),
        )
        for label, sample in references
    ]
    header = ("method", "features", "accuracy", "forgetting", "command", "machine, seconds a run")
    return paragraphs("Without a published number:", table(header, rows)) if rows else ""
