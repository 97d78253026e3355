"""What a verification found. Only the kernel completes a verdict; everybody else can only lower it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cop2l.kernel.arithmetic import percent
from cop2l.kernel.form import Content
from cop2l.kernel.options import Options

Status = Literal["valid", "invalid", "cannot tell"]
CONCLUSIONS: dict[Status, str] = {
    "valid": "VALID: the claim above was checked and holds, under its assumptions and the issuer's word as listed.",
    "invalid": "INVALID: do not rely on this certificate.",
    "cannot tell": "CANNOT TELL: nothing was found wrong, but not everything could be checked.",
}
PARTS = {
    "claim": "The claim", "checked": "Checked", "word": "The issuer's word", "doubts": "Could not be checked", "faults": "Wrong",
}  # fmt: skip


@dataclass
class Verdict:
    """The claim in words, what was checked, what rests on the issuer's word, and what is wrong or open.

    It is "cannot tell" until the kernel has completed it; a doubt takes that back for good, and a fault makes it "invalid".
    """

    claim: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    word: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    _complete: bool = field(default=False, repr=False)

    def fault(self, sentence: str) -> None:
        """Something is wrong."""
        self.faults.append(sentence)

    def doubt(self, sentence: str) -> None:
        """Something could not be checked, here or with what was given."""
        self.doubts.append(sentence)

    @property
    def status(self) -> Status:
        """Valid only if everything was checked and nothing was found."""
        if self.faults:
            return "invalid"
        return "valid" if self._complete and not self.doubts else "cannot tell"

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 cannot tell."""
        return list(CONCLUSIONS).index(self.status)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: getattr(self, name) for name in ("status", "exit_code", "statements", *PARTS)}

    def __str__(self) -> str:
        parts = [(title, getattr(self, name)) for name, title in PARTS.items()]
        lines = [f"{title}:\n" + "\n".join(f"  - {sentence}" for sentence in found) for title, found in parts if found]
        return "\n".join([*lines, CONCLUSIONS[self.status]])


def claim_in_words(certificate: Content) -> list[str]:
    """What the certificate claims, of what, and under which choices: the first thing that a verdict says."""
    options, records, last = certificate["options"], certificate["records"], len(certificate["records"])
    together = f"after task {last}; all certificates that the run issues, at most one after each task, hold together"
    times = f"after {last} tasks, a number fixed in advance" if options.tasks else together
    bounds = [f"{in_words(one, records)} ({one['kind']})" for one in certificate["statements"]]
    changed = {key: value for key, value in options.as_dict().items() if value != Options().as_dict()[key]}
    heads = [",".join(map(str, record["head"][:20])) + "..." * (len(record["head"]) > 20) for record in records]
    lines = [
        f"With probability at least 1 - {options.delta!r} over the draw of the data, {times}, of new examples:",
        f"all at once, {'; '.join(bounds)}.",
        f"Method {certificate['method']}, {certificate['scenario']}, {certificate['classes']} classes, seed {options.seed}.",
        f"Model: {_listed(certificate['model'])}.",
        f"Options that differ from the defaults: {_listed(changed)}.",
        f"Classes of each task: {'; '.join(heads)}.",
        f"How the data was cut, as stated: {_listed(certificate['data'] or {})}.",
    ]
    if options.kind == "holdout":
        return [*lines, f"Certified on withheld examples, task by task: {', '.join(str(record['rows']) for record in records)}."]
    prior, picked, kept, gone = (sum(r[name] for r in records) for name in ("prior", "picked", "compression", "evicted"))
    n = sum((r["selected"] or 0) if r["missed"] is None else r["n"] for r in records)  # of data that is gone, what memory holds
    lines.append(f"{n} examples certify, {prior} were set aside and learned from freely, {picked} were picked.")
    lines.append(f"To rebuild the model, {kept + gone} picked and {prior} set-aside examples must be known.")
    return lines if picked else [*lines, f"Nothing was picked: this is a hold-out certificate on {n} examples."]


WORDS = {
    "tasks": "the error rate on task {task} is at most {value}",
    "average": "the error rate averaged over the {tasks} tasks{weighted} is at most {value}{mean}",
    "classes": "of class {subject} in task {task} at most {value} is misclassified",
    "groups": "of group {subject} in task {task} at most {value} is misclassified",
    "lost": "at most {value} of task {task} was right when it was learned and is wrong now",
    "net": "the error rate on task {task} rose by at most {value} since it was learned",
    "forgetting": "averaged over the tasks before the last{weighted} at most {value} was right then and is wrong now",
}


def in_words(stated: Content, records: Sequence[Mapping[str, Any]]) -> str:
    """A statement as people read it; it speaks of new examples."""
    key = stated["subject"] if stated["family"] == "forgetting" and stated["task"] else stated["family"]
    weighted = ", weighted by examples," * (len({record["n"] for record in records}) > 1)
    mean = ", the mean of the tasks' own bounds" * (stated["kind"] not in ("holdout", "combined"))
    shown = {"value": percent(stated["value"]), "mean": mean, "weighted": weighted, "tasks": len(records)}
    return WORDS[key].format(**stated | shown).replace(" %", " points" if key == "net" else " %")


def _listed(values: dict[str, Any]) -> str:
    shown = ", ".join(f"{key}={value!r}" for key, value in values.items() if value is not None and value != {})
    return (shown if len(shown) <= 600 else f"{shown[:600]} ...") or "nothing"
