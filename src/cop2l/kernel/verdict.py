"""What a verification found, as people read it. Texts that the issuer chose are printed in one block, quoted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cop2l.kernel.arithmetic import percent
from cop2l.kernel.form import Content
from cop2l.kernel.options import Options

Status = Literal["valid", "invalid", "cannot tell"]
CONCLUSIONS: dict[Status, str] = {
    "valid": "VALID: the bounds below were checked, and hold if what is listed as assumed is true.",
    "invalid": "INVALID: do not rely on this certificate.",
    "cannot tell": "CANNOT TELL: nothing was found wrong, but not everything could be checked.",
}
PARTS = {
    "invalid": "Wrong", "unverified": "Could not be checked", "claim": "Bounds", "rows": "Rows",
    "assumed": "Assumed, not checked", "checked": "Checked", "issuer": "Texts of the issuer, quoted",
}  # fmt: skip
MOST_LINES = 12
"""So many sentences of each part are printed, but all that is assumed; the JSON has all of them."""


@dataclass
class Verdict:
    """The bounds, what was checked, what is assumed, and what is wrong or open.

    It is "cannot tell" until the kernel has completed it and for good if a check could not be made; "invalid" if one failed.
    """

    invalid: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    claim: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    issuer: list[str] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    """The bounds; `million` is the bound if the certificate is the best of a million settings that were fixed in advance."""
    command: str | None = None
    """What to type where options are missing."""
    _complete: bool = field(default=False, repr=False)

    def add_invalid(self, sentence: str) -> None:
        """Something is wrong."""
        self.invalid.append(sentence)

    def add_unverified(self, sentence: str) -> None:
        """Something could not be checked, here or with what was given."""
        self.unverified.append(sentence)

    @property
    def status(self) -> Status:
        """Valid only if everything was checked and nothing was found."""
        if self.invalid:
            return "invalid"
        return "valid" if self._complete and not self.unverified else "cannot tell"

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 cannot tell."""
        return list(CONCLUSIONS).index(self.status)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: getattr(self, name) for name in ("status", "exit_code", "statements", "command", *PARTS)}

    def __str__(self) -> str:
        lines = [CONCLUSIONS[self.status]]
        if self.command and self.unverified and not self.invalid:
            lines += ["Type this if you know the data to be split so:", f"  {self.command}"]
        for name, title in PARTS.items():
            found = getattr(self, name)
            title += ", stated and NOT confirmed" * (name == "claim" and self.status != "valid")
            shown = found if name == "assumed" else found[:MOST_LINES]
            lines += [f"{title}:", *(f"  {sentence}" for sentence in shown)] if found else []
            lines += [f"  ... and {len(found) - len(shown)} more, in --json"] * (len(found) > len(shown))
        return "\n".join(lines)


def claim_in_words(content: Content, statements: Sequence[Content]) -> list[str]:
    """The bounds, one per line."""
    options, records = content["options"], content["records"]
    last = len(records)
    when = f"after {last} tasks, a number fixed in advance" if options.tasks else f"after task {last}, as after every task"
    head = f"All at once with probability at least 1 - {options.delta!r} over the draw of the data, {when}:"
    lines = [head]
    for one in statements:
        best = f"; if it is the best of a million settings: {percent(one['million'])}" if "million" in one else ""
        lines.append(f"{statement_sentence(one, records, (content['data'] or {}).get('task_names'))} ({one['kind']}{best})")
    return lines


def claim_subject(certificate: Content) -> list[str]:
    """What is certified on what, in numbers."""
    options, records = certificate["options"], certificate["records"]
    seeds = {"seed": options.seed} | {key: value for key, value in (certificate["data"] or {}).items() if key.endswith("seed")}
    said = ", ".join(f"{name}={value}" for name, value in seeds.items() if type(value) is int)
    lines = [f"{certificate['scenario']}, {certificate['classes']} classes, {said}, threads={certificate['threads']}"]
    if options.kind == "holdout":
        return [*lines, f"withheld examples that certify: {sum(record['rows'] for record in records)}"]
    prior, picked = (sum(record[name] for record in records) for name in ("prior", "picked"))
    # of data that is gone, what memory holds
    n = sum((r["selected"] or 0) if r["errors_not_picked"] is None else r["n"] for r in records)
    lines.append(f"examples that certify: {n}; prior examples, which only train: {prior}; picked: {picked}")
    return lines if picked else [*lines, "Nothing was picked: this is a hold-out certificate."]


def issuers_texts(certificate: Content) -> list[str]:
    """Whatever texts and keys the issuer chose, as JSON."""
    changed = {key: value for key, value in certificate["options"].as_dict().items() if value != Options().as_dict()[key]}
    named = {name: certificate[name] for name in ("model", "data", "machine")}
    method = {"method": certificate["method"], **(certificate["settings"] or changed)}
    return [f"{name}: {quoted(value)}" for name, value in ({"method": method} | named).items() if value]


def quoted(value: Any, most: int = 300) -> str:
    """A value of the issuer's as JSON: every text in it is in quotes."""
    shown = json.dumps(value, ensure_ascii=True)
    return shown if len(shown) <= most else json.dumps(shown[:most] + " ...")


WORDS = {
    "tasks": "task {task}: error at most {value}",
    "average": "mean over the {tasks} tasks{weighted}: error at most {value}",
    "classes": "task {task}, class {subject}: error at most {value}",
    "groups": "task {task}, group {subject}: error at most {value}",
    "lost": "task {task}: right when it was learned and wrong now: at most {value}",
    "net": "task {task}: the error rate rose since it was learned by at most {value}",
    "forgetting": "mean over the tasks before the last{weighted}: right then and wrong now: at most {value}",
}


def statement_sentence(claimed: Content, records: Sequence[Mapping[str, Any]], names: Any = None) -> str:
    """A statement as people read it, with the names of tasks if there are any; it speaks of new examples."""
    key = claimed["subject"] if claimed["family"] == "forgetting" and claimed["task"] else claimed["family"]
    weighted = ", weighted by examples" * (len({record["n"] for record in records}) > 1)
    subject = quoted(claimed["subject"], 110)
    shown = {"value": percent(claimed["value"]), "weighted": weighted, "tasks": len(records), "subject": subject}
    if isinstance(names, list) and 0 < (claimed["task"] or 0) <= len(names):
        shown["task"] = f"{claimed['task']} ({quoted(names[claimed['task'] - 1], 60)})"
    return WORDS[key].format(**claimed | shown).replace(" %", " points" if key == "net" else " %")
