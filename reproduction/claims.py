"""The claims of the paper, judged by our runs."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import spread
from cop2l.report.metric import METRICS
from cop2l.report.runs import Run
from reproduction.ablations import orders, weighed
from reproduction.machines import machine
from reproduction.numbers import POINT
from reproduction.ours import ORDERS, Sample, pick
from reproduction.published import tables
from reproduction.verdict import TUNED, Pair, Verdict, gaps, published, replays, runs_of, score, value

FACTOR = 2
"""Times within this factor are level: the machines were not idle."""


def verdicts(samples: Sequence[Sample], runs: Sequence[Run]) -> list[Verdict]:
    """A verdict on each claim of the paper."""
    stated_pairs, best_pairs = replays(samples, set()), replays(samples, TUNED)
    unstopped = [(s, pick(samples, s.stream, "cop2l", (("stop", "none"),))) for s in published(samples)]
    weights = [
        Pair(sample, rival)
        for stream_samples in weighed(samples).values()
        for sample in stream_samples
        for rival in stream_samples
        if rival.changes == (("omega", 1.0), *sample.changes)
    ]
    certified = [s for s in published(samples) if s.spread("ratio-kl")]
    return [
        non_vacuous([s for s in certified if not any(run.not_valid for run in s.runs)]),
        more_accurate(best_pairs, stated_pairs),
        less_forgetting(best_pairs),
        helps("Early stopping on the bound helps", [Pair(a, b) for a, b in unstopped if b], "kl"),
        helps("The weight omega of replayed examples helps", weights),
        task_order(runs),
        cost(stated_pairs),
    ]


def non_vacuous(samples: Sequence[Sample]) -> Verdict:
    """Whether the paper's formula stays below 100 %."""
    claim, comparison = (
        "Non-vacuous bounds",
        "whether all bounds of a stream, for every task and seed, are below 100 %",
    )
    if not samples:
        return Verdict(claim, [], "", comparison, [])
    worst = [max(METRICS["worst-kl"].of(run) or 1.0 for run in sample.runs) for sample in samples]
    means = sorted((value(s, "kl").mean, s.stream.name) for s in samples)
    smallest, largest = (
        f"{rate_text(mean, upwards=True)} % on {name}" for mean, name in (means[0], means[-1])
    )
    ratio = median(value(s, "ratio-kl").mean for s in samples)
    sentences = (
        f"They are on {sum(w < 1 for w in worst)} of {len(samples)} streams with valid certificates; the largest is"
        f" {rate_text(max(worst), upwards=True)} %. Means over tasks are between {smallest} and {largest}, and {ratio:.1f} times"
        " the test error (median)."
    )
    return Verdict(
        claim, [1 if w < 1 else -1 for w in worst], sentences, comparison, [s.runs for s in samples]
    )


def more_accurate(best_pairs: Sequence[Pair], stated_pairs: Sequence[Pair]) -> Verdict:
    """Whether CoP2L is more accurate than Replay."""
    outcomes = [pair.outcome("accuracy") for pair in best_pairs]
    by_scenario: dict[str, list[int]] = {pair.cop2l.stream.scenario: [] for pair in best_pairs}
    for pair, outcome in zip(best_pairs, outcomes, strict=True):
        by_scenario[pair.cop2l.stream.scenario].append(outcome)
    scenarios = ", ".join(f"{own.count(1)} of {len(own)} {name}" for name, own in by_scenario.items())
    stated_score = score([pair.outcome("accuracy") for pair in stated_pairs], "streams")
    sentences = (
        f"More accurate on {score(outcomes, 'streams')}: {scenarios}; {gaps(best_pairs, 'accuracy')}. Against the stated Replay,"
        f" which is not the best on {sum(bool(p.rival.changes) for p in best_pairs)} streams: on {stated_score};"
        f" {gaps(stated_pairs, 'accuracy')}."
    )
    comparison = "average accuracy with that of the best Replay, stream by stream"
    return Verdict("More accurate than Replay", outcomes, sentences, comparison, runs_of(best_pairs))


def less_forgetting(pairs: Sequence[Pair]) -> Verdict:
    """Whether CoP2L forgets less than Replay without being less accurate."""
    forgetting = [pair.outcome("forgetting") for pair in pairs]
    won = [pair for pair, outcome in zip(pairs, forgetting, strict=True) if outcome == 1]
    inaccurate = [pair for pair in won if pair.outcome("accuracy") < 0]
    outcomes = [0 if pair in inaccurate else outcome for pair, outcome in zip(pairs, forgetting, strict=True)]
    sentences = (
        f"Less forgetting on {score(forgetting, 'streams')}; {gaps(pairs, 'forgetting')}. On {len(inaccurate)} of these"
        f" {len(won)} streams CoP2L is also less accurate, which counts as level; on"
        f" {sum(pair.outcome('plasticity') < 0 for pair in won)} its plasticity is lower."
    )
    comparison = "forgetting with that of the best Replay, stream by stream"
    return Verdict("Less forgetting than Replay", outcomes, sentences, comparison, runs_of(pairs))


