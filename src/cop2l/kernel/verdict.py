"""The verdict and its sentences. Texts that the issuer chose are quoted and printed in one block."""

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
MAX_LINES = 12
"""The number of sentences that are printed of each part, but all of `assumed` are; the JSON has all sentences."""


@dataclass
class Verdict:
    """The bounds, and the sentences about what is wrong, unverified, assumed and checked."""

    invalid: list[str] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    claim: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    issuer: list[str] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    """The bounds; `million` is the bound if the certificate is the best of a million settings fixed in advance."""
    command: str | None = None
    """The command that an auditor can type if options are missing."""
    _complete: bool = field(default=False, repr=False)

    @property
    def status(self) -> Status:
        """Valid only if the kernel completed the verdict and no sentence says that something is invalid or unverified."""
        if self.invalid:
            return "invalid"
        return "valid" if self._complete and not self.unverified else "cannot tell"

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 cannot tell."""
        return list(CONCLUSIONS).index(self.status)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("status", "exit_code", "statements", "command", *PARTS)}

    def __str__(self) -> str:
        lines = [CONCLUSIONS[self.status]]
        if self.command and self.unverified and not self.invalid:
            lines += ["Type this if you know the data to be split so:", f"  {self.command}"]
        for name, title in PARTS.items():
            sentences = getattr(self, name)
            title += ", stated and NOT confirmed" * (name == "claim" and self.status != "valid")
            shown = sentences if name == "assumed" else sentences[:MAX_LINES]
            lines += [f"{title}:", *(f"  {sentence}" for sentence in shown)] if sentences else []
            lines += [f"  ... and {len(sentences) - len(shown)} more, in --json"] * (len(sentences) > len(shown))
        return "\n".join(lines)


def claim_lines(content: Content, statements: Sequence[Content]) -> list[str]:
    """The bounds, one per line."""
    options, records, names = content["options"], content["records"], (content["data"] or {}).get("task_names")
    last = len(records)
    when = f"after {last} tasks, a number fixed in advance" if options.tasks else f"after task {last}, as after every task"
    lines = [f"All at once with probability at least 1 - {options.delta!r} over the draw of the data, {when}:"]
    for bound in statements:
        best = f"; if it is the best of a million settings: {percent(bound['million'])}" if "million" in bound else ""
        lines.append(f"{statement_sentence(bound, records, names)} ({bound['kind']}{best})")
    return lines


def claim_subject(certificate: Content) -> list[str]:
    """The scenario, the seeds, and the numbers of examples that certify or were picked."""
    options, records = certificate["options"], certificate["records"]
    seeds = {"seed": options.seed} | {key: value for key, value in (certificate["data"] or {}).items() if key.endswith("seed")}
    shown = ", ".join(f"{name}={value}" for name, value in seeds.items() if type(value) is int)
    lines = [f"{certificate['scenario']}, {certificate['classes']} classes, {shown}, threads={certificate['threads']}"]
    if options.kind == "holdout":
        return [*lines, f"withheld examples that certify: {sum(record['rows'] for record in records)}"]
    picked = sum(record["picked"] for record in records)
    # of a task whose data is gone, only the examples in memory certify
    n = sum((r["selected"] or 0) if r["errors_not_picked"] is None else r["n"] for r in records)
    return [*lines, f"examples that certify: {n}; picked: {picked}"]


def issuers_texts(certificate: Content) -> list[str]:
    """All texts and keys that the issuer chose, as JSON."""
    changed = {key: value for key, value in certificate["options"].as_dict().items() if value != Options().as_dict()[key]}
    texts = {"method": {"method": certificate["method"], **(certificate["settings"] or changed)}}
    texts |= {name: certificate[name] for name in ("model", "data", "machine")}
    return [f"{name}: {quoted(value)}" for name, value in texts.items() if value]


def quoted(value: Any, max_length: int = 300) -> str:
    """A value of the issuer's as JSON, so that every text in it is in quotes."""
    shown = json.dumps(value, ensure_ascii=True)
    return shown if len(shown) <= max_length else json.dumps(shown[:max_length] + " ...")


SENTENCES = {
    "tasks": "task {task}: error at most {value}",
    "average": "mean over the {tasks} tasks{weighted}: error at most {value}",
    "classes": "task {task}, class {subject}: error at most {value}",
    "groups": "task {task}, group {subject}: error at most {value}",
    "lost": "task {task}: right when it was learned and wrong now: at most {value}",
    "net": "task {task}: the error rate rose since it was learned by at most {value}",
    "forgetting": "mean over the tasks before the last{weighted}: right then and wrong now: at most {value}",
}


def statement_sentence(statement: Content, records: Sequence[Mapping[str, Any]], names: Any = None) -> str:
    """The sentence of a statement, with the name of its task if there is one."""
    task = statement["task"]
    key = statement["subject"] if statement["family"] == "forgetting" and task else statement["family"]
    weighted = ", weighted by examples" * (task is None and len({record["n"] for record in records}) > 1)
    subject = quoted(statement["subject"], 110)
    value = percent(statement["value"]).replace(" %", " points" if key == "net" else " %")
    shown = {"value": value, "weighted": weighted, "tasks": len(records), "subject": subject}
    if isinstance(names, list) and 0 < (task or 0) <= len(names):
        shown["task"] = f"{task} ({quoted(names[task - 1], 60)})"
    return SENTENCES[key].format(**statement | shown)
