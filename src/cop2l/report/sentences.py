"""The sentences of the page about certificates; they claim no more than the theorem."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from cop2l import text
from cop2l.certificates.bounding import statements
from cop2l.report.certified import certifying_groups, families, result, task_rows
from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Group, not_valid
from cop2l.report.metric import KINDS, METRICS, kinds_in
from cop2l.report.runs import Run
from cop2l.text import P_VALUE, confidence, count, listing, percent

VOIDS = (
    "The examples are not independent: several pictures of one object, neighbouring moments, copies of a row.",
    "The settings were chosen after looking at the data that certifies.",
    "This run was chosen among several because of its bound.",
    "The model is used on other data: drift, other customers, later tasks.",
    "The parameters were changed after the certificate was issued.",
)
BEST = "If this run is the best of up to a million settings that were fixed in advance, the largest bound on a task is"
DOES_NOT_SAY = (
    (
        "That the true error of this model is below the bound with probability 1 − δ. The probability is over all samples that"
        " could have been drawn; for the sample that was drawn, the bound either holds or does not."
    ),
    (
        "Anything about single examples, or about classes and groups that it does not list: their accuracy is only a"
        " measurement on the test part."
    ),
    "Anything about the mean over seeds: each run's certificate holds by itself.",
    (
        "That the bound is the smallest possible. A hold-out set is the usual alternative; if its bound is smaller, it is"
        " the better certificate. The kind of bound is fixed in advance: to choose the smallest of several"
        " afterwards, each needs a smaller δ."
    ),
)
MOST_LISTED = 10
"""With more tasks, only the largest bound is listed."""
VERDICTS = (
    ("0", "valid"),
    ("1", "invalid"),
    ("2", "cannot tell, for instance because data are missing"),
    ("3", "the check could not be made"),
)


def headline(groups: Sequence[Group]) -> str:
    """The result in one line: what is not valid, or else what is certified and measured."""
    if not groups:
        return "No finished run"
    if doubtful := not_valid(groups):
        return f"Not valid: the certificates of {listing([who for who, _ in doubtful])} guarantee nothing"
    certain = certifying_groups(groups)
    measured = f"; measured {_span(map(_measured, certain or groups))} %" + " error" * (not certain)
    measured += " on average" * (groups[0].benchmark.tasks > 1)
    if not certain:
        if any(map(result, groups)):
            return no_break(f"Nothing certified: the bound reaches 100 %{measured}")
        claims = [claim.sentence for group in groups for claim in families(group)]
        if not claims:
            return no_break(f"Nothing certified{measured}")
        return no_break(f"Certified: {claims[0][0].lower()}{claims[0][1:-1]}")
    results = [group_result for group in certain if (group_result := result(group))]
    about = {group_result.about for group_result in results}
    seeds = len(certain[0].runs)
    who = f" by {certain[0].label}" if len(certain) == 1 < len(groups) else ""
    worst = f" (the worst of {seeds} runs)" if len(certain) == 1 < seeds else ""
    streams = len({group.benchmark for group in groups})
    where = f" on {len({group.benchmark for group in certain})} of {streams} streams" if streams > 1 else ""
    at_most = _span((group_result.at_most for group_result in results), upwards=True)
    return no_break(
        f"Certified{where}{who}: at most {at_most} % {about.pop() if len(about) == 1 else 'error'}{worst}{measured}"
    )


def claim(group: Group) -> list[str]:
    """The claim of a group: a sentence for the bounds of the tasks, then one for each other family."""
    rows, whose = task_rows(group), "every run's" if len(group.runs) > 1 else "the"
    over = " (the largest bound over the runs)" * (len(group.runs) > 1)
    if len(rows) > MOST_LISTED:
        worst = max(rows, key=lambda row: row.at_most)
        bounds = f"{rate_text(worst.at_most, upwards=True)} % on each of the {len(rows)} tasks"
        bounds += f"; the largest bound is that of task {worst.task}"
    else:
        bounds = listing([f"{rate_text(row.at_most, upwards=True)} % on task {row.task}" for row in rows])
    claims = [f"Of new examples, {whose} model misclassifies at most {bounds}{over}."] if rows else []
    claims += [family.sentence for family in families(group)]
    return [no_break(group.runs[0].names.with_names(sentence)) for sentence in claims]


def meaning(groups: Sequence[Group]) -> str:
    """The probability with which the claims of groups hold, each run by itself; the lowest, if their deltas differ."""
    runs = [run for group in groups for run in group.runs]
    likely = f"at least {confidence(max(run.delta or 0 for run in runs))}"
    who = "each run's statements" if len(runs) > 1 else "all of these statements"
    return no_break(
        f"With probability {likely} over the draw of the training data, {who} hold at once. If learning were repeated with"
        f" fresh data from the same sources, {likely} of the certificates would hold in the long run. A new example is one"
        " from the same source as the training data of its task."
    )


def best_of_a_million(groups: Sequence[Group]) -> list[str]:
    """The largest bound on a task of a single run, at a delta that allows for a choice among a million settings."""
    certificates = [run.certificate for group in groups for run in group.runs]
    if len(certificates) > 1 or not (certificate := certificates[0]):
        return []
    options = replace(certificate.options, delta=certificate.options.delta / 10**6)
    values = [s["value"] for s in statements(options, certificate.records) if s["family"] == "tasks"]
    return [no_break(f"{BEST} {percent(max(values))}.")] if values else []


def context(group: Group) -> str:
    """The kind of the bound; then its mean beside those of the paper's formula and of a hold-out for the same runs."""
    label = KINDS[group.kind].label if group.kind in KINDS else group.kind
    sentences = [f"The bound is of the kind “{label}”."]
    claim = METRICS["bound"].over_seeds(group)
    for kind, name in (("kl", "the paper's formula"), ("holdout", "a hold-out")):
        alternative = METRICS[kind].over_seeds(group)
        if claim and alternative and group.kind != kind:
            sentences.append(
                f"Averaged over tasks it is {rate_text(claim, upwards=True)} %;"
                f" {name} gives {rate_text(alternative, upwards=True)} % for the same runs."
            )
    return no_break(" ".join(sentences))


