"""The class-incremental tables with a trainable layer under the head."""

from collections.abc import Sequence

from cop2l.report.metric import METRICS
from reproduction.markdown import folded, paragraphs, rate, table
from reproduction.numbers import Number, published_cell, sweep_command
from reproduction.ours import AS_PUBLISHED, Sample, Setup, pick

HEAD = "mlp-head"
INTRODUCTION = """\
The paper calls its models "linear" and "MLP". With a linear head the features do not change, so iCaRL's training has no
effect and finetuning forgets less than published. These are the same settings with one trainable hidden layer."""


def section(samples: Sequence[Sample], numbers: Sequence[Number]) -> str:
    """A table for each stream that was run with this head."""
    streams = sorted({s.stream for s in samples if s.stream.model == HEAD})
    if not streams:
        return "Not run: `cop2l sweep reproduction/configs/trainable-head.toml`."
    return paragraphs(INTRODUCTION, *(stream_table(samples, numbers, stream) for stream in streams))


def stream_table(samples: Sequence[Sample], numbers: Sequence[Number], stream: Setup) -> str:
    """Accuracy and forgetting of every method: in the paper, with a linear head, and with the trainable layer."""
    rows, commands = [], []
    title = stream.scenario, stream.dataset, stream.tasks
    methods = list(dict.fromkeys(n.method for n in numbers if n.title == title))
    for method in methods:
        sample = pick(samples, stream, method, AS_PUBLISHED)
        if sample is None:
            continue
        linear = pick(samples, stream._replace(model="linear"), method, AS_PUBLISHED)
        rows.append(
            (
                method,
                *(published_cell(numbers, stream, method, metric) for metric in ("accuracy", "forgetting")),
                *(rate(linear.spread(m) if linear else None) for m in ("accuracy", "forgetting")),
                *(rate(sample.spread(m)) for m in ("accuracy", "forgetting")),
            )
        )
        commands.append((method, f"`{sweep_command(sample.runs)}`"))
    header = [
        f"{who}, {METRICS[m].name}"
        for who in ("paper", "linear", "layer")
        for m in ("accuracy", "forgetting")
    ]
    return paragraphs(
        f"**{stream.dataset}, {stream.tasks} tasks, {stream.features}**",
        table(("method", *header), rows),
        folded("Commands", table(("method", "command"), commands)),
    )
