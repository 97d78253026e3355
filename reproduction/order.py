"""On another backbone only the order of the methods and the gaps between them compare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from cop2l.report.published import Published
from reproduction.explanations import Explanations
from reproduction.markdown import points, table
from reproduction.numbers import DEVIATIONS, MOST_DEVIATION, POINT, STANDS_FOR, Number, resolution, stands_for

REFERENCE = "replay"
FAR = 2
"""A method that moves by so many places, and by more than a point against Replay, is worth a sentence."""

Value = Spread | Published
"""A mean and its deviation, ours or the paper's."""


@dataclass(frozen=True)
class Column:
    """One number of every method, from the paper or from us."""

    title: str
    backbone: str
    """The published backbone that it is, or stands for."""
    values: Mapping[str, Value]
    higher: bool

    @property
    def ours(self) -> bool:
        """Whether the runs are ours."""
        return self.title.startswith("ours")

    def rank(self, method: str, among: set[str]) -> int | None:
        """From 1: how many of some methods are better by more than the noise; None if it has no number."""
        if method not in self.values:
            return None
        own = self.values[method]
        rivals = [v for m, v in self.values.items() if m in among and m != method]
        better = [(v.mean > own.mean) == self.higher and beyond_noise(v, own) for v in rivals]
        return 1 + sum(better)

    def gap(self, method: str) -> float | None:
        """How much a method has more than Replay."""
        if method not in self.values or REFERENCE not in self.values:
            return None
        return self.values[method].mean - self.values[REFERENCE].mean


def beyond_noise(one: Value, other: Value) -> bool:
    """Whether a gap exceeds two combined standard deviations; a single seed is taken to deviate by two points."""
    noise = math.hypot(*(MOST_DEVIATION if v.sd is None else v.sd for v in (one, other)))
    return abs(one.mean - other.mean) > DEVIATIONS * noise


def columns(
    shown: Sequence[Number], metric: str, references: Mapping[str, Mapping[str, Spread]]
) -> list[Column]:
    """The paper's backbones, then our kinds of features; `references` adds methods that the paper lacks."""
    rows = [n for n in shown if n.metric == metric]
    higher = METRICS[metric].better == "higher"
    made = [
        Column(f"paper, {model}", model, {n.method: n.paper for n in rows if n.model == model}, higher)
        for model in STANDS_FOR.values()
    ]
    ours: dict[str, dict[str, Value]] = {}
    for number in rows:
        for sample in number.ours:
            if sample.stream.features and (value := sample.spread(metric)):
                ours.setdefault(sample.stream.features, {})[number.method] = value
    for features, values in references.items():
        ours.setdefault(features, {}).update(values)
    kinds = sorted(ours, key=resolution, reverse=True)
    made += [Column(f"ours, {f}", backbone, ours[f], higher) for f in kinds if (backbone := stands_for(f))]
    return [column for column in made if column.values]


def order_table(
    shown: Sequence[Number], references: Mapping[str, Mapping[str, Spread]], why: Explanations
) -> str:
    """Accuracy, rank and gap to Replay of every method, in every column."""
    made = columns(shown, "accuracy", references)
    if not any(c.ours for c in made):
        return ""
    methods = list(dict.fromkeys(m for c in made for m in c.values))
    lines = [
        (
            method,
            *(_standing(c, method, rivals(made, c) | {method}) for c in made),
            _remark(shown, method, made, why),
        )
        for method in methods
    ]
    return table(("method", *(c.title for c in made), "moved far?"), lines) + agreements(made)


def rivals(made: Sequence[Column], column: Column) -> set[str]:
    """The methods that every column of the same backbone has, the paper's and ours: ranks are among these."""
    return set.intersection(*(set(c.values) for c in made if c.backbone == column.backbone))


def agreements(made: Sequence[Column]) -> str:
    """How well each of our columns agrees with the paper's of its backbone, and the paper's two with each other."""
    paper = {c.backbone: c for c in made if not c.ours}
    pairs = [(paper[c.backbone], c) for c in made if c.ours and c.backbone in paper]
    if len(paper) == 2:
        pairs.insert(0, tuple(paper.values()))  # type: ignore[arg-type]
    words = [
        f"{b.title} with {a.title}: {value:+.2f}"
        for a, b in pairs
        if (value := agreement_of(a, b)) is not None
    ]
    return f"\n\nRank correlation (Spearman, of the means): {', '.join(words)}." if words else ""


def standings(shown: Sequence[Number], references: Mapping[str, Mapping[str, Spread]]) -> dict[str, str]:
    """Rank and gap of each row on another backbone, in words."""
    words = {}
    for metric in ("accuracy", "forgetting"):
        made = columns(shown, metric, references if metric == "accuracy" else {})
        for number in shown:
            own = [c for c in made if c.backbone == number.model]
            if number.metric == metric and number.ours and own:
                among = rivals(made, own[0]) | {number.method}
                parts = [_short(c, number.method, among) for c in own]
                words[number.key] = "; ".join(part for part in parts if part)
    return words


def agreement_of(one: Column, other: Column) -> float | None:
    """Spearman's rank correlation over the methods that two columns share; None below three methods."""
    common = set(one.values) & set(other.values)
    if len(common) < 3:
        return None
    a, b = (
        [sum(c.values[m].mean > c.values[r].mean for r in common) for m in sorted(common)]
        for c in (one, other)
    )
    mean_a, mean_b = fmean(a), fmean(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    scale = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return covariance / scale if scale else None


def moved(made: Sequence[Column], method: str) -> list[Column]:
    """Our columns in which a method stands far from where the paper puts it, on every backbone that it ran on."""
    theirs = [c for c in made if not c.ours and method in c.values]
    return [
        column
        for column in made
        if column.ours
        and theirs
        and all(_far(column, c, method, rivals(made, column) | {method}) for c in theirs)
    ]


def _far(column: Column, other: Column, method: str, among: set[str]) -> bool:
    here, there = column.rank(method, among), other.rank(method, among)
    gap, their_gap = column.gap(method), other.gap(method)
    if here is None or there is None or gap is None or their_gap is None:
        return False
    return abs(here - there) >= FAR and abs(gap - their_gap) > POINT


def _remark(shown: Sequence[Number], method: str, made: Sequence[Column], why: Explanations) -> str:
    scenario, dataset, tasks = shown[0].title
    reasons = [
        why.why(
            "order",
            scenario=scenario,
            dataset=dataset,
            tasks=tasks,
            method=method,
            features=c.title.removeprefix("ours, "),
        )
        for c in moved(made, method)
    ]
    return "; ".join(dict.fromkeys(reasons))


def _standing(column: Column, method: str, among: set[str]) -> str:
    if method not in column.values:
        return "–"
    gap = column.gap(method)
    beside = f", {points(gap)}" if gap is not None and method != REFERENCE else ""
    place = f" (#{column.rank(method, among)}{beside})" if among - {method} else ""
    return f"{100 * column.values[method].mean:.2f}{place}"


def _short(column: Column, method: str, among: set[str]) -> str:
    if method not in column.values:
        return ""
    gap = column.gap(method)
    beside = f", {points(gap)} to Replay" if gap is not None and method != REFERENCE else ""
    who = f"{resolution(column.title)} px" if column.ours else "paper"
    return f"{who} #{column.rank(method, among)} of {len(among)}{beside}"