def tasks_above_claim(run: Run) -> list[tuple[float, str]]:
    """The p-value and a sentence for each task of a run whose test error is above its claim."""
    above = text.tasks_above_claim(map(vars, run.tasks), run.kind)
    return [(p, run.names.with_names(sentence)) for p, sentence in above]


def all_exceeded(groups: Sequence[Group]) -> list[str]:
    """How often a test error is above the claim in each group, its least probable case, and the meaning of the p-value."""
    sentences = []
    for group in groups:
        if exceeded := [(*task, run.seed) for run in group.runs for task in tasks_above_claim(run)]:
            _, sentence, seed = min(exceeded)
            sentences.append(
                f"{group.label} on {group.benchmark.stream}: {count(len(exceeded), 'test error')} above the claim in"
                f" {count(len(group.runs), 'run')}; the least probable, seed {seed}: {sentence}"
            )
    return [*map(no_break, sentences), P_VALUE] if sentences else []


def no_break(sentence: str) -> str:
    """The sentence with no-break spaces between a number and its unit or deviation."""
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def opening(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """The line below the title of the page: how many runs of which methods on which streams."""
    if not groups:
        return ""
    methods, streams = (
        listing(list(dict.fromkeys(names)))
        for names in ((group.method for group in groups), (group.benchmark.stream for group in groups))
    )
    return f"{count(len(runs), 'finished run')} of {methods} on {streams}."


def kinds(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The names and explanations of the kinds of bounds that occur."""
    return [(KINDS[kind].label, KINDS[kind].sentence) for kind in kinds_in(groups)]


def _measured(group: Group) -> float:
    """The mean test error over tasks and runs."""
    return 1 - fmean(run.accuracy for run in group.runs)


def _span(rates: Iterable[float], *, upwards: bool = False) -> str:
    """A rate, or the smallest and the largest of several."""
    values = list(rates)
    ends = dict.fromkeys(rate_text(end, upwards=upwards) for end in (min(values), max(values)))
    return " to ".join(ends)
