"""What the paper's appendix varies: the weight of replayed examples, the size of the buffer, the order of the tasks."""

from collections.abc import Callable, Sequence

from cop2l.metrics import average_accuracy
from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import spread
from cop2l.report.runs import Run
from reproduction.machines import Machines
from reproduction.markdown import paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import ORDERS, Sample, Setup, changes_of, stream_of

NOT_RUN = "Not run."
FAMILY = ("mnist", "fashion-mnist", "emnist-letters")


def varied(found: Sequence[Sample], allowed: set[str], methods: tuple[str, ...]) -> dict[Setup, list[Sample]]:
    """The samples of the MNIST family that differ from the paper in nothing but these keys."""
    kept: dict[Setup, list[Sample]] = {}
    for sample in found:
        if (
            sample.method in methods
            and sample.stream.dataset in FAMILY
            and {key for key, _ in sample.changes} <= allowed
        ):
            kept.setdefault(sample.stream, []).append(sample)
    return {stream: own for stream, own in kept.items() if len({_memory(s) for s in own}) > 1}


def _memory(sample: Sample) -> int:
    return int(sample.runs[0].config.get("memory", 0))


def _omega(sample: Sample) -> float:
    return float(sample.runs[0].settings.get("omega") or 0)


def weighed(found: Sequence[Sample]) -> dict[Setup, list[Sample]]:
    """CoP2L over the sizes of the memory, on the streams that were run with several weights omega."""
    streams = varied(found, {"omega", "memory"}, ("cop2l",))
    return {stream: own for stream, own in streams.items() if len({_omega(s) for s in own}) > 1}


def omega(found: Sequence[Sample], machines: Machines) -> str:
    """Replayed examples with the extra weight and without, over the sizes of the memory."""
    parts = []
    for stream, own in weighed(found).items():
        weights = sorted({_omega(s) for s in own})
        parts.append(_by_memory(stream, own, [(f"omega {w:g}", _with_omega(w)) for w in weights], machines))
    return paragraphs(*parts) or NOT_RUN


def _with_omega(weight: float) -> Callable[[Sample], bool]:
    return lambda sample: _omega(sample) == weight


def buffer_size(found: Sequence[Sample], machines: Machines) -> str:
    """CoP2L against Replay over the sizes of the memory."""
    parts = []
    for stream, own in varied(found, {"memory"}, ("cop2l", "replay")).items():
        kinds: list[tuple[str, Callable[[Sample], bool]]]
        kinds = [("CoP2L", lambda s: s.method == "cop2l"), ("Replay", lambda s: s.method == "replay")]
        parts.append(_by_memory(stream, own, kinds, machines))
    return paragraphs(*parts) or NOT_RUN


def _by_memory(
    stream: Setup,
    own: Sequence[Sample],
    kinds: Sequence[tuple[str, Callable[[Sample], bool]]],
    machines: Machines,
) -> str:
    lines = []
    for memory in sorted({_memory(s) for s in own}):
        cells = []
        for _, chosen in kinds:
            sample = next((s for s in own if _memory(s) == memory and chosen(s)), None)
            cells += [rate(sample.spread(m)) if sample else "–" for m in ("accuracy", "forgetting")]
        picked = [s for _, chosen in kinds for s in own if _memory(s) == memory and chosen(s)]
        lines.append((str(memory), *cells, "; ".join(machines.cell(s) for s in picked)))
    names = [f"{label}, {metric}" for label, _ in kinds for metric in ("accuracy", "forgetting")]
    example = max(own, key=lambda s: (len(s.changes), len(s.runs)))
    return paragraphs(
        f"**{stream.name}**",
        table(("memory", *names, "machine, seconds a run"), lines),
        f"For example `{sweep_command(example.runs)}`.",
    )


def orders(runs: Sequence[Run]) -> dict[Setup, dict[str, list[Run]]]:
    """The runs over several task orders, by stream and method."""
    found: dict[Setup, dict[str, list[Run]]] = {}
    for run in runs:
        changes = dict(changes_of(run))
        classes, *tasks = (changes.pop(key, None) is not None for key in ORDERS)
        if (classes or any(tasks)) and set(changes) <= {"preset"}:
            words = [run.method, *map(str, changes.values())]
            words += ["classes shuffled"] * classes + ["tasks reordered"] * any(tasks)
            found.setdefault(stream_of(run), {}).setdefault(", ".join(words), []).append(run)
    return found


def task_order(runs: Sequence[Run]) -> str:
    """Average cumulative accuracy after each task, mean and deviation over the orders."""
    parts = []
    for stream, methods in sorted(orders(runs).items()):
        lines = []
        for method, own in sorted(methods.items()):
            after = [spread(average_accuracy(r.matrix[:s]) for r in own) for s in range(1, stream.tasks + 1)]
            lines.append(
                (
                    method,
                    str(len({tuple(r.config.get(key) for key in ORDERS) for r in own})),
                    *map(rate_text, after),
                )
            )
        header = ("method", "orders", *(f"after task {s}" for s in range(1, stream.tasks + 1)))
        parts.append(paragraphs(f"**{stream.name}**", table(header, lines)))
    return paragraphs(*parts) or NOT_RUN
