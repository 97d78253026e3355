"""One row per published number: what the paper says, what we get, and how the two stand to each other."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from cop2l.report.published import Published
from cop2l.report.runs import Run
from reproduction.collect import command
from reproduction.explanations import UNEXPLAINED, Explanations
from reproduction.machines import Machines
from reproduction.markdown import paragraphs, points, published_rate, rate, table
from reproduction.ours import BASELINE_KEYS, Sample, Setup, changes_of, pick
from reproduction.published import Printed, tables

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
"""Our own deviation counts up to two points: runs that scatter more have reproduced nothing."""
OWN_MODELS = ("mlp", "cnn")
"""Models that we train as the paper does; the others are frozen backbones."""
STANDS_FOR = {"dinov2-vits14": "dino-vit", "resnet50-imagenet": "dino-resnet50"}
"""The published backbone that each of ours is compared with."""
NEAREST_MEAN = ("icarl", "linear")
"""Where iCaRL trains nothing below its head, it is herded nearest-mean."""
MISSING = {
    "dino-resnet50": "weights of the DINO ResNet50 (on the web only)",
    "dino-vit": "a run on our features",
    "resnet18": "weights of the ImageNet ResNet18 (on the web only)",
}
MISSING_DATA = {"emnist-letters": "the EMNIST letters (on the web only)"}
HEADER = ("method", "model", "number", "paper", "ours (seeds)", "status", "command", "machine, seconds a run")


@dataclass(frozen=True)
class Number(Printed):
    """A published number and ours."""

    ours: tuple[Sample, ...]
    """One sample, or one per kind of features; none if it was not run."""
    status: Status
    words: str

    @property
    def title(self) -> tuple[str, str, int]:
        """The table that it stands in."""
        return self.scenario, self.dataset, self.tasks


def numbers(found: Sequence[Sample], why: Explanations) -> list[Number]:
    """Every number of the published tables."""
    made = []
    accuracy = {row.key: row.paper for row in tables()}
    for row in tables():
        ours = counterparts(found, row)
        status, less = judged(ours, row.paper, row.metric, row.model), ""
        if row.metric == "forgetting" and status in ("reproduced", "better"):
            status, less = jointly(ours[0], row, accuracy[row.key.replace("forgetting", "accuracy")], status)
        words = ""
        if status == "not run":
            words = f"missing: {missing(row.dataset, row.model)}"
        elif status == "differs":
            reason = why.why("differs", **vars(row))
            words = "; ".join(filter(None, (less, reason if reason != UNEXPLAINED or not less else "")))
        made.append(Number(**vars(row), ours=ours, status=status, words=words))
    return made


def counterparts(found: Sequence[Sample], row: Printed) -> tuple[Sample, ...]:
    """Our samples for a published row, with the published settings; for its backbones, on other features."""
    if row.model in OWN_MODELS:
        sample = pick(found, Setup(row.dataset, "", row.scenario, row.tasks, row.model), row.method)
        return (sample,) if sample else ()
    head = "multi-head" if row.scenario == "task-incremental" else "linear"
    kinds = {s.stream.features for s in found if stands_for(s.stream.features) == row.model}
    picked = [
        pick(found, Setup(row.dataset, kind, row.scenario, row.tasks, head), row.method)
        for kind in sorted(kinds, key=resolution, reverse=True)
    ]
    return tuple(sample for sample in picked if sample)


def resolution(features: str) -> int:
    """The side of the pictures that features were made of.

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


def judged(ours: Sequence[Sample], paper: Published, metric: str, model: str) -> Status:
    """How our number stands to the published one."""
    if not ours:
        return "not run"
    if metric == "seconds":
        return "other hardware"
    if model not in OWN_MODELS:
        return "other backbone"
    value = ours[0].spread(metric)
    if value is None:
        return "not run"
    return compared(value, paper, METRICS[metric].better)


def jointly(ours: Sample, row: Printed, accuracy: Published, status: Status) -> tuple[Status, str]:
    """Forgetting where less was learned is not better, and reproduced only together with the accuracy."""
    share = 1 - 1 / row.tasks
    deviation = math.hypot(accuracy.sd or 0, share * (row.paper.sd or 0))
    implied = Published(accuracy.mean + share * row.paper.mean, deviation)
    learned, own = ours.spread("plasticity"), ours.spread("accuracy")
    if learned is None or own is None or compared(learned, implied, "higher") != "differs":
        return status, ""
    if status == compared(own, accuracy, "higher") == "reproduced":
        return status, ""
    words = f"plasticity {100 * learned.mean:.1f} against the paper's implied {100 * implied.mean:.1f}"
    return "differs", f"less was learned to begin with ({words})"


