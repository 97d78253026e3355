"""Learners that keep statistics of frozen features, beside those that train a head by replay: accuracy, claim and cost."""

from collections.abc import Sequence

from cop2l.report.figures.figure import rate_text
from reproduction.machines import Machines
from reproduction.markdown import folded, paragraphs, rate, table
from reproduction.numbers import sweep_command
from reproduction.ours import (
    AS_PUBLISHED,
    BASELINE_SETTINGS,
    DEFAULT,
    HYBRID,
    MEMORY,
    Change,
    Sample,
    Setup,
    pick,
    streams,
)

CLOSED = ("ncm", "slda", "ranpac")
WITHHELD = (0.8, 0.6)
RANDOM = "random-features"
WIDTH = 384
"""Of the backbone's features: what a kept example is counted as."""
INTRODUCTION = """\
Nearest class mean (`ncm`), linear discriminant analysis (`slda`) and ridge regression on random features (`ranpac`)
keep sums over features instead of examples, and are solved in closed form after each task. The paper compares with
none of them. `hybrid` starts each task with such a solution: of the features themselves (linear), or of random
features of them. Class-incremental streams; without a part withheld `ncm` and `slda` have nothing random, so that
every seed gives the same. Kept: the numbers that are stored between tasks beside the model, an example being 384.
Seconds are of whole runs, beside other runs."""
HEADER = (
    "what is run", "each task's share that is learned", "accuracy", "forgetting", "claimed bound", "test error", "numbers kept",
    "machine, seconds a run",
)  # fmt: skip


def section(found: Sequence[Sample], machines: Machines) -> str:
    """What the closed-form learners mean for the paper's comparison, in numbers; then a table for each stream."""
    own = [(s, rows) for s in streams(found) if _closed(found, s) and (rows := contenders(found, s))]
    if not own:
        return ""
    tables = []
    for stream, rows in own:
        lines = [_row(label, sample, machines) for label, sample in rows.items()]
        commands = "\n".join(f"- {label}: `{sweep_command(sample.runs)}`" for label, sample in rows.items())
        tables.append(paragraphs(f"**{stream.name}**", table(HEADER, lines), folded("Commands", commands)))
    return paragraphs(INTRODUCTION, "\n".join(sentence(s, rows) for s, rows in own), *tables)


def _closed(found: Sequence[Sample], stream: Setup) -> bool:
    learners = [sample for sample in found if sample.stream == stream and sample.method in CLOSED]
    return bool(stream.features) and stream.scenario == "class-incremental" and bool(learners)


def contenders(found: Sequence[Sample], stream: Setup) -> dict[str, Sample]:
    """Every sample of the table, by its name; the paper's baselines are the two that are most accurate here."""

    def of(method: str, *changes: Change, model: str | None = None) -> Sample | None:
        return pick(found, stream._replace(model=model or stream.model), method, changes)

    baselines = [sample for name in BASELINE_SETTINGS if (sample := of(name, *AS_PUBLISHED))]
    baselines.sort(key=_accuracy, reverse=True)
    rows = {sample.method: sample for sample in baselines[:2]}
    named: dict[str, Sample | None] = {
        "replay": of("replay"),
        "replay, half held out": of("replay", ("holdout", 0.5)),
        "cop2l, paper": of("cop2l"),
        "cop2l, preset picking": of("cop2l", *DEFAULT),
        **{name: of(name) for name in CLOSED},
        **{f"{name}, {held:g} withheld": of(name, ("holdout", held)) for name in CLOSED for held in WITHHELD},
        "hybrid, linear": of("cop2l", *HYBRID),
        "hybrid, random features": of("cop2l", *HYBRID, model=RANDOM),
    }
    return rows | {label: sample for label, sample in named.items() if sample}


def _accuracy(sample: Sample) -> float:
    value = sample.spread("accuracy")
    return value.mean if value else 0.0


def _row(label: str, sample: Sample, machines: Machines) -> tuple[str, ...]:
    bound, error = sample.spread("bound"), sample.spread("test-error")
    return (
        label + "†" * any(run.not_valid for run in sample.runs),
        f"{_learned(sample):g}",
        rate(sample.spread("accuracy")),
        rate_text(value) if (value := sample.spread("forgetting")) else "–",
        rate_text(bound.mean, upwards=True) if bound else "–",
        rate_text(error) if error else "–",
        f"{numbers_kept(sample):,}",
        machines.cell(sample),
    )


def _learned(sample: Sample) -> float:
    """The share of each task that parameters may depend on freely; picks come on top."""
    settings = sample.runs[0].settings
    return float(settings.get("prior") or 1.0) if sample.method == "cop2l" else 1 - settings["holdout"]


def numbers_kept(sample: Sample) -> int:
    """Examples, each of so many features, and statistics; the runs of older code do not say, and kept what their memory holds."""
    run = sample.runs[0]
    usual = 0 if sample.method in ("finetuning", "lwf", *CLOSED) else MEMORY
    examples = run.over_tasks("memory_used")
    numbers = run.over_tasks("numbers_stored") or 0
    return int(usual if examples is None else examples) * WIDTH + int(numbers)


def sentence(stream: Setup, rows: dict[str, Sample]) -> str:
    """The comparison on one stream in words."""
    means = {label: _accuracy(sample) for label, sample in rows.items()}
    trained = {
        label: mean for label, mean in means.items() if label in BASELINE_SETTINGS or label == "cop2l, paper"
    }
    closed = {label: mean for label, mean in means.items() if label in CLOSED or "withheld" in label}
    if not trained or not closed:
        return f"- {stream.name}: nothing to compare with yet."
    ahead, best = max(trained, key=trained.__getitem__), max(closed, key=closed.__getitem__)
    words = f"- {stream.name}: of what the paper compares, `{ahead}` is the most accurate here, {100 * trained[ahead]:.2f} %"
    words += f"; `{best}` has {100 * closed[best]:.2f} %"
    for label in ("hybrid, linear", "hybrid, random features"):
        if label in rows and (bound := rows[label].spread("bound")):
            words += (
                f"; {label} {100 * means[label]:.2f} % and claims {rate_text(bound.mean, upwards=True)} %"
            )
    rivals = ("replay, half held out", "cop2l, preset picking")
    claims = [(label, value) for label in rivals if label in rows and (value := rows[label].spread("bound"))]
    if claims:
        words += (
            " ("
            + ", ".join(f"{label}: {rate_text(value.mean, upwards=True)} %" for label, value in claims)
            + ")"
        )
    return words + "."
