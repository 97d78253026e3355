"""What the page says about certificates, in words that claim no more than the theorem."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from cop2l.certify.bounding import statements
from cop2l.certify.certificate import read_certificate
from cop2l.errors import UserError
from cop2l.report.certified import certifying_groups, families, result, task_rows
from cop2l.report.figures.figure import rate_text
from cop2l.report.groups import Group, not_valid
from cop2l.report.metric import KINDS, METRICS, kinds_in
from cop2l.report.runs import Run
from cop2l.text import P_VALUE, above_claim, confidence, count, listing, nothing_picked, p_value, percent

VOIDS = (
    "Examples that are not independent: several pictures of one object, neighbouring moments, copies of a row.",
    "Settings that were chosen after looking at the data that certifies.",
    "A choice of this run among several because of its bound.",
    "Other data than the training data: drift, other customers, tasks that came later.",
    "A change of the parameters after the certificate was issued.",
)
BEST = "If the run was chosen as the best of up to a million settings that were fixed in advance, the largest bound on a task is"
DOES_NOT_SAY = (
    (
        "That this model's true error is below the bound with probability 1 − δ. The probability is over samples that"
        " might have been drawn; for the sample that was drawn, the bound holds or it does not."
    ),
    (
        "Anything about single examples, nor about classes or groups unless it lists them. Otherwise the accuracy of a class is"
        " a measurement on the test part."
    ),
    "Anything about the mean over seeds: each run's certificate holds by itself.",
    (
        "That the bound is the best to be had. A hold-out set is the usual alternative; where its bound is smaller, it is"
        " the tighter certificate. One kind of bound is named as the claim in advance: taking the smallest of several"
        " afterwards would need a smaller δ for each."
    ),
)
MOST_LISTED = 10
VERDICTS = (
    ("0", "valid"),
    ("1", "not valid"),
    ("2", "cannot tell, for instance because the data are missing"),
    ("3", "the check could not be made"),
)


def headline(groups: Sequence[Group]) -> str:
    """The result in one line: what is not valid, else what is certified and measured, else that nothing is."""
    if not groups:
        return "No finished run"
    if doubtful := not_valid(groups):
        return f"Not valid: the certificates of {listing([who for who, _ in doubtful])} guarantee nothing"
    certain = certifying_groups(groups)
    measured = f"; measured {_span(map(_measured, certain or groups))} %"
    measured += " on average" * (groups[0].benchmark.tasks > 1)
    if not certain:
        if any(map(result, groups)):
            return no_break(f"Nothing certified: the bound reaches 100 %{measured} error")
        others = [claim.sentence for group in groups for claim in families(group)]
        return no_break(
            f"Certified: {_lower(others[0])[:-1]}" if others else f"Nothing certified{measured} error"
        )
    results = [found for group in certain if (found := result(group))]
    about = {found.about for found in results}
    seeds = len(certain[0].runs)
    who = f" by {certain[0].label}" if len(certain) == 1 < len(groups) else ""
    worst = f" (the worst of {seeds} runs)" if len(certain) == 1 < seeds else ""
    streams = len({group.benchmark for group in groups})
    where = f" on {len({group.benchmark for group in certain})} of {streams} streams" if streams > 1 else ""
    at_most = _span((found.at_most for found in results), upwards=True)
    return no_break(
        f"Certified{where}{who}: at most {at_most} % {about.pop() if len(about) == 1 else 'error'}{worst}{measured}"
    )


def claim(group: Group) -> list[str]:
    """What the runs of a group certify: the bound of each task, then the other families, a sentence each."""
    rows, whose = task_rows(group), "every run's" if len(group.runs) > 1 else "the"
    over = " (the largest bound over the runs)" * (len(group.runs) > 1)
    if len(rows) > MOST_LISTED:
        worst = max(rows, key=lambda row: row.at_most)
        listed = f"{rate_text(worst.at_most, upwards=True)} % on each of the {len(rows)} tasks"
        listed += f"; the largest bound is that of task {worst.task}"
    else:
        listed = listing([f"{rate_text(row.at_most, upwards=True)} % on task {row.task}" for row in rows])
    claimed = [f"Of new examples, {whose} model misclassifies at most {listed}{over}."] if rows else []
    claimed += [family.sentence for family in families(group)]
    if claimed and (holdout := nothing_picked_sentence(group)):
        claimed.append(holdout)
    return [no_break(group.runs[0].names.with_names(sentence)) for sentence in claimed]


def meaning(group: Group) -> str:
    """With which probability a certificate holds, and of what."""
    likely = f"at least {confidence(group.runs[0].delta or 0)}"
    who = "each run's statements" if len(group.runs) > 1 else "all of these statements"
    return no_break(
        f"With probability {likely} over the draw of the training data, {who} hold at once: if learning were repeated with"
        f" fresh data from the same sources, {likely} of the certificates would hold in the long run. A new example comes"
        " from the source of the task's training data."
    )


def best_of_a_million(group: Group) -> list[str]:
    """The largest bound on a task of a single run, if it was chosen as the best of up to a million settings fixed in advance."""
    if len(group.runs) > 1 or group.runs[0].certificate is None:
        return []
    try:
        certificate = read_certificate(group.runs[0].certificate)
    except UserError:  # of another format
        return []
    options = replace(certificate.options, delta=certificate.options.delta / 10**6)
    values = [s["value"] for s in statements(options, certificate.records) if s["family"] == "tasks"]
    return [no_break(f"{BEST} {percent(max(values))}.")] if values else []


def context(group: Group) -> str:
    """The kind of the bound, and how it compares with the paper's formula and a hold-out on the same runs."""
    label = KINDS[group.kind].label if group.kind in KINDS else group.kind
    said = [f"The bound is of the kind “{label}”."]
    ours = METRICS["bound"].over_seeds(group)
    for kind, name in (("kl", "the paper's formula"), ("holdout", "a hold-out")):
        other = METRICS[kind].over_seeds(group)
        if ours and other and group.kind != kind:
            said.append(
                f"Averaged over tasks it is {rate_text(ours, upwards=True)} %;"
                f" {name} gives {rate_text(other, upwards=True)} % for the same runs."
            )
    return no_break(" ".join(said))


