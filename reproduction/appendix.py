"""The tables of the paper's appendix: memory, early stopping, classes, plasticity."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread, spread
from cop2l.report.metric import bounds_of
from cop2l.report.runs import Run
from reproduction import published
from reproduction.collect import OVER_TASKS
from reproduction.markdown import paragraphs, points, published_rate, rate, table
from reproduction.numbers import resolution, stands_for, sweep_command
from reproduction.ours import AS_PUBLISHED, Change, Sample, changes_of, pick, streams
from reproduction.published import Published

MEGABYTE, GIGABYTE = 1e6, 1e9
MEMORY_FIELDS = {
    "allocated-mb": ("peak_cuda_allocated", MEGABYTE),
    "reserved-mb": ("peak_cuda_reserved", MEGABYTE),
    "cumulative-tb": ("total_cuda_allocated", GIGABYTE),
}
"""For each number of the paper, the field of our records and its unit in the table."""


def appendix(name: str) -> list[dict[str, str]]:
    """The published numbers of one table of the appendix."""
    return [row for row in published.appendix() if row["table"] == name]


def in_percent(row: dict[str, str]) -> Published:
    """A published rate."""
    return Published(float(row["value"]) / 100, float(row["sd"]) / 100)


def memory_cost(runs: Sequence[Run]) -> str:
    """The peak memory of the paper and of our runs."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for number in appendix("memory"):
        key = (number["scenario"], number["method"], f"paper, {number['setting'] or 'as published'}")
        rows.setdefault(key, {})[number["metric"]] = f"{number['value']} ± {number['sd']}"
    for scenario, method, _ in list(rows):
        rows[scenario, method, "ours (runs)"] = _our_memory(scenario, method, runs)
    header = ("scenario", "method", "source", "allocated, MB", "reserved, MB", "cumulative, TB (ours: GB)")
    lines = [(*key, *(rows[key].get(metric, "–") for metric in MEMORY_FIELDS)) for key in sorted(rows)]
    note = "Ours: all runs on CIFAR-10 with cached features on a GPU. Cumulative: all allocations of a task, freed or not."
    return paragraphs(note, table(header, lines))


def _our_memory(scenario: str, method: str, runs: Sequence[Run]) -> dict[str, str]:
    on_gpu = [
        run
        for run in runs
        if (run.method, run.scenario) == (method, scenario)
        and run.stream.startswith("cifar10@")
        and not changes_of(run)
        and run.over_tasks("peak_cuda_allocated") is not None
    ]
    cells = {}
    for metric, (field, unit) in MEMORY_FIELDS.items():
        values = [v for run in on_gpu if (v := run.over_tasks(field, OVER_TASKS[field])) is not None]
        if values:
            value = spread(v / unit for v in values)
            deviation = "" if value.sd is None else f" ± {value.sd:.2f}"
            cells[metric] = f"{value.mean:.2f}{deviation} ({value.seeds})"
    return cells


def on_features(
    samples: Sequence[Sample],
    method: str,
    changes: tuple[Change, ...] = AS_PUBLISHED,
    scenario: str = "class-incremental",
) -> list[Sample]:
    """A method on every kind of features of CIFAR-10, the largest pictures first."""
    setups = [s for s in streams(samples) if (s.dataset, s.scenario) == ("cifar10", scenario) and s.features]
    picked = [sample for stream in setups if (sample := pick(samples, stream, method, changes))]
    return sorted(picked, key=lambda sample: -resolution(sample.stream.features))


def early_stopping(samples: Sequence[Sample]) -> str:
    """With and without early stopping: accuracy, forgetting, and the bound on every task."""
    rows: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for number in appendix("early-stopping"):
        key = (number["setting"], number["model"], number["scenario"])
        rows.setdefault(key, {})[number["metric"]] = number
    metrics = list(dict.fromkeys(number["metric"] for number in appendix("early-stopping")))
    lines = []
    for (stop, model, scenario), numbers in rows.items():
        setting = "on" if stop == "kl" else "off"
        paper = (published_rate(in_percent(numbers[m])) if m in numbers else "–" for m in metrics)
        lines.append((setting, f"paper, {model}", *paper, ""))
        for sample in on_features(samples, "cop2l", () if stop == "kl" else (("stop", "none"),), scenario):
            if stands_for(sample.stream.features) == model:
                ours = (rate(_early(sample, metric)) for metric in metrics)
                lines.append(
                    (setting, f"ours, {sample.stream.features}", *ours, f"`{sweep_command(sample.runs)}`")
                )
    titles = (metric.replace("bound-", "bound on task ") for metric in metrics)
    return table(("early stopping", "source (seeds)", *titles, "command"), lines)


