"""The class-incremental tables with a trainable layer between the features and the head."""

from collections.abc import Sequence

from cop2l.report.metric import METRICS
from reproduction.markdown import folded, paragraphs, published_rate, rate, table
from reproduction.numbers import Number, stands_for, sweep_command
from reproduction.ours import AS_PUBLISHED, Sample, Setup, pick

HEAD = "mlp-head"
INTRODUCTION = """\
The paper calls its models "linear" and "MLP". Under a linear head the features stay as they are: iCaRL's training has no effect
there, and finetuning forgets less than published. The same settings with one trainable hidden layer:"""


def section(found: Sequence[Sample], every: Sequence[Number]) -> str:
    """One table for every stream that was run with this head."""
    streams = sorted({s.stream for s in found if s.stream.model == HEAD})
    if not streams:
        return "Not run: `cop2l sweep reproduction/configs/trainable-head.toml`."
    return paragraphs(INTRODUCTION, *(stream_table(found, every, stream) for stream in streams))


def stream_table(found: Sequence[Sample], every: Sequence[Number], stream: Setup) -> str:
    """Accuracy and forgetting of every method: the paper's, with a linear head, and with the trainable layer."""
    rows, commands = [], []
    methods = list(dict.fromkeys(n.method for n in every if n.title == _title(stream)))
    for method in methods:
        sample = pick(found, stream, method, AS_PUBLISHED)
        if sample is None:
            continue
        linear = pick(found, stream._replace(model="linear"), method, AS_PUBLISHED)
        rows.append(
            (
                method,
                *(_published(every, stream, method, metric) for metric in ("accuracy", "forgetting")),
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


def _title(stream: Setup) -> tuple[str, str, int]:
    return stream.scenario, stream.dataset, stream.tasks


def _published(every: Sequence[Number], stream: Setup, method: str, metric: str) -> str:
    about = (_title(stream), method, stands_for(stream.features), metric)
    own = [n for n in every if (n.title, n.method, n.model, n.metric) == about]
    return published_rate(own[0].paper if own else None)
