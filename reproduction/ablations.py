"""Analyses of the paper's appendix: the weight of replayed examples, the size of the buffer, the order of the tasks."""

from collections.abc import Callable, Sequence

from cop2l.metrics import average_accuracy
from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import spread
from cop2l.report.runs import Run
from reproduction.markdown import paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import ORDERS, Sample, Setup, changes_of, stream_of

NOT_RUN = "Not run."
FAMILY = ("mnist", "fashion-mnist", "emnist-letters")


def varied(
    samples: Sequence[Sample], allowed: set[str], methods: tuple[str, ...]
) -> dict[Setup, list[Sample]]:
    """The samples of the MNIST family that differ from the paper in these keys only, on streams with several memories."""
    by_stream: dict[Setup, list[Sample]] = {}
    for sample in samples:
        if (
            sample.method in methods
            and sample.stream.dataset in FAMILY
            and {key for key, _ in sample.changes} <= allowed
        ):
            by_stream.setdefault(sample.stream, []).append(sample)
    return {stream: chosen for stream, chosen in by_stream.items() if len({_memory(s) for s in chosen}) > 1}


def _memory(sample: Sample) -> int:
    return int(sample.runs[0].config.get("memory", 0))


def _omega(sample: Sample) -> float:
    return float(sample.runs[0].settings.get("omega") or 0)


def weighed(samples: Sequence[Sample]) -> dict[Setup, list[Sample]]:
    """CoP2L for all sizes of the memory, on the streams with several weights omega."""
    streams = varied(samples, {"omega", "memory"}, ("cop2l",))
    return {stream: chosen for stream, chosen in streams.items() if len({_omega(s) for s in chosen}) > 1}


def omega(samples: Sequence[Sample]) -> str:
    """CoP2L with and without the weight of replayed examples, for all sizes of the memory."""
    parts = []
    for stream, chosen in weighed(samples).items():
        weights = sorted({_omega(s) for s in chosen})
        parts.append(_by_memory(stream, chosen, [(f"omega {w:g}", _with_omega(w)) for w in weights]))
    return paragraphs(*parts) or NOT_RUN


def _with_omega(weight: float) -> Callable[[Sample], bool]:
    return lambda sample: _omega(sample) == weight


def buffer_size(samples: Sequence[Sample]) -> str:
    """CoP2L and Replay for all sizes of the memory."""
    parts = []
    for stream, chosen in varied(samples, {"memory"}, ("cop2l", "replay")).items():
        kinds: list[tuple[str, Callable[[Sample], bool]]]
        kinds = [("CoP2L", lambda s: s.method == "cop2l"), ("Replay", lambda s: s.method == "replay")]
        parts.append(_by_memory(stream, chosen, kinds))
    return paragraphs(*parts) or NOT_RUN


def _by_memory(
    stream: Setup,
    samples: Sequence[Sample],
    kinds: Sequence[tuple[str, Callable[[Sample], bool]]],
) -> str:
    lines = []
    for memory in sorted({_memory(s) for s in samples}):
        cells = []
        for _, belongs in kinds:
            sample = next((s for s in samples if _memory(s) == memory and belongs(s)), None)
            cells += [rate(sample.spread(m)) if sample else "–" for m in ("accuracy", "forgetting")]
        lines.append((str(memory), *cells))
    names = [f"{label}, {metric}" for label, _ in kinds for metric in ("accuracy", "forgetting")]
    example = max(samples, key=lambda s: (len(s.changes), len(s.runs)))
    return paragraphs(
        f"**{stream.name}**",
        table(("memory", *names), lines),
        f"For example `{sweep_command(example.runs)}`.",
    )


def orders(runs: Sequence[Run]) -> dict[Setup, dict[str, list[Run]]]:
    """The runs with changed orders, by stream and method."""
    by_stream: dict[Setup, dict[str, list[Run]]] = {}
    for run in runs:
        changes = dict(changes_of(run))
        classes, *tasks = (changes.pop(key, None) is not None for key in ORDERS)
        if (classes or any(tasks)) and set(changes) <= {"preset"}:
            label = [run.method, *map(str, changes.values())]
            label += ["classes shuffled"] * classes + ["tasks reordered"] * any(tasks)
            by_stream.setdefault(stream_of(run), {}).setdefault(", ".join(label), []).append(run)
    return by_stream


def task_order(runs: Sequence[Run]) -> str:
    """The average accuracy after each task, mean and deviation over the orders."""
    parts = []
    for stream, methods in sorted(orders(runs).items()):
        lines = []
        for method, order_runs in sorted(methods.items()):
            after = [
                spread(average_accuracy(r.matrix[:s]) for r in order_runs) for s in range(1, stream.tasks + 1)
            ]
            number = len({tuple(r.config.get(key) for key in ORDERS) for r in order_runs})
            lines.append((method, str(number), *map(rate_text, after)))
        header = ("method", "orders", *(f"after task {s}" for s in range(1, stream.tasks + 1)))
        parts.append(paragraphs(f"**{stream.name}**", table(header, lines)))
    return paragraphs(*parts) or NOT_RUN
