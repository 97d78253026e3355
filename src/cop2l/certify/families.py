"""What a run claims beside the bound of each task, in words, with what the test part measured beside it; no torch."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from cop2l import text

Statement = Mapping[str, Any]
MOST_LISTED = 20
"""So many statements of a family are listed where people read along; the others are folded, or in `cop2l show`."""
NOUNS = {"classes": "class", "groups": "group"}
FEW = 10
"""Where fewer examples than this certify, their number is reason enough for a bound of one."""
VACUOUS = "no bound: none of its examples certify, or all were misclassified"


class Measured(NamedTuple):
    """What is known of a run beside its claims, task by task."""

    sizes: Sequence[int]
    """How many examples certify."""
    errors: Sequence[float | None]
    """Test errors of the final model."""
    falls: Sequence[float]
    """By how much the test accuracy fell since the task was learned."""
    groups: Sequence[Mapping[str, float]] = ()
    """Test errors of each group."""
    classes: Mapping[int, float] = {}
    """Test errors of each class, where it belongs to one task only."""


class Part(NamedTuple):
    """One statement of a family: what it is about, its sentence, its bound and the measured rate, as they are shown."""

    about: str
    sentence: str
    bound: str
    measured: str


class Claim(NamedTuple):
    """A family that is claimed: one sentence, and the statements that it sums up."""

    family: str
    sentence: str
    parts: tuple[Part, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The sentence, and the statements where they are few."""
        shown = [part.sentence for part in self.parts] if len(self.parts) <= MOST_LISTED else []
        return [self.sentence, *(f"  {sentence}" for sentence in shown)]


def measured_values(summary: Mapping[str, Any]) -> Measured:
    """What a summary.json knows."""
    rows, matrix = summary["tasks"], summary["matrix"]
    return Measured(
        [row["holdout"]["n"] if summary["kind"] == "holdout" else row["n"] for row in rows],
        [row["test_error"] for row in rows],
        [matrix[t][t] - last for t, last in enumerate(matrix[-1])],
        [row.get("test_groups", {}) for row in rows],
    )


def claims(claimed: Sequence[Statement], beside: Measured) -> list[Claim]:
    """The families of some statements, each with its sentence; those of single tasks are said elsewhere."""
    found = groupby((s for s in claimed if s["family"] != "tasks"), key=lambda s: str(s["family"]))
    return [claim for family, own in found for claim in _MAKERS[family](list(own), beside)]


def claim_sentences(summary: Mapping[str, Any]) -> list[str]:
    """What a finished run claims beside the bound of each task, line by line."""
    return [line for claim in claims(summary["claims"], measured_values(summary)) for line in claim.lines]


