"""Learners in closed form on frozen features, beside those that train a head by replay: accuracy, claim and cost."""

from collections.abc import Sequence

from cop2l.report.figures.figure import rate_text
from reproduction.machines import Machines
from reproduction.markdown import folded, paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import (
    AS_PUBLISHED,
    BASELINE_SETTINGS,
    DEFAULT,
    MEMORY,
    Change,
    Sample,
    Setup,
    pick,
    streams,
)

CLOSED = ("ncm", "slda", "ranpac")
WITHHELD = (0.8, 0.6)
WIDTH = 384
"""The numbers that an example in memory is counted as: the width of the features."""
INTRODUCTION = """\
The paper does not compare with learners in closed form: nearest class mean (`ncm`), linear discriminant analysis
(`slda`) and ridge regression on random features (`ranpac`). They keep sums over features instead of examples. All streams
are class-incremental. Without a withheld part, `ncm` and `slda` give the same result for every seed. "Numbers kept" are
stored between tasks beside the model; an example counts as 384."""
HEADER = (
    "method", "learned share of each task", "accuracy", "forgetting", "claimed bound", "test error", "numbers kept",
    "machine, seconds a run",
)  # fmt: skip
SUMMARY_HEADER = ("stream", "best of the paper's methods", "best in closed form")


def section(samples: Sequence[Sample], machines: Machines) -> str:
    """A summary, then a table for each stream."""
    by_stream = [
        (s, rows) for s in streams(samples) if _has_closed(samples, s) and (rows := contenders(samples, s))
    ]
    if not by_stream:
        return ""
    tables = []
    for stream, rows in by_stream:
        lines = [_row(label, sample, machines) for label, sample in rows.items()]
        commands = "\n".join(f"- {label}: `{sweep_command(sample.runs)}`" for label, sample in rows.items())
        tables.append(paragraphs(f"**{stream.name}**", table(HEADER, lines), folded("Commands", commands)))
    summary = [summary_row(stream, rows) for stream, rows in by_stream]
    return paragraphs(
        INTRODUCTION, "The summary has accuracies in per cent.", table(SUMMARY_HEADER, summary), *tables
    )


def _has_closed(samples: Sequence[Sample], stream: Setup) -> bool:
    learners = [sample for sample in samples if sample.stream == stream and sample.method in CLOSED]
    return bool(stream.features) and stream.scenario == "class-incremental" and bool(learners)


def contenders(samples: Sequence[Sample], stream: Setup) -> dict[str, Sample]:
    """The samples of a table by their names, among them the two most accurate baselines of the paper."""

    def of(method: str, *changes: Change) -> Sample | None:
        return pick(samples, stream, method, changes)

    baselines = [sample for name in BASELINE_SETTINGS if (sample := of(name, *AS_PUBLISHED))]
    baselines.sort(key=_accuracy, reverse=True)
    rows = {sample.method: sample for sample in baselines[:2]}
    further: dict[str, Sample | None] = {
        "replay": of("replay"),
        "replay, half held out": of("replay", ("holdout", 0.5)),
        "cop2l, paper": of("cop2l"),
        "cop2l, preset picking": of("cop2l", *DEFAULT),
        **{name: of(name) for name in CLOSED},
        **{
            f"{name}, {share:g} withheld": of(name, ("holdout", share))
            for name in CLOSED
            for share in WITHHELD
        },
    }
    return rows | {label: sample for label, sample in further.items() if sample}


def _accuracy(sample: Sample) -> float:
    value = sample.spread("accuracy")
    return value.mean if value else 0.0


def _row(label: str, sample: Sample, machines: Machines) -> tuple[str, ...]:
    bound, error = sample.spread("bound"), sample.spread("test-error")
    return (
        label + "†" * any(run.not_valid for run in sample.runs),
        f"{_learned_share(sample):g}",
        rate(sample.spread("accuracy")),
        rate_text(value) if (value := sample.spread("forgetting")) else "–",
        rate_text(bound.mean, upwards=True) if bound else "–",
        rate_text(error) if error else "–",
        f"{numbers_kept(sample):,}",
        machines.cell(sample),
    )


def _learned_share(sample: Sample) -> float:
    """The share of each task that the method may learn from."""
    return 1.0 - float(sample.runs[0].settings["holdout"])


def numbers_kept(sample: Sample) -> int:
    """The numbers in memory and in statistics; an older run, which has no record of them, kept a full memory."""
    run = sample.runs[0]
    default = 0 if sample.method in ("finetuning", "lwf", *CLOSED) else MEMORY
    examples = run.over_tasks("memory_used")
    numbers = getattr(run.records[0], "numbers_stored", None) or 0
    return int(default if examples is None else examples) * WIDTH + numbers


def summary_row(stream: Setup, rows: dict[str, Sample]) -> tuple[str, ...]:
    """The most accurate methods on one stream."""
    trained = [label for label in rows if label in BASELINE_SETTINGS or label == "cop2l, paper"]
    closed = [label for label in rows if label in CLOSED or "withheld" in label]
    best = [max(labels, key=lambda label: _accuracy(rows[label]), default="") for labels in (trained, closed)]
    cells = [f"`{label}` {100 * _accuracy(rows[label]):.2f}" if label else "–" for label in best]
    return stream.name, *cells
