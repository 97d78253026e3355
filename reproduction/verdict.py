"""A verdict on a claim of the paper, from the outcomes of comparisons."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from cop2l.text import count
from reproduction.machines import is_present_code
from reproduction.markdown import points
from reproduction.numbers import DEVIATIONS, MOST_DEVIATION
from reproduction.ours import Sample, pick, streams

RULES = """\
- A comparison is won or lost if the gap exceeds 2 combined standard deviations over the seeds, else it is level. The
  deviation of a single seed is taken as 2 points.
- A claim *holds* if it wins more than half of its comparisons and loses none. It *does not hold* if it loses more than it
  wins. We *cannot tell* if all comparisons are level. Otherwise it *holds in part*.
- CoP2L has the paper's settings. The *stated* Replay has them too; the *best* Replay is the most accurate of the learning
  rates and epochs that were run.
- Gaps are in points. A bound is the paper's formula, mean over tasks."""
TUNED = {"lr", "epochs"}
"""The settings in which the best Replay may differ from the stated one."""


class Pair(NamedTuple):
    """CoP2L, and the sample that it is compared with."""

    cop2l: Sample
    rival: Sample

    def gap(self, metric: str) -> float:
        """The number of CoP2L minus that of the rival."""
        return value(self.cop2l, metric).mean - value(self.rival, metric).mean

    def outcome(self, metric: str) -> int:
        """1 if CoP2L is better, -1 if it is worse, 0 if the gap is within the noise."""
        deviations = (MOST_DEVIATION if (sd := value(s, metric).sd) is None else sd for s in self)
        if abs(self.gap(metric)) <= DEVIATIONS * math.hypot(*deviations):
            return 0
        return 1 if (self.gap(metric) > 0) == (METRICS[metric].better == "higher") else -1


class Verdict(NamedTuple):
    """A claim, the outcomes of its comparisons, the numbers in sentences, what is compared, and the runs."""

    claim: str
    outcomes: list[int]
    sentences: str
    comparison: str
    runs: list[Sequence[Run]]
    """The runs of each sample."""

    @property
    def word(self) -> str:
        """The verdict by `RULES`."""
        won, lost = self.outcomes.count(1), self.outcomes.count(-1)
        if not won and not lost:
            return "cannot tell"
        if lost > won:
            return "does not hold"
        return "holds" if not lost and 2 * won > len(self.outcomes) else "holds in part"

    @property
    def text(self) -> str:
        """The verdict as an item of a list."""
        if not self.runs:
            return f"- **{self.claim}: {self.word}.** Compared: {self.comparison}. Not run."
        runs = [run for sample in self.runs for run in sample]
        seeds = sorted({len(sample) for sample in self.runs})
        span = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else count(seeds[0], "seed")
        present = sum(map(is_present_code, runs))
        return (
            f"- **{self.claim}: {self.word}.** Compared: {self.comparison}. {self.sentences} {len(runs)} runs ({present} of the"
            f" present code), {span} each."
        )


def value(sample: Sample, metric: str) -> Spread:
    """A metric that every run has."""
    value = sample.spread(metric)
    assert value is not None, metric
    return value


def published(samples: Sequence[Sample]) -> list[Sample]:
    """The paper's CoP2L on every stream."""
    return [sample for stream in streams(samples) if (sample := pick(samples, stream, "cop2l"))]


def replays(samples: Sequence[Sample], varied: set[str]) -> list[Pair]:
    """CoP2L and the most accurate Replay on every stream; these settings of Replay may differ from the stated ones."""
    pairs = []
    for cop2l in published(samples):
        rivals = [s for s in samples if (s.stream, s.method) == (cop2l.stream, "replay")]
        rivals = [s for s in rivals if {key for key, _ in s.changes} <= varied]
        pairs += [Pair(cop2l, max(rivals, key=lambda s: value(s, "accuracy").mean))] if rivals else []
    return pairs


def runs_of(pairs: Sequence[Pair]) -> list[Sequence[Run]]:
    """The runs of both samples of all pairs."""
    return [sample.runs for pair in pairs for sample in pair]


def score(outcomes: Sequence[int], noun: str) -> str:
    """How many comparisons are won, level and lost.

    >>> score([1, 0, -1, 1], "streams")
    '2 of 4 streams (1 level, 1 worse)'
    """
    won, level, lost = (outcomes.count(o) for o in (1, 0, -1))
    return f"{won} of {len(outcomes)} {noun} ({level} level, {lost} worse)"


def gaps(pairs: Sequence[Pair], metric: str) -> str:
    """The mean gap, the smallest and the largest."""
    values = [pair.gap(metric) for pair in pairs] or [math.nan]
    name = metric.replace("kl", "bound")
    return f"{name} {points(fmean(values))} on average ({points(min(values))} to {points(max(values))})"