def nothing_picked_sentence(group: Group) -> str | None:
    """That the runs of a group that picked nothing are hold-out certificates."""
    said = []
    for run in group.runs:
        counts = [(task.n, task.picked) for task in run.tasks if task.picked is not None]
        if run.kind and run.kind != "holdout" and counts:
            said.append(nothing_picked(sum(n or 0 for n, _ in counts), sum(p or 0 for _, p in counts)))
    found = [sentence for sentence in said if sentence]
    who = f"{len(found)} of {len(group.runs)} runs: " if len(found) < len(group.runs) else ""
    return f"{who}{found[0]}" if found else None


def tasks_above_claim(run: Run) -> list[tuple[float, str]]:
    """The p-value and a sentence for each task of a run whose test error is above its claim."""
    found = []
    for task in run.tasks:
        if run.kind not in task.bounds or task.test_error is None or task.test_n is None:
            continue
        numbers = (task.test_error, task.test_n, task.bounds[run.kind])
        if (p := p_value(*numbers)) is not None:
            found.append((p, run.names.with_names(above_claim(task.task, *numbers) or "")))
    return found


def exceeded_sentence(group: Group) -> str | None:
    """How often the test error is above the claim in the runs of a group, and how surprising the worst of it is."""
    found = [(*one, run.seed) for run in group.runs for one in tasks_above_claim(run)]
    if not found:
        return None
    _, sentence, seed = min(found)
    return no_break(
        f"{group.label} on {group.benchmark.stream}: {count(len(found), 'test error')} above the claim in"
        f" {count(len(group.runs), 'run')}; the least probable, seed {seed}: {sentence}"
    )


def all_exceeded(groups: Sequence[Group]) -> list[str]:
    """Where a test error is above the claim, and what the p-value is."""
    found = [sentence for group in groups if (sentence := exceeded_sentence(group))]
    return [*found, P_VALUE] if found else []


def beside_claims(groups: Sequence[Group]) -> list[str]:
    """What must be said beside a table of claims: where nothing was picked, and where a test error is above the claim."""
    picks = [
        f"{g.label} on {g.benchmark.stream}: {said}" for g in groups if (said := nothing_picked_sentence(g))
    ]
    return [*picks, *all_exceeded(groups)]


def no_break(sentence: str) -> str:
    """A sentence whose lines do not break between a number and its unit or deviation."""
    return sentence.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")


def opening(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """What the page is about, under its title."""
    if not groups:
        return ""
    methods, streams = (
        listing(list(dict.fromkeys(names)))
        for names in ((group.method for group in groups), (group.benchmark.stream for group in groups))
    )
    return f"{count(len(runs), 'finished run')} of {methods} on {streams}."


def kinds(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The kinds of bounds that occur, each with what it is."""
    return [(KINDS[kind].label, KINDS[kind].sentence) for kind in kinds_in(groups)]


def _measured(group: Group) -> float:
    """The mean test error over tasks and runs."""
    return 1 - fmean(run.accuracy for run in group.runs)


def _span(rates: Iterable[float], *, upwards: bool = False) -> str:
    """One rate, or the smallest and the largest."""
    values = list(rates)
    ends = dict.fromkeys(rate_text(end, upwards=upwards) for end in (min(values), max(values)))
    return " to ".join(ends)


def _lower(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"
