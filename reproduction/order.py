"""On another backbone only the order of the methods and the gaps between them compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from cop2l.report.metric import METRICS
from reproduction.explanations import Explanations
from reproduction.markdown import points, table
from reproduction.numbers import POINT, STANDS_FOR, Number, resolution

REFERENCE = "replay"
BACKBONES = (STANDS_FOR, "dino-resnet50")
FAR = 2
"""A method that moves by so many places, and by more than a point against Replay, is worth a sentence."""


@dataclass(frozen=True)
class Column:
    """One number of every method, from the paper or from us."""

    title: str
    values: Mapping[str, float]
    higher: bool

    def rank(self, method: str, among: set[str]) -> int | None:
        """The place of a method among some methods, from 1."""
        if method not in self.values:
            return None
        rivals = [v for m, v in self.values.items() if m in among and m != method]
        own = self.values[method]
        return 1 + sum(v > own if self.higher else v < own for v in rivals)

    def gap(self, method: str) -> float | None:
        """How much a method has more than Replay."""
        if method not in self.values or REFERENCE not in self.values:
            return None
        return self.values[method] - self.values[REFERENCE]


def columns(
    shown: Sequence[Number], metric: str, references: Mapping[str, Mapping[str, float]]
) -> list[Column]:
    """The paper's backbones, then our kinds of features; `references` adds methods that the paper lacks."""
    rows = [n for n in shown if n.metric == metric]
    higher = METRICS[metric].better == "higher"
    made = [
        Column(f"paper, {model}", {n.method: n.paper.mean for n in rows if n.model == model}, higher)
        for model in BACKBONES
    ]
    ours: dict[str, dict[str, float]] = {}
    for number in rows:
        for sample in number.ours:
            value = sample.spread(metric)
            if value is not None and number.model == STANDS_FOR:
                ours.setdefault(sample.stream.features, {})[number.method] = value.mean
    for features, values in references.items():
        ours.setdefault(features, {}).update(values)
    kinds = sorted(ours, key=resolution, reverse=True)
    return [c for c in [*made, *(Column(f"ours, {f}", ours[f], higher) for f in kinds)] if c.values]


def order_table(
    shown: Sequence[Number], references: Mapping[str, Mapping[str, float]], why: Explanations
) -> str:
    """Accuracy, rank and gap to Replay of every method, in every column."""
    made = columns(shown, "accuracy", references)
    ours = [c for c in made if c.title.startswith("ours")]
    if not ours:
        return ""
    ranked = ranked_methods(made)
    methods = list(dict.fromkeys(m for c in made for m in c.values))
    lines = [
        (method, *(_standing(c, method, ranked | {method}) for c in made), _remark(shown, method, made, why))
        for method in methods
    ]
    agreement = ", ".join(
        f"{c.title}: {value:+.2f}" for c in made[1:] if (value := agreement_of(made[0], c)) is not None
    )
    words = (
        f"Rank correlation with the paper's {STANDS_FOR} order (Spearman): {agreement}." if agreement else ""
    )
    return table(("method", *(c.title for c in made), "moved far?"), lines) + (
        f"\n\n{words}" if words else ""
    )


def ranked_methods(made: Sequence[Column]) -> set[str]:
    """The methods that the paper's first backbone and ours have in common: ranks are among these."""
    common = set(made[0].values) if made else set()
    for column in made:
        if column.title.startswith("ours"):
            common &= set(column.values)
    return common


def standings(shown: Sequence[Number], references: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Rank and gap of each row on another backbone, in words."""
    words = {}
    for metric in ("accuracy", "forgetting"):
        made = columns(shown, metric, references if metric == "accuracy" else {})
        ranked = ranked_methods(made)
        for number in shown:
            if number.metric != metric or number.model != STANDS_FOR or not number.ours:
                continue
            among = ranked | {number.method}
            parts = [_short(c, number.method, among) for c in (made[0], *made[1:]) if "resnet" not in c.title]
            words[number.key] = "; ".join(part for part in parts if part)
    return words


def agreement_of(one: Column, other: Column) -> float | None:
    """Spearman's rank correlation over the methods that two columns share; None below three methods."""
    common = set(one.values) & set(other.values)
    if len(common) < 3:
        return None
    a, b = ([c.rank(m, common) or 0 for m in sorted(common)] for c in (one, other))
    mean_a, mean_b = fmean(a), fmean(b)
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    scale = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return covariance / scale if scale else None


def moved(made: Sequence[Column], method: str) -> list[Column]:
    """Our columns in which a method stands far from where both of the paper's backbones put it."""
    ranked = ranked_methods(made) | {method}
    theirs = [c for c in made if c.title.startswith("paper") and method in c.values]
    return [
        column
        for column in made
        if column.title.startswith("ours") and theirs and all(_far(column, c, method, ranked) for c in theirs)
    ]


def _far(column: Column, other: Column, method: str, among: set[str]) -> bool:
    here, there = column.rank(method, among), other.rank(method, among)
    gap, their_gap = column.gap(method), other.gap(method)
    if here is None or there is None or gap is None or their_gap is None:
        return False
    return abs(here - there) >= FAR and abs(gap - their_gap) > POINT


def _remark(shown: Sequence[Number], method: str, made: Sequence[Column], why: Explanations) -> str:
    far = moved(made, method)
    if not far:
        return ""
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
        for c in far
    ]
    return "; ".join(dict.fromkeys(reasons))


def _standing(column: Column, method: str, among: set[str]) -> str:
    if method not in column.values:
        return "–"
    gap = column.gap(method)
    beside = f", {points(gap)}" if gap is not None and method != REFERENCE else ""
    place = f" (#{column.rank(method, among)}{beside})" if method in among and among - {method} else ""
    return f"{100 * column.values[method]:.2f}{place}"


def _short(column: Column, method: str, among: set[str]) -> str:
    if method not in column.values:
        return ""
    gap = column.gap(method)
    beside = f", {points(gap)} to Replay" if gap is not None and method != REFERENCE else ""
    who = column.title.removeprefix("ours, ").replace(f"paper, {STANDS_FOR}", "paper")
    who = who if who == "paper" else f"{resolution(who)} px"
    return f"{who} #{column.rank(method, among)} of {len(among)}{beside}"
