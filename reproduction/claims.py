"""What the paper claims, and whether our runs bear it out."""

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
from reproduction.verdict import STEPS, Pair, Verdict, gaps, published, replays, runs_of, score, value

FACTOR = 2  # the machines were not idle: times within it are level


def verdicts(found: Sequence[Sample], runs: Sequence[Run]) -> list[Verdict]:
    """One for each claim of the paper."""
    claimed, best = replays(found, set()), replays(found, STEPS)
    halted = [(s, pick(found, s.stream, "cop2l", (("stop", "none"),))) for s in published(found)]
    weights = [
        Pair(ours, rival)
        for own in weighed(found).values()
        for ours in own
        for rival in own
        if rival.changes == (("omega", 1.0), *ours.changes)
    ]
    return [
        non_vacuous(
            [s for s in published(found) if s.spread("ratio-kl") and not any(run.not_valid for run in s.runs)]
        ),
        more_accurate(best, claimed),
        less_forgetting(best),
        helps("Early stopping on the bound helps", [Pair(a, b) for a, b in halted if b], "kl"),
        helps("The weight omega of replayed examples helps", weights),
        task_order(runs),
        cost(claimed),
    ]


def non_vacuous(own: Sequence[Sample]) -> Verdict:
    """Whether the paper's formula stays below 100 %."""
    rule = "a stream is won if every bound by the paper's formula is below 100 %, for every task and seed, else lost"
    if not own:
        return Verdict("Non-vacuous bounds", [], "", rule, [])
    worst = [max(METRICS["worst-kl"].of(run) or 1.0 for run in sample.runs) for sample in own]
    means = sorted((value(s, "kl").mean, s.stream.name) for s in own)
    ends = [f"{rate_text(mean, upwards=True)} % on {name}" for mean, name in (means[0], means[-1])]
    ratio = median(value(s, "ratio-kl").mean for s in own)
    words = f"The worst task of the worst seed is below 100 % on {sum(w < 1 for w in worst)} of {len(own)} streams with"
    words += f" valid certificates, at most {rate_text(max(worst), upwards=True)} %; means over tasks go from {ends[0]}"
    words += f" to {ends[1]}, and are {ratio:.1f} times the test error (median)"
    outcomes = [1 if w < 1 else -1 for w in worst]
    return Verdict("Non-vacuous bounds", outcomes, words, rule, [sample.runs for sample in own])


def more_accurate(best: Sequence[Pair], claimed: Sequence[Pair]) -> Verdict:
    """Whether CoP2L is more accurate than Replay."""
    outcomes = [pair.outcome("accuracy") for pair in best]
    kinds: dict[str, list[int]] = {pair.ours.stream.scenario: [] for pair in best}
    for pair, outcome in zip(best, outcomes, strict=True):
        kinds[pair.ours.stream.scenario].append(outcome)
    split = ", ".join(f"{own.count(1)} of {len(own)} {kind}" for kind, own in kinds.items())
    against = score([pair.outcome("accuracy") for pair in claimed], "streams")
    words = f"More accurate on {score(outcomes, 'streams')}, which is {split}; {gaps(best, 'accuracy')};"
    words += f" against the stated Replay, which is the best that was run on all but {sum(bool(p.rival.changes) for p in best)},"
    words += f" on {against}, {gaps(claimed, 'accuracy')}"
    return Verdict("Beats Replay", outcomes, words, "average accuracy, stream by stream", runs_of(best))


def less_forgetting(pairs: Sequence[Pair]) -> Verdict:
    """Whether CoP2L forgets less than Replay, and not by being less accurate."""
    forgets = [pair.outcome("forgetting") for pair in pairs]
    won = [pair for pair, outcome in zip(pairs, forgets, strict=True) if outcome == 1]
    hollow = [pair for pair in won if pair.outcome("accuracy") < 0]
    outcomes = [0 if pair in hollow else outcome for pair, outcome in zip(pairs, forgets, strict=True)]
    less = sum(pair.outcome("plasticity") < 0 for pair in won)
    words = f"Less forgetting on {score(forgets, 'streams')}, {gaps(pairs, 'forgetting')}; of these {len(won)} it is less"
    words += (
        f" accurate on {len(hollow)}, and learned its tasks less well to begin with (plasticity) on {less}"
    )
    rule = "forgetting, stream by stream; less of it at a lower accuracy counts as level"
    return Verdict("Less forgetting than Replay", outcomes, words, rule, runs_of(pairs))


