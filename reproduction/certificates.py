"""Every kind of certificate on every stream, and which is tighter."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread
from cop2l.report.metric import KINDS
from reproduction.machines import Machines
from reproduction.markdown import folded, paragraphs, points, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import AS_PUBLISHED, DEFAULT, Sample, Setup, pick, streams

HALF = (("holdout", 0.5),)
TENTH = (("holdout", 0.1),)
CONTENDERS = (
    ("cop2l", AS_PUBLISHED, "CoP2L, paper"),
    ("cop2l", (("buffer", "threshold"),), "CoP2L, paper with a threshold buffer"),
    ("cop2l", DEFAULT, "CoP2L, preset picking"),
    ("replay", HALF, "Replay, half held out"),
    ("replay", TENTH, "Replay, a tenth held out"),
)
RIVALS = {
    "CoP2L, paper": "paper",
    "Replay, half held out": "half held out",
    "Replay, a tenth held out": "a tenth held out",
}
"""The certificates that our presets are compared with: the name in the tables, and the short name in a heading."""


@dataclass(frozen=True)
class BoundComparison:
    """One of our presets beside its rivals on one stream; the metrics are by name of the certificate."""

    preset: str
    stream: Setup
    accuracy: dict[str, Spread]
    mean: dict[str, Spread]
    """The claimed bound, mean over the tasks."""
    worst: dict[str, Spread]
    valid: bool
    is_tuned: bool
    """Whether the settings of the preset were chosen on these pictures."""


def contenders(samples: Sequence[Sample], stream: Setup) -> dict[str, Sample]:
    """The samples on a stream that have a certificate, by their names in the tables."""
    picked = {label: pick(samples, stream, method, changes) for method, changes, label in CONTENDERS}
    return {label: sample for label, sample in picked.items() if sample and sample.spread("bound")}


def compare_bounds(
    samples: Sequence[Sample], preset: str, tuned_on: Collection[str] = ()
) -> list[BoundComparison]:
    """A comparison for each stream of a preset, whose settings were chosen on the data sets `tuned_on`."""
    comparisons = []
    for stream in streams(samples):
        by_label = contenders(samples, stream)
        if preset not in by_label:
            continue
        accuracy, mean, worst = (
            {label: value for label, s in by_label.items() if (value := s.spread(metric))}
            for metric in ("accuracy", "bound", "worst-bound")
        )
        valid = not any(run.not_valid for sample in by_label.values() for run in sample.runs)
        is_tuned = stream.pictures in tuned_on
        comparisons.append(BoundComparison(preset, stream, accuracy, mean, worst, valid, is_tuned))
    return comparisons


def stream_table(samples: Sequence[Sample], stream: Setup, machines: Machines) -> str:
    """Every kind of bound on one stream: mean over tasks / worst task."""
    by_label = contenders(samples, stream)
    kinds = [kind for kind in KINDS if any(sample.spread(kind) for sample in by_label.values())]
    lines = [
        (
            label + ("†" if any(run.not_valid for run in sample.runs) else ""),
            rate(sample.spread("accuracy")),
            rate_text(sample.spread("test-error")),
            *(_mean_and_worst(sample, kind) for kind in kinds),
            f"{ratio.mean:.2f}" if (ratio := sample.spread("ratio-bound")) else "–",
            machines.cell(sample),
        )
        for label, sample in by_label.items()
    ]
    header = ("certificate", "accuracy", "test error", *kinds, "claim / test error", "seconds")
    commands = [f"- {label}: `{sweep_command(sample.runs)}`" for label, sample in by_label.items()]
    return paragraphs(table(header, lines), folded("Commands", "\n".join(commands)))


def _mean_and_worst(sample: Sample, kind: str) -> str:
    mean, worst = sample.spread(kind), sample.spread(f"worst-{kind}")
    if mean is None or worst is None:
        return "–"
    bounds = f"{rate_text(mean.mean, upwards=True)} / {rate_text(worst.mean, upwards=True)}"
    return f"**{bounds}**" if sample.runs[0].kind == kind else bounds


def comparison_table(comparisons: Sequence[BoundComparison]) -> str:
    """The differences stream by stream, then the counts."""
    lines = [
        (
            comparison.stream.name + ("" if comparison.valid else "†") + ("‡" if comparison.is_tuned else ""),
            *(cell for rival in RIVALS for cell in _differences(comparison, rival)),
        )
        for comparison in comparisons
    ]
    header = ("stream", *(f"{rival}: {kind}" for rival in RIVALS.values() for kind in ("accuracy", "bound")))
    return paragraphs(table(header, lines), "\n".join(_counts(comparisons)))


def _differences(comparison: BoundComparison, rival: str) -> tuple[str, str]:
    if rival not in comparison.mean:
        return "–", "–"
    accuracy, mean, worst = (
        points(metric[comparison.preset].mean - metric[rival].mean)
        for metric in (comparison.accuracy, comparison.mean, comparison.worst)
    )
    return accuracy, f"{mean} / {worst}"


def _counts(comparisons: Sequence[BoundComparison]) -> list[str]:
    """On how many streams the preset has the smaller bound, and the higher accuracy too."""
    sentences = []
    for rival in RIVALS:
        common = [c for c in comparisons if rival in c.mean]
        if not common:
            continue
        tighter = [c for c in common if c.mean[c.preset].mean < c.mean[rival].mean]
        both = [c for c in tighter if c.accuracy[c.preset].mean > c.accuracy[rival].mean]
        sentence = (
            f"- Against {rival}: smaller bound (mean over tasks) on {len(tighter)} of {len(common)} streams, and higher accuracy"
            f" too on {len(both)}."
        )
        tighter_new, common_new, both_new = (
            [c for c in part if not c.is_tuned] for part in (tighter, common, both)
        )
        if len(common_new) < len(common):
            sentence += f" Without the streams marked ‡: on {len(tighter_new)} of {len(common_new)}, and on {len(both_new)}."
        sentences.append(sentence)
    return sentences