def compared(ours: Spread, paper: Published, better: str) -> Status:
    """Reproduced: within two combined standard deviations or one point; otherwise better, or it differs.

    >>> compared(Spread(0.95, 0.001, 3), Published(0.945, 0.002), "higher")
    'reproduced'
    >>> compared(Spread(0.90, 0.001, 3), Published(0.945, 0.002), "lower")
    'better'
    """
    gap = round(ours.mean - paper.mean, 9)  # one point is one point, whatever the binary digits
    if abs(gap) <= max(POINT, DEVIATIONS * math.hypot(min(ours.sd or 0, MOST_DEVIATION), paper.sd or 0)):
        return "reproduced"
    return "better" if (gap > 0) == (better == "higher") else "differs"


def missing(dataset: str, model: str) -> str:
    """What a row that was not run would need."""
    if dataset in MISSING_DATA:
        return MISSING_DATA[dataset]
    return MISSING.get(model, "a run (long on a CPU)")


def number_table(shown: Sequence[Number], machines: Machines, standings: dict[str, str]) -> str:
    """The rows of one published table; `standings` has rank and gap of a row on another backbone."""
    return table(HEADER, [_cells(number, machines, standings) for number in shown])


def _cells(number: Number, machines: Machines, standings: dict[str, str]) -> tuple[str, ...]:
    seconds = number.metric == "seconds"
    words = standings.get(number.key, "") if number.status == "other backbone" else number.words
    return (
        number.method,
        number.model,
        number.metric,
        f"{number.paper.mean:.2f} ± {number.paper.sd:.2f} s" if seconds else published_rate(number.paper),
        "; ".join(_ours(sample, number) for sample in number.ours) or "–",
        f"**{number.status}**" + (f": {words}" if words else ""),
        "; ".join(f"`{sweep_command(sample.runs)}`" for sample in number.ours) or "–",
        "; ".join(machines.cell(sample) for sample in number.ours) or "–",
    )


def _ours(sample: Sample, number: Number) -> str:
    where = f"{resolution(sample.stream.features)} px: " if sample.stream.features else ""
    if number.model == "dino-resnet50":
        where = "supervised ResNet50, " + where
    if (sample.method, sample.stream.model) == NEAREST_MEAN:
        where += "herded nearest-mean, "
    value = sample.spread(number.metric)
    if value is None:
        return f"{where}–"
    if number.metric == "seconds":
        deviation = "" if value.sd is None else f" ± {value.sd:.2f}"
        return f"{where}{value.mean:.2f}{deviation} s ({value.seeds})"
    words = rate(value)
    if number.status in ("differs", "better"):
        words += f", {points(value.mean - number.paper.mean)}"
    return where + words


def sweep_command(runs: Sequence[Run]) -> str:
    """The command that makes all these runs, which differ in their seed; one command per device that they ran on."""
    devices = sorted({str(run.config.get("device")) for run in runs})
    return "; ".join(_on_one_device([r for r in runs if str(r.config.get("device")) == d]) for d in devices)


def _on_one_device(runs: Sequence[Run]) -> str:
    words = command(runs[0]).split(" ")[2:]
    given = {word.partition("=")[0] for word in words}
    # What was a default when it was run may be another one now.
    words += [
        f"{key}={value}" for key, value in changes_of(runs[0]) if key in BASELINE_KEYS and key not in given
    ]
    kept = [word for word in words if not word.startswith("seed=")]
    name = "sweep" if len(runs) > 1 else "run"
    return " ".join(["cop2l", name, *kept, f"seed={','.join(str(run.seed) for run in runs)}"])


def tally(all_numbers: Sequence[Number]) -> str:
    """How many numbers have which status."""
    counts = Counter(number.status for number in all_numbers)
    return paragraphs(
        table(("status", "numbers"), [(status, str(counts[status])) for status in STATUSES]),
        both(all_numbers),
    )


def both(all_numbers: Sequence[Number]) -> str:
    """How many rows with the paper's model reproduce accuracy and forgetting together."""
    rows: dict[tuple[object, ...], list[Status]] = {}
    for number in all_numbers:
        if number.model in OWN_MODELS and number.ours and number.metric != "seconds":
            rows.setdefault((*number.title, number.method, number.model), []).append(number.status)
    same = sum(set(own) == {"reproduced"} for own in rows.values())
    good = sum("differs" not in own for own in rows.values())
    return (
        f"Accuracy and forgetting together: of {len(rows)} methods run with the same model, {same} reproduce both numbers, and"
        f" {good} reproduce or better both."
    )