def helps(claim: str, pairs: Sequence[Pair], *more: str) -> Verdict:
    """Whether CoP2L is better with something than without it, in accuracy, forgetting and more."""
    metrics = ("accuracy", "forgetting", *more)
    outcomes = [pair.outcome(metric) for pair in pairs for metric in metrics]
    names = "; ".join(dict.fromkeys(pair.ours.stream.name for pair in pairs))
    words = f"Better in {score(outcomes, 'comparisons')}: {'; '.join(gaps(pairs, metric) for metric in metrics)}; on {names}"
    rule = f"{', '.join(metrics).replace('kl', 'bound')}, with it against without it, on every stream and with every memory"
    return Verdict(claim, outcomes, words, rule, runs_of(pairs))


def task_order(runs: Sequence[Run]) -> Verdict:
    """Whether the accuracy of CoP2L depends on the order little, and no more than Replay's."""
    outcomes: list[int] = []
    words: list[str] = []
    behind: list[Sequence[Run]] = []
    for stream, methods in sorted(orders(runs).items()):
        for how in ("classes shuffled", "tasks reordered"):
            ours, rival = (
                {tuple(run.config.get(key) for key in ORDERS): run for run in methods.get(f"{m}, {how}", [])}
                for m in ("cop2l", "replay")
            )
            both = sorted(ours.keys() & rival.keys(), key=str)
            words.append(f"{stream.name}, {how}: not run")
            outcomes.append(0)
            if len(both) < 2:
                continue
            ahead = sum(ours[order].accuracy > rival[order].accuracy for order in both)
            own, other = (spread(kind[order].accuracy for order in both).sd or 0 for kind in (ours, rival))
            words[-1] = words[-1].replace(
                "not run", f"{100 * own:.2f} and {100 * other:.2f} over {len(both)} orders"
            )
            words[-1] += f", ahead of Replay in {ahead}"
            outcomes[-1] = (own <= min(other, POINT)) - (own > max(other, POINT))
            behind += [[kind[order]] for kind in (ours, rival) for order in both]
    sentence = f"Deviation of the accuracy over orders, in points, CoP2L's and the stated Replay's: {'; '.join(words)}"
    rule = "won if CoP2L deviates by at most 1 point and no more than Replay, lost if by more than both, level if not run"
    return Verdict("Robust to the task order", outcomes, sentence, rule, behind)


def cost(pairs: Sequence[Pair]) -> Verdict:
    """Whether CoP2L takes less time than Replay, on the same machine."""
    ratios: list[float] = []
    behind: list[Sequence[Run]] = []
    for pair in pairs:
        common = {machine(run) for run in pair.ours.runs} & {machine(run) for run in pair.rival.runs}
        ours, rival = ([run for run in sample.runs if machine(run) in common] for sample in pair)
        if common:
            ratios.append(fmean(run.seconds for run in ours) / fmean(run.seconds for run in rival))
            behind += [ours, rival]
    outcomes = [0 if 1 / FACTOR <= ratio <= FACTOR else 1 if ratio < 1 else -1 for ratio in ratios]
    least, most = (choose(ratios, default=math.nan) for choose in (min, max))
    theirs = {row.key: row.paper.mean for row in tables() if row.metric == "seconds"}
    paper = [s < theirs[r] for key, s in theirs.items() if (r := key.replace("cop2l", "replay")) != key]
    words = f"Faster than the stated Replay on {score(outcomes, 'streams')}, at {median(ratios or [math.nan]):.1f} times its"
    words += f" seconds (median; {least:.1f} to {most:.1f}), on one machine, features cached; in the paper, with the backbone"
    words += f" in the loop, in {sum(paper)} of {len(paper)} rows"
    rule = (
        f"seconds of a run; the machines were not idle, so that times within a factor of {FACTOR} are level"
    )
    return Verdict("Cheaper than Replay", outcomes, words, rule, behind)