def _early(sample: Sample, metric: str) -> Spread | None:
    if not metric.startswith("bound-"):
        return sample.spread(metric)
    task = int(metric.removeprefix("bound-")) - 1
    bounds = [bounds_of(run, "kl") for run in sample.runs]
    return None if None in bounds else spread(b[task] for b in bounds if b is not None)


def class_wise(samples: Sequence[Sample]) -> str:
    """Accuracy of every class after every task: the paper's (ResNet50), then ours."""
    parts = []
    for method in ("cop2l", "replay"):
        chosen = [s for s in on_features(samples, method) if all(all(run.classes) for run in s.runs)]
        lines = []
        for after in range(1, 6):
            paper = [
                in_percent(number)
                for number in appendix("class-wise")
                if (number["method"], number["setting"]) == (method, str(after))
            ]
            lines.append(_class_row(f"paper, after task {after}", list(map(published_rate, paper)), paper))
            for sample in chosen:
                spreads = _classes_after(sample, after)
                source = f"ours, {sample.stream.features}, after task {after}"
                lines.append(_class_row(source, list(map(rate_text, spreads)), spreads))
        header = ("source", *(f"class {c}" for c in range(1, 11)), "deviation between classes")
        parts.append(paragraphs(f"**{method}**", table(header, lines)))
    return paragraphs(*parts)


def _class_row(
    source: str, rates: Sequence[str], values: Sequence[Published] | Sequence[Spread]
) -> tuple[str, ...]:
    deviation = f"{100 * pstdev([value.mean for value in values]):.2f}" if values else "–"
    return source, *rates, *[""] * (10 - len(rates)), deviation


def _classes_after(sample: Sample, after: int) -> list[Spread]:
    names = sorted(sample.runs[0].classes[after - 1])
    return [spread(run.classes[after - 1][name] for run in sample.runs) for name in names]


def plasticity(samples: Sequence[Sample]) -> str:
    """Plasticity and forgetting of six methods, and whether two tables of the paper agree."""
    rows: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for number in appendix("plasticity"):
        rows.setdefault((number["method"], number["model"]), {})[number["metric"]] = number
    lines = []
    for (method, model), numbers in rows.items():
        chosen = [s for s in on_features(samples, method) if stands_for(s.stream.features) == model]
        cells = []
        for metric in ("plasticity", "forgetting"):
            ours = [f"{resolution(s.stream.features)} px: {rate(s.spread(metric))}" for s in chosen]
            cells += [published_rate(in_percent(numbers[metric])), "; ".join(ours) or "–"]
        forgetting = numbers["forgetting"]
        cells.append(_disagreement(in_percent(forgetting), _in_main_table(forgetting)))
        lines.append((method, model, *cells))
    columns = [
        f"{metric}, {who}" for metric in ("plasticity", "forgetting") for who in ("paper", "ours (seeds)")
    ]
    return paragraphs(
        table(("method", "model", *columns, "forgetting in the paper's main table"), lines), _identity()
    )


def _in_main_table(row: dict[str, str], metric: str = "forgetting") -> Published:
    fields = ("scenario", "dataset", "tasks", "method", "model")
    key = " ".join([*(row[field] for field in fields), metric])
    return next(number.paper for number in published.tables() if number.key == key)


def _disagreement(paper: Published, main: Published) -> str:
    if abs(paper.mean - main.mean) < 5e-5:
        return "the same"
    return f"{published_rate(main)} ({points(paper.mean - main.mean)})"


def _identity() -> str:
    """How far the numbers of the paper are from accuracy = plasticity - (T - 1)/T x forgetting."""
    gaps = []
    for row in appendix("plasticity"):
        if row["metric"] != "plasticity":
            continue
        share = 1 - 1 / int(row["tasks"])
        accuracy = _in_main_table(row, "accuracy").mean
        forgetting = next(
            in_percent(r).mean
            for r in appendix("plasticity")
            if (r["method"], r["model"], r["metric"]) == (row["method"], row["model"], "forgetting")
        )
        gap = in_percent(row).mean - share * forgetting - accuracy
        gaps.append((f"{row['method']} ({row['model']})", gap))
    name, largest = max(gaps, key=lambda item: abs(item[1]))
    return (
        "Within one set of runs, accuracy = plasticity - (T - 1)/T x forgetting. The paper's plasticity table with the"
        f" accuracy of its main table misses that by {100 * fmean(abs(g) for _, g in gaps):.2f} points on average, and by"
        f" {points(largest)} for {name}. So the two tables of the paper come from different runs."
    )
