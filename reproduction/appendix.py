"""The tables of the paper's appendix: memory, early stopping, classes, plasticity."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Spread, spread
from cop2l.report.metric import bounds_of
from cop2l.report.published import Published
from cop2l.report.runs import Run
from reproduction import published
from reproduction.collect import OVER_TASKS
from reproduction.markdown import paragraphs, points, published_rate, rate, table
from reproduction.numbers import MISSING, resolution, stands_for, sweep_command
from reproduction.ours import AS_PUBLISHED, Change, Sample, changes_of, pick, streams

MEGABYTE = 1_000_000


def appendix(name: str) -> list[dict[str, str]]:
    """The published numbers of one table of the appendix."""
    return [row for row in published.appendix() if row["table"] == name]


def in_percent(row: dict[str, str]) -> Published:
    """A published rate."""
    return Published(float(row["value"]) / 100, float(row["sd"]) / 100)


def memory_cost(runs: Sequence[Run]) -> str:
    """The paper's peak memory beside ours; its backbone computes inside the loop, ours has done so before."""
    lines = []
    fields = {
        "allocated-mb": ("peak_cuda_allocated", MEGABYTE, ""),
        "reserved-mb": ("peak_cuda_reserved", MEGABYTE, ""),
        "cumulative-tb": (
            "total_cuda_allocated",
            1e9,
            "; ours in GB: all allocations of a task, freed or not",
        ),
    }
    for row in appendix("memory"):
        own = [
            run
            for run in runs
            if (run.method, run.scenario) == (row["method"], row["scenario"])
            and run.stream.startswith("cifar10@")
            and not changes_of(run)
            and run.over_tasks("peak_cuda_allocated") is not None
        ]
        field, unit, words = fields[row["metric"]]
        values = [v for run in own if (v := run.over_tasks(field, OVER_TASKS[field])) is not None]
        ours, status = "–", "**not run**: no run on a GPU"
        if values:
            value = spread(v / unit for v in values)
            deviation = "" if value.sd is None else f" ± {value.sd:.2f}"
            ours = f"{value.mean:.2f}{deviation} ({value.seeds})"
            status = f"**other backbone**: cached features{words}"
        lines.append(
            (
                row["scenario"],
                row["method"],
                row["metric"],
                row["setting"] or "as published",
                f"{row['value']} ± {row['sd']}",
                ours,
                status,
                f"`{sweep_command(own)}`" if own else "–",
            )
        )
    return table(("scenario", "method", "number", "how", "paper", "ours (seeds)", "status", "command"), lines)


def on_features(
    found: Sequence[Sample],
    method: str,
    changes: tuple[Change, ...] = AS_PUBLISHED,
    scenario: str = "class-incremental",
) -> list[Sample]:
    """A method on every kind of features of CIFAR-10, the largest pictures first."""
    own = [s for s in streams(found) if (s.dataset, s.scenario) == ("cifar10", scenario) and s.features]
    picked = [sample for stream in own if (sample := pick(found, stream, method, changes))]
    return sorted(picked, key=lambda sample: -resolution(sample.stream.features))


def early_stopping(found: Sequence[Sample]) -> str:
    """With and without early stopping: accuracy, forgetting, and the bound on every task."""
    lines = []
    for row in appendix("early-stopping"):
        changes = () if row["setting"] == "kl" else (("stop", "none"),)
        own = on_features(found, "cop2l", changes, row["scenario"])
        own = [s for s in own if row["model"] == stands_for(s.stream.features)]
        ours = [
            f"{resolution(s.stream.features)} px: {rate(v)}" for s in own if (v := _early(s, row["metric"]))
        ]
        lines.append(
            (
                "on" if row["setting"] == "kl" else "off",
                row["model"],
                row["metric"].replace("bound-", "bound on task "),
                published_rate(in_percent(row)),
                "; ".join(ours) or "–",
                "**other backbone**" if ours else f"**not run**: {MISSING[row['model']]}",
                f"`{sweep_command(own[0].runs)}`" if own else "–",
            )
        )
    return table(("early stopping", "model", "number", "paper", "ours (seeds)", "status", "command"), lines)