def all_sentences(claimed: Sequence[Statement], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """All that a certificate claims beside the bound of each task, each family after its sum; why a bound says nothing."""
    sizes = [record["n"] for record in records]
    lines = []
    for family, own in groupby(
        (s for s in claimed if s["family"] != "tasks"), key=lambda s: str(s["family"])
    ):
        every = list(own)
        lines += [worst] if (worst := _worst(family, every, len(sizes))) else []
        lines += [f"{statement_sentence(s, sizes)}{_why(s, records)}." for s in every]
    return lines


def _why(s: Statement, records: Sequence[Mapping[str, Any]]) -> str:
    """Why a bound says nothing, if it does not, and if its task has counts of that subject."""
    for part in records[s["task"] - 1]["parts"] if s["task"] and s["value"] >= 1 else ():
        if (part["family"], part["subject"]) == (s["family"], s["subject"]):
            return f" (only {part['n']} of its examples certify)" if part["n"] < FEW else f" ({VACUOUS})"
    return ""


def statement_sentence(statement: Statement, sizes: Sequence[int]) -> str:
    """A statement as a sentence, without its full stop."""
    words = text.statement_text(statement, [{"n": n} for n in sizes])
    return f"{words[0].upper()}{words[1:]}"


def _average(claimed: Sequence[Statement], beside: Measured) -> list[Claim]:
    (one,) = claimed
    rate = _weighted(beside.errors, beside.sizes)
    return [Claim("average", f"{statement_sentence(one, beside.sizes)}{_beside(rate)}.")]


def _forgetting(claimed: Sequence[Statement], beside: Measured) -> list[Claim]:
    tasks = [s for s in claimed if s["task"] is not None]
    lost = [s for s in tasks if s["subject"] == "lost"]
    found, parts = list[Claim](), tuple(_part(s, beside, beside.falls[s["task"] - 1]) for s in tasks)
    if lost:
        fall = text.measured_percent(max(beside.falls[s["task"] - 1] for s in lost)).replace("%", "points")
        sentence = (
            f"{_worst('forgetting', tasks, len(beside.sizes))} The largest fall of a test accuracy: {fall}."
        )
        found.append(Claim("forgetting", sentence, parts))
    for one in (s for s in claimed if s["task"] is None):
        rate = _weighted(beside.falls[:-1], beside.sizes[:-1])
        words = (
            f" (the mean fall of the test accuracies: {text.measured_percent(rate)})"
            if rate is not None
            else ""
        )
        found.append(Claim("forgetting", f"{statement_sentence(one, beside.sizes)}{words}."))
    return found


def _parts(claimed: Sequence[Statement], beside: Measured) -> list[Claim]:
    family, parts = claimed[0]["family"], list[Part]()
    for s in claimed:
        rates: Mapping[Any, float] = beside.classes
        if family == "groups":
            rates = beside.groups[s["task"] - 1] if beside.groups else {}
        parts.append(_part(s, beside, rates.get(s["subject"])))
    return [Claim(family, _worst(family, claimed, len(beside.sizes)), tuple(parts))]


def _worst(family: str, claimed: Sequence[Statement], tasks: int) -> str:
    """The one sentence that sums up a family of statements about tasks; nothing for an average."""
    own = [s for s in claimed if s["task"] is not None and s["subject"] not in ("net", None)]
    if not own:
        return ""
    worst = max(own, key=lambda s: float(s["value"]))
    if family == "forgetting":
        who = "No task" if len(own) == tasks - 1 else f"None of the tasks {_numbers(own)}"
        return f"{who} lost more than {text.percent(worst['value']).replace('%', 'points')} since it was learned."
    noun, whose = NOUNS[family], "every task"
    if len({s["task"] for s in own}) < tasks:  # of the others the data was gone
        whose = f"tasks {_numbers(own)}"
    return (
        f"Of every {noun} of {whose} at most {text.percent(worst['value'])} is misclassified; the largest of these bounds"
        f" is that of {noun} {worst['subject']} in task {worst['task']}."
    )


_MAKERS = {"average": _average, "forgetting": _forgetting, "classes": _parts, "groups": _parts}


def _numbers(claimed: Sequence[Statement]) -> str:
    return ", ".join(str(t) for t in sorted({s["task"] for s in claimed}))


def _part(s: Statement, beside: Measured, rate: float | None) -> Part:
    noun = NOUNS.get(s["family"])
    about = f"{noun} {s['subject']} in task {s['task']}" if noun else f"task {s['task']}, {s['subject']}"
    what = _beside(rate) if s["family"] != "forgetting" else ""
    why = f" ({VACUOUS})" if s["value"] >= 1 else ""
    return Part(
        about,
        f"{statement_sentence(s, beside.sizes)}{what}{why}.",
        text.percent(s["value"]),
        "" if rate is None else text.measured_percent(rate),
    )


def _weighted(rates: Sequence[float | None], sizes: Sequence[int]) -> float | None:
    known = [(rate, n) for rate, n in zip(rates, sizes, strict=True) if rate is not None]
    if len(known) < len(rates) or not sum(sizes):
        return None
    return sum(rate * n for rate, n in known) / sum(sizes)


def _beside(rate: float | None) -> str:
    return "" if rate is None else f" (measured on the test part: {text.measured_percent(rate)})"
