"""Methods without a published number on the backbone that ours stands for: beside the others, for orientation."""

from collections.abc import Sequence

from cop2l.report.groups import Spread
from reproduction.machines import Machines
from reproduction.markdown import paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import AS_PUBLISHED, DEFAULT, HYBRID, Sample, pick, streams

REFERENCES = (
    ("csrel", AS_PUBLISHED, "csrel"),
    ("joint", AS_PUBLISHED, "joint"),
    ("cop2l", DEFAULT, "cop2l, preset picking"),
    ("cop2l", HYBRID, "hybrid"),
)
"""Method, settings, and what it is called in the tables."""


def references_of(
    found: Sequence[Sample], scenario: str, dataset: str, tasks: int
) -> list[tuple[str, Sample]]:
    """The methods for orientation, each with its label, on every kind of features."""
    title = (scenario, dataset, tasks)
    own = [s for s in streams(found) if (s.scenario, s.dataset, s.tasks) == title and s.features]
    picked = [(label, pick(found, s, method, changes)) for method, changes, label in REFERENCES for s in own]
    return [(label, sample) for label, sample in picked if sample]


def accuracies(references: Sequence[tuple[str, Sample]]) -> dict[str, dict[str, Spread]]:
    """Their accuracies, by features."""
    made: dict[str, dict[str, Spread]] = {}
    for label, sample in references:
        if value := sample.spread("accuracy"):
            made.setdefault(sample.stream.features, {})[label] = value
    return made


def reference_table(references: Sequence[tuple[str, Sample]], machines: Machines) -> str:
    """Their numbers, with commands."""
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
    words = "Without a published number to stand beside:"
    return paragraphs(words, table(header, rows)) if rows else ""
