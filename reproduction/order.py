"""The order of the methods on another backbone, beside the order in the paper."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from reproduction.explanations import Explanations
from reproduction.markdown import points, table
from reproduction.numbers import DEVIATIONS, MOST_DEVIATION, POINT, STANDS_FOR, Number, resolution, stands_for
from reproduction.published import Published

REFERENCE = "replay"
FAR = 2
"""A method is far from its place in the paper if it moves by this many places, and by more than a point against Replay."""

Value = Spread | Published


@dataclass(frozen=True)
class Column:
    """One metric of all methods, from the paper or from our runs."""

    title: str
    backbone: str
    """The published backbone, or the one that our features stand for."""
    values: Mapping[str, Value]
    higher: bool

    @property
    def is_ours(self) -> bool:
        """Whether the numbers are ours."""
        return self.title.startswith("ours")

    def rank(self, method: str, among: set[str]) -> int | None:
        """1 plus the number of methods in `among` that are better by more than the noise; None if it has no number."""
        if method not in self.values:
            return None
        value = self.values[method]
        rivals = [v for m, v in self.values.items() if m in among and m != method]
        better = [(v.mean > value.mean) == self.higher and beyond_noise(v, value) for v in rivals]
        return 1 + sum(better)

    def gap(self, method: str) -> float | None:
        """The number of a method minus that of Replay."""
        if method not in self.values or REFERENCE not in self.values:
            return None
        return self.values[method].mean - self.values[REFERENCE].mean


def beyond_noise(a: Value, b: Value) -> bool:
    """Whether a gap exceeds two combined standard deviations; the deviation of a single seed is taken as two points."""
    noise = math.hypot(*(MOST_DEVIATION if v.sd is None else v.sd for v in (a, b)))
    return abs(a.mean - b.mean) > DEVIATIONS * noise


def columns(
    numbers: Sequence[Number], metric: str, references: Mapping[str, Mapping[str, Spread]]
) -> list[Column]:
    """A column for each backbone of the paper and for each kind of our features; `references` adds our other methods."""
    rows = [n for n in numbers if n.metric == metric]
    higher = METRICS[metric].better == "higher"
    paper_columns = [
        Column(f"paper, {model}", model, {n.method: n.paper for n in rows if n.model == model}, higher)
        for model in STANDS_FOR.values()
    ]
    by_features: dict[str, dict[str, Value]] = {}
    for number in rows:
        for sample in number.samples:
            if sample.stream.features and (value := sample.spread(metric)):
                by_features.setdefault(sample.stream.features, {})[number.method] = value
    for features, values in references.items():
        by_features.setdefault(features, {}).update(values)
    kinds = sorted(by_features, key=resolution, reverse=True)
    our_columns = [
        Column(f"ours, {f}", backbone, by_features[f], higher) for f in kinds if (backbone := stands_for(f))
    ]
    return [column for column in paper_columns + our_columns if column.values]


def order_table(
    numbers: Sequence[Number], references: Mapping[str, Mapping[str, Spread]], explanations: Explanations
) -> str:
    """Accuracy, place and gap to Replay of every method; empty if there is no column of ours."""
    shown = columns(numbers, "accuracy", references)
    if not any(c.is_ours for c in shown):
        return ""
    methods = list(dict.fromkeys(m for c in shown for m in c.values))
    lines = [
        (
            method,
            *(_standing(c, method, rivals(shown, c) | {method}) for c in shown),
            _remark(numbers, method, shown, explanations),
        )
        for method in methods
    ]
    remarks = any(line[-1] for line in lines)
    header = ("method", *(c.title for c in shown), *["why the place differs"] * remarks)
    return table(header, lines if remarks else [line[:-1] for line in lines]) + agreements(shown)


def rivals(shown: Sequence[Column], column: Column) -> set[str]:
    """The methods that all columns of the same backbone have: places are among these."""
    return set.intersection(*(set(c.values) for c in shown if c.backbone == column.backbone))


def agreements(shown: Sequence[Column]) -> str:
    """Rank correlations: of our columns with the paper's of the same backbone, and of the paper's two with each other."""
    paper = {c.backbone: c for c in shown if not c.is_ours}
    pairs = [(paper[c.backbone], c) for c in shown if c.is_ours and c.backbone in paper]
    if len(paper) == 2:
        pairs.insert(0, tuple(paper.values()))  # type: ignore[arg-type]
    correlations = [
        f"{b.title} with {a.title}: {value:+.2f}"
        for a, b in pairs
        if (value := agreement_of(a, b)) is not None
    ]
    return f"\n\nRank correlation of the means (Spearman): {'; '.join(correlations)}." if correlations else ""


def standings(numbers: Sequence[Number]) -> dict[str, str]:
    """Place and gap to Replay of each forgetting on another backbone, by the key of its number."""
    shown = columns(numbers, "forgetting", {})
    texts = {}
    for number in numbers:
        same_backbone = [c for c in shown if c.backbone == number.model]
        if number.metric == "forgetting" and number.samples and same_backbone:
            among = rivals(shown, same_backbone[0]) | {number.method}
            places = [_short(c, number.method, among) for c in same_backbone]
            texts[number.key] = "; ".join(place for place in places if place)
    return texts


def agreement_of(first: Column, second: Column) -> float | None:
    """The rank correlation over the methods of both columns; None below three methods."""
    common = set(first.values) & set(second.values)
    if len(common) < 3:
        return None
    a, b = (
        [sum(c.values[m].mean > c.values[r].mean for r in common) for m in sorted(common)]
        for c in (first, second)
    )
    mean_a, mean_b = fmean(a), fmean(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    scale = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return covariance / scale if scale else None


def moved(shown: Sequence[Column], method: str) -> list[Column]:
    """Our columns in which a method is far from its place in all columns of the paper."""
    paper = [c for c in shown if not c.is_ours and method in c.values]
    return [
        column
        for column in shown
        if column.is_ours
        and paper
        and all(_far(column, c, method, rivals(shown, column) | {method}) for c in paper)
    ]


def _far(column: Column, paper: Column, method: str, among: set[str]) -> bool:
    rank, paper_rank = column.rank(method, among), paper.rank(method, among)
    gap, paper_gap = column.gap(method), paper.gap(method)
    if rank is None or paper_rank is None or gap is None or paper_gap is None:
        return False
    return abs(rank - paper_rank) >= FAR and abs(gap - paper_gap) > POINT


def _remark(
    numbers: Sequence[Number], method: str, shown: Sequence[Column], explanations: Explanations
) -> str:
    scenario, dataset, tasks = numbers[0].title
    reasons = [
        explanations.why(
            "order",
            scenario=scenario,
            dataset=dataset,
            tasks=tasks,
            method=method,
            features=c.title.removeprefix("ours, "),
        )
        for c in moved(shown, method)
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
    who = f"{resolution(column.title)} px" if column.is_ours else "paper"
    return f"{who} #{column.rank(method, among)} of {len(among)}{beside}"