def helps(claim: str, pairs: Sequence[Pair], *further_metrics: str) -> Verdict:
    """Whether CoP2L is better with a setting than without it."""
    metrics = ("accuracy", "forgetting", *further_metrics)
    outcomes = [pair.outcome(metric) for pair in pairs for metric in metrics]
    streams = "; ".join(dict.fromkeys(pair.cop2l.stream.name for pair in pairs))
    sentences = f"Better in {score(outcomes, 'comparisons')}: {'; '.join(gaps(pairs, m) for m in metrics)}. Run on {streams}."
    names = ", ".join(metrics).replace("kl", "bound")
    comparison = f"{names}, with and without it, on every stream and for every memory"
    return Verdict(claim, outcomes, sentences, comparison, runs_of(pairs))


def task_order(runs: Sequence[Run]) -> Verdict:
    """Whether the accuracy of CoP2L varies little over task orders, and no more than Replay's."""
    outcomes: list[int] = []
    sentences: list[str] = []
    compared: list[Sequence[Run]] = []
    for stream, methods in sorted(orders(runs).items()):
        for shuffle in ("classes shuffled", "tasks reordered"):
            cop2l, replay = (
                {
                    tuple(run.config.get(key) for key in ORDERS): run
                    for run in methods.get(f"{m}, {shuffle}", [])
                }
                for m in ("cop2l", "replay")
            )
            both = sorted(cop2l.keys() & replay.keys(), key=str)
            if len(both) < 2:
                sentences.append(f"{stream.name}, {shuffle}: not run")
                outcomes.append(0)
                continue
            ahead = sum(cop2l[order].accuracy > replay[order].accuracy for order in both)
            sd, replay_sd = (spread(by[order].accuracy for order in both).sd or 0 for by in (cop2l, replay))
            sentences.append(
                f"{stream.name}, {shuffle}: {100 * sd:.2f} and {100 * replay_sd:.2f} over {len(both)} orders, more accurate"
                f" in {ahead}"
            )
            outcomes.append((sd <= min(replay_sd, POINT)) - (sd > max(replay_sd, POINT)))
            compared += [[by[order]] for by in (cop2l, replay) for order in both]
    comparison = (
        "the deviation of the accuracy over orders. Won if CoP2L's is at most 1 point and at most Replay's, lost if it is more"
        " than both"
    )
    text = f"CoP2L's and the stated Replay's, in points: {'; '.join(sentences)}."
    return Verdict("Robust to the task order", outcomes, text, comparison, compared)


def cost(pairs: Sequence[Pair]) -> Verdict:
    """Whether CoP2L takes less time than Replay on the same machine."""
    ratios: list[float] = []
    compared: list[Sequence[Run]] = []
    for pair in pairs:
        common = {machine(run) for run in pair.cop2l.runs} & {machine(run) for run in pair.rival.runs}
        cop2l, replay = ([run for run in sample.runs if machine(run) in common] for sample in pair)
        if common:
            ratios.append(fmean(run.seconds for run in cop2l) / fmean(run.seconds for run in replay))
            compared += [cop2l, replay]
    outcomes = [0 if 1 / FACTOR <= ratio <= FACTOR else 1 if ratio < 1 else -1 for ratio in ratios]
    least, largest = (choose(ratios, default=math.nan) for choose in (min, max))
    seconds = {row.key: row.paper.mean for row in tables() if row.metric == "seconds"}
    rivals = {key: key.replace("cop2l", "replay") for key in seconds}
    paper = [
        seconds[key] < seconds[rival] for key, rival in rivals.items() if rival in seconds and rival != key
    ]
    sentences = (
        f"Faster on {score(outcomes, 'streams')}; {median(ratios or [math.nan]):.1f} times the seconds of Replay"
        f" (median; {least:.1f} to {largest:.1f}), on cached features. In the paper, with the backbone in the training loop,"
        f" CoP2L is faster in {sum(paper)} of {len(paper)} rows."
    )
    comparison = f"seconds of a run with those of the stated Replay on the same machine; level within a factor of {FACTOR}"
    return Verdict("Cheaper than Replay", outcomes, sentences, comparison, compared)
