"""Beyond the paper: every kind of certificate on every stream, and who is tighter."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread
from cop2l.report.metric import KINDS
from reproduction.machines import Machines
from reproduction.markdown import folded, paragraphs, points, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import AS_PUBLISHED, DEFAULT, HYBRID, Sample, Setup, pick, streams

HALF = (("holdout", 0.5),)
TENTH = (("holdout", 0.1),)
CONTENDERS = (
    ("cop2l", AS_PUBLISHED, "CoP2L, paper"),
    ("cop2l", (("buffer", "threshold"),), "CoP2L, paper with a threshold buffer"),
    ("cop2l", DEFAULT, "CoP2L, preset picking"),
    ("cop2l", HYBRID, "CoP2L, hybrid"),
    ("replay", HALF, "Replay, half held out"),
    ("replay", TENTH, "Replay, a tenth held out"),
)
RIVALS = {
    "CoP2L, paper": "paper",
    "Replay, half held out": "half held out",
    "Replay, a tenth held out": "a tenth held out",
}
"""Who our presets are compared with, and what they are called in a heading."""
HEADER = ("what", "accuracy", "test error", *KINDS, "claim / test error", "seconds")


@dataclass(frozen=True)
class BoundComparison:
    """A preset of ours beside the paper's CoP2L and beside Replay with a part of each task held out, on one stream."""

    ours: str
    """Its name in the tables."""
    stream: Setup
    accuracy: dict[str, Spread]
    mean: dict[str, Spread]
    """The claimed bound, mean over the tasks."""
    worst: dict[str, Spread]
    valid: bool
    chosen: bool
    """Whether its settings were chosen on such pictures."""


def contenders(found: Sequence[Sample], stream: Setup) -> dict[str, Sample]:
    """The samples on a stream that certify something, by their names in the tables."""
    picked = {label: pick(found, stream, method, changes) for method, changes, label in CONTENDERS}
    return {label: sample for label, sample in picked.items() if sample and sample.spread("bound")}


def bound_comparisons(
    found: Sequence[Sample], ours: str, chosen_on: Collection[str] = ()
) -> list[BoundComparison]:
    """One for every stream on which a preset of ours was run; its settings were chosen on these data sets."""
    made = []
    for stream in streams(found):
        own = contenders(found, stream)
        if ours not in own:
            continue
        accuracy, mean, worst = (
            {label: value for label, s in own.items() if (value := s.spread(metric))}
            for metric in ("accuracy", "bound", "worst-bound")
        )
        valid = not any(run.not_valid for sample in own.values() for run in sample.runs)
        made.append(BoundComparison(ours, stream, accuracy, mean, worst, valid, stream.pictures in chosen_on))
    return made


def stream_table(found: Sequence[Sample], stream: Setup, machines: Machines) -> str:
    """Every kind of bound on one stream: mean over tasks / worst task."""
    own = contenders(found, stream)
    lines = [
        (
            label + ("†" if any(run.not_valid for run in sample.runs) else ""),
            rate(sample.spread("accuracy")),
            rate_text(sample.spread("test-error")),
            *(_both(sample, kind) for kind in KINDS),
            f"{ratio.mean:.2f}" if (ratio := sample.spread("ratio-bound")) else "–",
            machines.cell(sample),
        )
        for label, sample in own.items()
    ]
    commands = [f"- {label}: `{sweep_command(sample.runs)}`" for label, sample in own.items()]
    return paragraphs(table(HEADER, lines), folded("Commands", "\n".join(commands)))


def _both(sample: Sample, kind: str) -> str:
    mean, worst = sample.spread(kind), sample.spread(f"worst-{kind}")
    if mean is None or worst is None:
        return "–"
    words = f"{rate_text(mean.mean, upwards=True)} / {rate_text(worst.mean, upwards=True)}"
    return f"**{words}**" if sample.runs[0].kind == kind else words


def verdicts(compared: Sequence[BoundComparison]) -> str:
    """Who is tighter and who is more accurate, stream by stream; then in one sentence each."""
    lines = [
        (
            one.stream.name + ("" if one.valid else "†") + ("‡" if one.chosen else ""),
            *(cell for rival in RIVALS for cell in _against(one, rival)),
        )
        for one in compared
    ]
    kinds = ("accuracy, points", "bound, points")
    header = ("stream", *(f"against {rival}: {kind}" for rival in RIVALS.values() for kind in kinds))
    return paragraphs(table(header, lines), *_sentences(compared))


def _against(one: BoundComparison, rival: str) -> tuple[str, str]:
    if rival not in one.mean:
        return "–", "–"
    ours = one.ours
    accuracy = one.accuracy[ours].mean - one.accuracy[rival].mean
    mean = one.mean[ours].mean - one.mean[rival].mean
    worst = one.worst[ours].mean - one.worst[rival].mean
    return points(accuracy), f"{points(mean)} / worst {points(worst)}"


def _sentences(compared: Sequence[BoundComparison]) -> list[str]:
    said = []
    for rival in RIVALS:
        met = [d for d in compared if rival in d.mean]
        if not met:
            continue
        tighter = [d for d in met if d.mean[d.ours].mean < d.mean[rival].mean]
        both = [d for d in tighter if d.accuracy[d.ours].mean > d.accuracy[rival].mean]
        looser = [d.stream.name for d in met if d not in tighter]
        words = (
            f"Against {rival}: {met[0].ours} has the smaller claimed bound (mean over tasks) on {len(tighter)} of"
            f" {len(met)} streams, and also the higher accuracy on {len(both)} of them."
        )
        fresh = [[d for d in some if not d.chosen] for some in (tighter, met, both)]
        if len(fresh[1]) < len(met):
            words += (
                f" On streams whose pictures took no part in the choice of its settings: on {len(fresh[0])} of"
                f" {len(fresh[1])}, and also the higher accuracy on {len(fresh[2])}."
            )
        if looser:
            words += f" **The rival's certificate is tighter on:** {'; '.join(looser)}."
        said.append(words)
    return said