def _early(sample: Sample, metric: str) -> Spread | None:
    if not metric.startswith("bound-"):
        return sample.spread(metric)
    task = int(metric.removeprefix("bound-")) - 1
    bounds = [bounds_of(run, "kl") for run in sample.runs]
    return None if None in bounds else spread(b[task] for b in bounds if b is not None)


def class_wise(found: Sequence[Sample]) -> str:
    """Accuracy of every class after every task: the paper's (ResNet50) over ours."""
    parts = []
    for method in ("cop2l", "replay"):
        own = [s for s in on_features(found, method) if all(all(run.classes) for run in s.runs)]
        lines = []
        for after in range(1, 6):
            theirs = [
                row
                for row in appendix("class-wise")
                if (row["method"], row["setting"]) == (method, str(after))
            ]
            lines.append(
                (f"paper, after task {after}", *(published_rate(in_percent(row)) for row in theirs))
                + ("",) * (10 - len(theirs))
                + (_balance([float(row["value"]) / 100 for row in theirs]),)
            )
            for sample in own:
                spreads = _classes_after(sample, after)
                where = f"ours, {sample.stream.features}, after task {after}"
                lines.append(
                    (where, *map(rate_text, spreads))
                    + ("",) * (10 - len(spreads))
                    + (_balance([s.mean for s in spreads]),)
                )
        header = ("", *(f"class {c}" for c in range(1, 11)), "deviation between classes")
        commands = [f"`{sweep_command(sample.runs)}`" for sample in own]
        status = "other backbone" if own else f"not run: {MISSING['dino-resnet50']}"
        words = f"**{method}** (status of all its rows: {status})" + (
            f": {', '.join(commands)}" if own else ""
        )
        parts.append(paragraphs(words, table(header, lines)))
    return paragraphs(*parts)


def _classes_after(sample: Sample, after: int) -> list[Spread]:
    names = sorted(sample.runs[0].classes[after - 1])
    return [spread(run.classes[after - 1][name] for run in sample.runs) for name in names]


def _balance(values: Sequence[float]) -> str:
    return f"{100 * pstdev(values):.2f}" if values else "–"


def plasticity(found: Sequence[Sample]) -> str:
    """Plasticity and forgetting of six methods, and whether the paper's two tables agree."""
    lines = []
    for row in appendix("plasticity"):
        own = on_features(found, row["method"])
        own = [s for s in own if row["model"] == stands_for(s.stream.features)]
        paper, main = in_percent(row), _in_main_table(row)
        lines.append(
            (
                row["method"],
                row["model"],
                row["metric"],
                published_rate(paper),
                _disagreement(paper, main) if row["metric"] == "forgetting" else "",
                "; ".join(f"{resolution(s.stream.features)} px: {rate(s.spread(row['metric']))}" for s in own)
                or "–",
                "**other backbone**" if own else f"**not run**: {MISSING[row['model']]}",
            )
        )
    header = ("method", "model", "number", "paper", "against its main table", "ours (seeds)", "status")
    return paragraphs(table(header, lines), _identity())


def _in_main_table(row: dict[str, str], metric: str = "forgetting") -> Published:
    same = ("scenario", "dataset", "tasks", "method", "model")
    wanted = " ".join([*(row[key] for key in same), metric])
    return next(own.paper for own in published.tables() if own.key == wanted)


def _disagreement(paper: Published, main: Published) -> str:
    if abs(paper.mean - main.mean) < 5e-5:
        return "agrees"
    return f"main table: {published_rate(main)} ({points(paper.mean - main.mean)})"


def _identity() -> str:
    """Accuracy is plasticity less (T - 1)/T of the forgetting: which of the published numbers obey that?"""
    off = []
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
        off.append((f"{row['method']} ({row['model']})", gap))
    largest = max(off, key=lambda item: abs(item[1]))
    return (
        "The paper's own plasticity table and its main table disagree in forgetting. By definition, accuracy ="
        " plasticity - (T - 1)/T x forgetting within one set of runs; plasticity and forgetting of this table with the"
        f" main table's accuracy miss that by {100 * fmean(abs(g) for _, g in off):.2f} points on average, at most by"
        f" {points(largest[1])} for {largest[0]}: the two tables come from different runs."
    )
