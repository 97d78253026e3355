"""The published numbers beside ours, and whether they are reproduced."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from reproduction.collect import command
from reproduction.explanations import UNEXPLAINED, Explanations
from reproduction.machines import Machines
from reproduction.markdown import paragraphs, points, published_rate, rate, table
from reproduction.ours import BASELINE_KEYS, Sample, Setup, changes_of, pick
from reproduction.published import Printed, Published, tables

Status = Literal["reproduced", "better", "differs", "other backbone", "other hardware", "not run"]
STATUSES: tuple[Status, ...] = (
    "reproduced",
    "better",
    "differs",
    "other backbone",
    "other hardware",
    "not run",
)
POINT = 0.01
DEVIATIONS = 2.0
MOST_DEVIATION = 0.02
"""Our deviation counts up to two points: runs that scatter more reproduce nothing."""
OWN_MODELS = ("mlp", "cnn")
"""The models that we train as the paper does; the others are frozen backbones."""
STANDS_FOR = {"dinov2-vits14": "dino-vit", "resnet50-imagenet": "dino-resnet50"}
"""The published backbone that each of ours is compared with."""
MISSING = {
    "dino-resnet50": "weights of the DINO ResNet50 (on the web only)",
    "dino-vit": "a run on our features",
}
MISSING_DATA = {"emnist-letters": "the EMNIST letters (on the web only)"}
METRIC_ORDER = ("accuracy", "forgetting", "seconds")
ROW_END = ("status", "machine", "command")


@dataclass(frozen=True)
class Number(Printed):
    """A published number and our samples for it."""

    samples: tuple[Sample, ...]
    """One sample, or one for each kind of features; none if it was not run."""
    status: Status
    explanation: tuple[str, ...]

    @property
    def title(self) -> tuple[str, str, int]:
        """The table of the number."""
        return self.scenario, self.dataset, self.tasks


def compare_numbers(samples: Sequence[Sample], explanations: Explanations) -> list[Number]:
    """Every number of the published tables with our samples."""
    numbers = []
    accuracy = {row.key: row.paper for row in tables()}
    for row in tables():
        chosen = counterparts(samples, row)
        status, plasticity = judge(chosen, row.paper, row.metric, row.model), ""
        if row.metric == "forgetting" and status in ("reproduced", "better"):
            published = accuracy[row.key.replace("forgetting", "accuracy")]
            status, plasticity = judge_jointly(chosen[0], row, published, status)
        explanation: tuple[str, ...] = ()
        if status == "not run":
            explanation = (missing(row.dataset, row.model),)
        elif status == "differs":
            reason = explanations.why("differs", **vars(row))
            known = [] if reason == UNEXPLAINED else [reason]
            explanation = tuple(filter(None, [plasticity, *known])) or (UNEXPLAINED,)
        numbers.append(Number(**vars(row), samples=chosen, status=status, explanation=explanation))
    return numbers


def counterparts(samples: Sequence[Sample], row: Printed) -> tuple[Sample, ...]:
    """Our samples with the published settings; for the backbones of the paper, on other features."""
    if row.model in OWN_MODELS:
        sample = pick(samples, Setup(row.dataset, "", row.scenario, row.tasks, row.model), row.method)
        return (sample,) if sample else ()
    head = "multi-head" if row.scenario == "task-incremental" else "linear"
    kinds = {s.stream.features for s in samples if stands_for(s.stream.features) == row.model}
    picked = [
        pick(samples, Setup(row.dataset, kind, row.scenario, row.tasks, head), row.method)
        for kind in sorted(kinds, key=resolution, reverse=True)
    ]
    return tuple(sample for sample in picked if sample)


def resolution(features: str) -> int:
    """The side, in pixels, of the pictures from which features were computed.

    >>> resolution("dinov2-vits14-224")
    224
    """
    end = re.search(r"(\d+)$", features)
    return int(end[1]) if end else 0


def stands_for(features: str) -> str | None:
    """The published backbone that features are compared with.

    >>> stands_for("dinov2-vits14-224")
    'dino-vit'
    """
    return STANDS_FOR.get(features.rpartition("-")[0])


def published_cell(numbers: Sequence[Number], stream: Setup, method: str, metric: str) -> str:
    """The published rate that a method on a stream is compared with."""
    model = stream.model if stream.model in OWN_MODELS else stands_for(stream.features)
    key = ((stream.scenario, stream.dataset, stream.tasks), method, model, metric)
    return published_rate(
        next((n.paper for n in numbers if (n.title, n.method, n.model, n.metric) == key), None)
    )


def judge(samples: Sequence[Sample], paper: Published, metric: str, model: str) -> Status:
    """The status of a published number, given our samples for it."""
    if not samples:
        return "not run"
    if metric == "seconds":
        return "other hardware"
    if model not in OWN_MODELS:
        return "other backbone"
    value = samples[0].spread(metric)
    if value is None:
        return "not run"
    return compare(value, paper, METRICS[metric].better)


def judge_jointly(sample: Sample, row: Printed, accuracy: Published, status: Status) -> tuple[Status, str]:
    """The status of a forgetting, given the accuracy: where less was learned, less forgetting is not better."""
    share = 1 - 1 / row.tasks
    deviation = math.hypot(accuracy.sd or 0, share * (row.paper.sd or 0))
    implied = Published(accuracy.mean + share * row.paper.mean, deviation)
    plasticity, our_accuracy = sample.spread("plasticity"), sample.spread("accuracy")
    if plasticity is None or our_accuracy is None or compare(plasticity, implied, "higher") != "differs":
        return status, ""
    if status == compare(our_accuracy, accuracy, "higher") == "reproduced":
        return status, ""
    numbers = f"plasticity {100 * plasticity.mean:.1f}, implied by the paper {100 * implied.mean:.1f}"
    return "differs", f"less was learned ({numbers})"


def compare(value: Spread, paper: Published, better: str) -> Status:
    """Reproduced if within two combined standard deviations or one point, else better or differs.

    >>> compare(Spread(0.95, 0.001, 3), Published(0.945, 0.002), "higher")
    'reproduced'
    >>> compare(Spread(0.90, 0.001, 3), Published(0.945, 0.002), "lower")
    'better'
    """
    gap = round(value.mean - paper.mean, 9)  # so that one point is exactly one point
    if abs(gap) <= max(POINT, DEVIATIONS * math.hypot(min(value.sd or 0, MOST_DEVIATION), paper.sd or 0)):
        return "reproduced"
    return "better" if (gap > 0) == (better == "higher") else "differs"


def missing(dataset: str, model: str) -> str:
    """What is missing to run a row."""
    if dataset in MISSING_DATA:
        return MISSING_DATA[dataset]
    return MISSING.get(model, "a run (long on a CPU)")


def number_table(numbers: Sequence[Number], machines: Machines, standings: dict[str, str]) -> str:
    """One published table: a row for each method and model, then what is missing for those that were not run.

    `standings` has the place of a forgetting on another backbone.
    """
    rows: dict[tuple[str, str], dict[str, Number]] = {}
    for number in numbers:
        rows.setdefault((number.method, number.model), {})[number.metric] = number
    metrics = [m for m in METRIC_ORDER if any(m in row for row in rows.values())]
    header = ["method", "model", *(f"{m}, {who}" for m in metrics for who in ("paper", "ours")), *ROW_END]
    lines = [_cells(row, metrics, machines, standings) for row in rows.values()]
    return paragraphs(table(header, lines), _not_run([row["accuracy"] for row in rows.values()]))


def _cells(
    row: dict[str, Number], metrics: Sequence[str], machines: Machines, standings: dict[str, str]
) -> tuple[str, ...]:
    first = row["accuracy"]
    rates = []
    for metric in metrics:
        number = row.get(metric)
        rates.append(_paper_text(number) if number else "–")
        rates.append(
            "; ".join(_our_text(sample, number) for sample in number.samples) or "–" if number else "–"
        )
    return (
        first.method,
        first.model,
        *rates,
        _status_text(row, standings),
        machines.letters_of(first.samples) or "–",
        "; ".join(f"`{sweep_command(sample.runs)}`" for sample in first.samples) or "–",
    )


def _status_text(row: dict[str, Number], standings: dict[str, str]) -> str:
    """The statuses of accuracy and forgetting, once if they are the same, with their explanations."""
    judged = [row[metric] for metric in ("accuracy", "forgetting") if metric in row]
    if judged[0].status in ("other backbone", "not run"):
        place = standings.get(judged[-1].key, "")
        return f"**{judged[0].status}**" + (f"; forgetting: {place}" if place else "")
    statuses = {number.status for number in judged}
    text = ", ".join(f"{number.metric} **{number.status}**" for number in judged)
    reasons = "; ".join(dict.fromkeys(reason for number in judged for reason in number.explanation))
    return (f"**{judged[0].status}**" if len(statuses) == 1 else text) + (f": {reasons}" if reasons else "")


def _not_run(numbers: Sequence[Number]) -> str:
    """What is missing for the rows that were not run."""
    reasons: dict[str, list[str]] = {}
    for number in numbers:
        if number.status == "not run":
            reasons.setdefault(number.explanation[0], []).append(f"{number.method} ({number.model})")
    return "\n".join(
        f"- Not run: {', '.join(names)}. Missing: {reason}." for reason, names in reasons.items()
    )


def _paper_text(number: Number) -> str:
    if number.metric == "seconds":
        return f"{number.paper.mean:.2f} ± {number.paper.sd:.2f}"
    return published_rate(number.paper)


def _our_text(sample: Sample, number: Number) -> str:
    where = f"{resolution(sample.stream.features)} px: " if sample.stream.features else ""
    value = sample.spread(number.metric)
    if value is None:
        return f"{where}–"
    if number.metric == "seconds":
        deviation = "" if value.sd is None else f" ± {value.sd:.2f}"
        return f"{where}{value.mean:.2f}{deviation} ({value.seeds})"
    gap = f", {points(value.mean - number.paper.mean)}" if number.status in ("differs", "better") else ""
    return where + rate(value) + gap


def sweep_command(runs: Sequence[Run]) -> str:
    """The command that makes runs which differ in their seed; several commands if they ran on several devices."""
    devices = sorted({str(run.config.get("device")) for run in runs})
    return "; ".join(_on_one_device([r for r in runs if str(r.config.get("device")) == d]) for d in devices)


def _on_one_device(runs: Sequence[Run]) -> str:
    options = [option for option in command(runs[0]).split(" ")[2:] if not option.startswith("seed=")]
    keys = {option.partition("=")[0] for option in options}
    # Defaults can have changed since these runs.
    changes = [(key, value) for key, value in changes_of(runs[0]) if key in BASELINE_KEYS and key not in keys]
    options += [f"{key}={value}" for key, value in changes]
    name = "sweep" if len(runs) > 1 else "run"
    return " ".join(["cop2l", name, *options, f"seed={','.join(str(run.seed) for run in runs)}"])


def joint_tally(numbers: Sequence[Number]) -> str:
    """How many rows with the model of the paper reproduce accuracy and forgetting together."""
    rows: dict[tuple[object, ...], list[Status]] = {}
    for number in numbers:
        if number.model in OWN_MODELS and number.samples and number.metric != "seconds":
            rows.setdefault((*number.title, number.method, number.model), []).append(number.status)
    reproduced = sum(set(statuses) == {"reproduced"} for statuses in rows.values())
    no_worse = sum("differs" not in statuses for statuses in rows.values())
    return (
        f"Of the {len(rows)} rows with the model of the paper, {reproduced} reproduce accuracy and forgetting, and {no_worse}"
        " reproduce or better both."
    )
