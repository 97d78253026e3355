"""Words the claims other than the bound of each task, with the measured rates beside them; without torch."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from cop2l import text

Statement = Mapping[str, Any]
MOST_LISTED = 20
"""Families with more statements than this are summed up on the terminal; `cop2l show` lists all."""
NOUNS = {"classes": "class", "groups": "group"}
FEW = 10
"""If fewer examples than this certify, their number explains a bound of one."""
VACUOUS = "no bound: none of its examples certify, or all were misclassified"


class Measured(NamedTuple):
    """The measured rates of a run, task by task."""

    sizes: Sequence[int]
    """The number of certifying examples."""
    errors: Sequence[float | None]
    """The test error of the final model."""
    falls: Sequence[float]
    """The fall of the test accuracy since the task was learned."""
    groups: Sequence[Mapping[str, float]] = ()
    """The test error of each group."""
    classes: Mapping[int, float] = {}
    """The test error of each class that belongs to one task only."""


class Part(NamedTuple):
    """One statement of a family as it is shown: its subject, its sentence, its bound and the measured rate."""

    about: str
    sentence: str
    bound: str
    measured: str


class Claim(NamedTuple):
    """A claimed family: one sentence, and the statements that it sums up."""

    family: str
    sentence: str
    parts: tuple[Part, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The sentence, and the statements if they are few."""
        sentences = [part.sentence for part in self.parts] if len(self.parts) <= MOST_LISTED else []
        return [self.sentence, *(f"  {sentence}" for sentence in sentences)]


def measured_values(summary: Mapping[str, Any]) -> Measured:
    """The measured rates in a summary.json."""
    rows, matrix = summary["tasks"], summary["matrix"]
    return Measured(
        [row["holdout"]["n"] if summary["kind"] == "holdout" else row["n"] for row in rows],
        [row["test_error"] for row in rows],
        [matrix[t][t] - last for t, last in enumerate(matrix[-1])],
        [row.get("test_groups", {}) for row in rows],
    )


def claims(statements: Sequence[Statement], measured: Measured) -> list[Claim]:
    """The claimed families with their sentences, without the bounds of single tasks."""
    result = list[Claim]()
    for family, members in _by_family(statements):
        of_tasks = [s for s in members if s["task"] is not None]
        if sentence := _worst(family, of_tasks, len(measured.sizes)):
            if family == "forgetting":
                fall = text.measured_percent(max(measured.falls[s["task"] - 1] for s in of_tasks))
                sentence += f" The largest fall of a test accuracy: {fall.replace('%', 'points')}."
            result.append(Claim(family, sentence, tuple(_part(s, measured) for s in of_tasks)))
        means = [s for s in members if s["task"] is None]
        result += [Claim(family, _part(mean, measured).sentence) for mean in means]
    return result


def _by_family(statements: Sequence[Statement]) -> list[tuple[str, list[Statement]]]:
    """The statements of each family, without the bounds of single tasks."""
    families = groupby((s for s in statements if s["family"] != "tasks"), key=lambda s: str(s["family"]))
    return [(family, list(members)) for family, members in families]


def claim_sentences(summary: Mapping[str, Any]) -> list[str]:
    """The claims of a finished run other than the bound of each task, line by line."""
    return [line for claim in claims(summary["claims"], measured_values(summary)) for line in claim.lines]


def all_sentences(statements: Sequence[Statement], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """All claims of a certificate other than the bound of each task: for each family, the summary and every statement."""
    sizes = [record["n"] for record in records]
    lines = []
    for family, members in _by_family(statements):
        lines += [worst] if (worst := _worst(family, members, len(sizes))) else []
        lines += [f"{text.statement_sentence(s, sizes)}{_vacuous_reason(s, records)}." for s in members]
    return lines


def _vacuous_reason(s: Statement, records: Sequence[Mapping[str, Any]]) -> str:
    """Why a bound is 1, if it is and its task has counts of that subject."""
    for part in records[s["task"] - 1]["parts"] if s["task"] and s["value"] >= 1 else ():
        if (part["family"], part["subject"]) == (s["family"], s["subject"]):
            return f" (only {part['n']} of its examples certify)" if part["n"] < FEW else f" ({VACUOUS})"
    return ""


def _worst(family: str, statements: Sequence[Statement], tasks: int) -> str:
    """The sentence that sums up the statements of a family about tasks; an empty text for an average."""
    of_tasks = [s for s in statements if s["task"] is not None and s["subject"] not in ("net", None)]
    if not of_tasks:
        return ""
    worst = max(of_tasks, key=lambda s: float(s["value"]))
    numbers = sorted({s["task"] for s in of_tasks})
    listing = ", ".join(map(str, numbers))
    if family == "forgetting":
        subject = "No task" if len(of_tasks) == tasks - 1 else f"None of the tasks {listing}"
        points = text.percent(worst["value"]).replace("%", "points")
        return f"{subject} lost more than {points} since it was learned."
    noun = NOUNS[family]
    owner = "every task" if len(numbers) == tasks else f"task{'s' * (len(numbers) > 1)} {listing}"
    return (
        f"Of every {noun} of {owner} at most {text.percent(worst['value'])} is misclassified; the largest of these bounds"
        f" is that of {noun} {worst['subject']} in task {worst['task']}."
    )


def _part(s: Statement, measured: Measured) -> Part:
    rate, noun, task = _rate(s, measured), NOUNS.get(s["family"]), s["task"]
    subject = f"{noun} {s['subject']} in task {task}" if noun else f"task {task}, {s['subject']}"
    rate_text = "" if rate is None else text.measured_percent(rate)
    remark = f" (measured on the test part: {rate_text})"
    if s["family"] == "forgetting":
        remark = "" if task else f" (the mean fall of the test accuracies: {rate_text})"
    vacuous = f" ({VACUOUS})" * bool(task and s["value"] >= 1)
    sentence = f"{text.statement_sentence(s, measured.sizes)}{remark * bool(rate_text)}{vacuous}."
    return Part(subject, sentence, text.percent(s["value"]), rate_text)


def _rate(s: Statement, measured: Measured) -> float | None:
    """The measured rate beside a statement, if there is one."""
    family, task = s["family"], s["task"]
    if family == "average":
        return _weighted_mean(measured.errors, measured.sizes)
    if family == "forgetting":
        return measured.falls[task - 1] if task else _weighted_mean(measured.falls[:-1], measured.sizes[:-1])
    if family == "groups":
        return measured.groups[task - 1].get(s["subject"]) if measured.groups else None
    return measured.classes.get(s["subject"])


def _weighted_mean(rates: Sequence[float | None], sizes: Sequence[int]) -> float | None:
    """The mean of the rates; None if one is missing."""
    weighted = [rate * n for rate, n in zip(rates, sizes, strict=True) if rate is not None]
    if len(weighted) < len(rates) or not sum(sizes):
        return None
    return sum(weighted) / sum(sizes)
