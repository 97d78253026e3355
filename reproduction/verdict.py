"""A verdict on a claim: the comparisons behind it, and the word that follows from them."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cop2l.report.groups import Spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from reproduction.machines import of_present_code
from reproduction.markdown import points
from reproduction.numbers import DEVIATIONS, MOST_DEVIATION
from reproduction.ours import Sample, pick, streams

RULES = """\
A gap counts if it exceeds 2 combined standard deviations over the seeds (a single seed is taken to deviate by 2 points);
otherwise the two are level. A claim *holds* if it wins more than half of its comparisons and loses none, *does not hold*
if it loses more than it wins, is one of which we *cannot tell* if nothing counts, and otherwise *holds in part*. CoP2L is
the paper's, at the paper's settings; Replay is the most accurate of the steps and epochs that were run, unless it says
*stated*; gaps are in points, and a bound is the paper's formula, mean over tasks."""
STEPS = {"lr", "epochs"}


class Pair(NamedTuple):
    """Two samples that are compared."""

    ours: Sample
    rival: Sample

    def gap(self, metric: str) -> float:
        """How much larger our number is."""
        return value(self.ours, metric).mean - value(self.rival, metric).mean

    def outcome(self, metric: str) -> int:
        """1 if ours is better, -1 if it is worse, 0 if the gap is within the noise."""
        deviations = (MOST_DEVIATION if (sd := value(s, metric).sd) is None else sd for s in self)
        if abs(self.gap(metric)) <= DEVIATIONS * math.hypot(*deviations):
            return 0
        return 1 if (self.gap(metric) > 0) == (METRICS[metric].better == "higher") else -1


class Verdict(NamedTuple):
    """A claim, who wins each comparison, the numbers in a sentence, the rule, and the runs behind it."""

    claim: str
    outcomes: list[int]
    sentence: str
    rule: str
    behind: list[Sequence[Run]]
    """The runs over seeds, sample by sample."""

    @property
    def word(self) -> str:
        """By `RULES`."""
        won, lost = self.outcomes.count(1), self.outcomes.count(-1)
        if not won and not lost:
            return "cannot tell"
        if lost > won:
            return "does not hold"
        return "holds" if not lost and 2 * won > len(self.outcomes) else "holds in part"

    @property
    def text(self) -> str:
        """An item of a list."""
        if not self.behind:
            return f"- **{self.claim}: {self.word}.** Not run. *Rule*: {self.rule}."
        runs = [run for own in self.behind for run in own]
        seeds = sorted({len(own) for own in self.behind})
        words = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
        words += f" seed{'s' * (seeds != [1])} each; {len(runs)} runs, {sum(map(of_present_code, runs))} of the present code"
        return f"- **{self.claim}: {self.word}.** {self.sentence} ({words}). *Rule*: {self.rule}."


def value(sample: Sample, metric: str) -> Spread:
    """A number that every run has."""
    found = sample.spread(metric)
    assert found is not None, metric
    return found


def published(found: Sequence[Sample]) -> list[Sample]:
    """The paper's CoP2L on every stream."""
    return [sample for stream in streams(found) if (sample := pick(found, stream, "cop2l"))]


def replays(found: Sequence[Sample], varied: set[str]) -> list[Pair]:
    """CoP2L against Replay on every stream, where these settings of Replay may differ from the stated ones."""
    made = []
    for ours in published(found):
        rivals = [s for s in found if (s.stream, s.method) == (ours.stream, "replay")]
        rivals = [s for s in rivals if {key for key, _ in s.changes} <= varied]
        made += [Pair(ours, max(rivals, key=lambda s: value(s, "accuracy").mean))] if rivals else []
    return made


def runs_of(pairs: Sequence[Pair]) -> list[Sequence[Run]]:
    """The runs of every sample of some pairs."""
    return [sample.runs for pair in pairs for sample in pair]


def score(outcomes: Sequence[int], what: str) -> str:
    """How many comparisons are won, level and lost.

    >>> score([1, 0, -1, 1], "streams")
    '2 of 4 streams (1 level, 1 the other way)'
    """
    won, level, lost = (outcomes.count(o) for o in (1, 0, -1))
    return f"{won} of {len(outcomes)} {what} ({level} level, {lost} the other way)"


def gaps(pairs: Sequence[Pair], metric: str) -> str:
    """The mean gap, the least and the largest."""
    every = [pair.gap(metric) for pair in pairs] or [math.nan]
    name = metric.replace("kl", "bound")
    return f"{name} {points(fmean(every))} on average, from {points(min(every))} to {points(max(every))}"
