"""Monitor: watches one claim of a certificate through labelled feedback."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, get_args

from cop2l.audit.finding import find_certificates
from cop2l.bounds.checks import real
from cop2l.certificates.certificate import Certificate, read_certificate
from cop2l.errors import UserError, unknown
from cop2l.files import DamagedError, Lock, json_digest, read_json, write_json
from cop2l.kernel.options import Family
from cop2l.kernel.verdict import Verdict
from cop2l.monitor.evidence import log_evidence, starts_due, strongest_start
from cop2l.text import Names, percent, short_name

FORMAT, VERSION = "cop2l-monitor", 2
COUNTS: dict[str, Any] = {"n": 0, "errors": 0, "batches": 0, "alarmed_at": None, "starts": []}


class Monitor:
    """Watches one claim of a certificate, "the error rate is at most b", through feedback that arrives in batches.

    If the claim is true and `text.FEEDBACK_ASSUMPTIONS` hold, the probability that there is ever an alarm is at most alpha,
    for any number of batches.

    claim: a certificate, the path of one or of a run, or a bound b. family, task, subject: the statement of the certificate;
    tasks and classes are named by their names or numbers. state: the file that stores the counts; without it they live as
    long as the object. A file is never reset.
    """

    def __init__(
        self,
        claim: Any,
        family: str = "tasks",
        task: str | int | None = None,
        subject: str | int | None = None,
        *,
        alpha: float = 0.01,
        state: str | Path | None = None,
    ) -> None:
        self.alpha, self.path = real("alpha", alpha), None if state is None else Path(state)
        if not 1e-300 <= self.alpha < 1:
            raise UserError(f"alpha must be a number above 0 and below 1, for example 0.01, not {alpha!r}.")
        identity, self._labels = None, list[Sequence[str]]()
        if isinstance(claim, Real) and not isinstance(claim, bool):
            if family not in get_args(Family):
                raise unknown("family", family, get_args(Family))
            self.names = Names()
            number: int | None = self.names.task_number(task)
            self.statement: dict[str, Any] = {
                "family": family, "task": number, "subject": subject, "kind": None, "value": float(claim)
            }  # fmt: skip
        else:
            certificate = _certificate(claim)
            self.names = Names.from_description(certificate.content["data"])
            number = self.names.task_number(task)
            subject = self.names.class_number(subject) if family == "classes" else subject
            self.statement = _statement(certificate.statements, family, number, subject)
            names, numbers = self.names.classes, [*map(str, range(certificate.content["classes"]))]
            self._labels = [names or numbers, *([] if any(name.isdecimal() for name in names) else [numbers])]
            claimed = {k: v for k, v in certificate.content.items() if k not in ("files", "digest")}
            identity = json_digest(claimed)
        self.bound = float(self.statement["value"])
        if not 1e-12 <= self.bound <= 1 - 1e-12:
            raise UserError(
                f"The claim is an error rate of at most {self.bound:g}; only one above 0 and below 1 can be monitored."
            )
        self._identity = {
            "format": FORMAT, "version": VERSION, "certificate": identity, "statement": self.statement, "alpha": self.alpha,
        }  # fmt: skip
        self._counts = COUNTS
        self._counts = self._load()

    def __repr__(self) -> str:
        state = "ALARM" if self.alarm else "no alarm"
        return f"Monitor(at most {percent(self.bound)}, {self.errors} wrong of {self.n}, {state})"

    @property
    def n(self) -> int:
        """The number of counted examples."""
        return int(self._counts["n"])

    @property
    def errors(self) -> int:
        """The number of errors among them."""
        return int(self._counts["errors"])

    @property
    def alarm(self) -> bool:
        """Whether there has ever been an alarm."""
        return self._counts["alarmed_at"] is not None

    @property
    def log_evidence(self) -> float:
        """The logarithm of `evidence`, rounded down."""
        return self._log_evidence(self._counts)

    @property
    def evidence(self) -> float:
        """The evidence E_n against the claim: near or below one if the claim is true; there is an alarm at 1/alpha."""
        return math.exp(min(self.log_evidence, math.log(sys.float_info.max) - 1e-9))

    def as_dict(self) -> dict[str, Any]:
        """Claim, counts and evidence, for JSON; `since`: the counts (examples, errors) since which the evidence is largest."""
        counts = dict(self._counts)
        starts = counts.pop("starts")
        k = strongest_start(self.bound, self.n, self.errors, *_columns(starts))
        return {
            **{name: self._identity[name] for name in ("certificate", "statement", "alpha")},
            **counts,
            "evidence": self.evidence,
            "log_evidence": self.log_evidence,
            "alarm": self.alarm,
            "since": [[0, 0], *starts][k],
        }

    def update(self, errors: Iterable[Any]) -> bool:
        """Count one batch of 0 (right) and 1 (wrong); returns whether the evidence at its end, or ever before, is an alarm."""
        batch = _plain_values(errors, "errors")
        for value in batch:
            if isinstance(value, str) or value not in (0, 1):
                raise UserError(f"errors must be 0 (right) or 1 (wrong), not {value!r}; nothing was counted.")
        busy = f"{self.path} is being written by another monitor ({{holder}}); try again when it is done."
        with Lock(self.path.with_name(f".{self.path.name}.lock"), busy) if self.path else nullcontext():
            counts = self._load()  # another process may have counted since
            before = counts["n"]
            counts["n"] += len(batch)
            counts["errors"] += int(sum(batch))
            counts["batches"] += 1
            if starts_due(before, counts["n"]):
                counts["starts"] = [*counts["starts"], [counts["n"], counts["errors"]]]
            if counts["alarmed_at"] is None and self._log_evidence(counts) >= -math.log(self.alpha):
                counts["alarmed_at"] = counts["n"]
            if self.path is not None:
                write_json(self.path, self._identity | counts)
            self._counts = counts
        return self.alarm

    def update_labels(self, predicted: Iterable[Any], true: Iterable[Any]) -> bool:
        """Count one batch from predicted and true labels."""
        predicted, true = _plain_values(predicted, "predicted"), _plain_values(true, "true")
        if len(predicted) != len(true):
            raise UserError(
                f"predicted has {len(predicted)} labels and true has {len(true)}; give one of each per example."
            )
        return self.update([self.is_error(a, b) for a, b in zip(predicted, true, strict=True)])

    def is_error(self, predicted: Any, true: Any) -> bool:
        """Whether the two labels of an example differ; refuses labels that are not of this claim."""
        if self.statement["family"] == "forgetting":
            raise UserError(
                "Labels do not tell what was forgotten: give 1 for an example that was right after its task and is wrong "
                "now, otherwise 0."
            )
        texts = {short_name(label) for label in (predicted, true)}
        if self.names.classes or (self._labels and type(true) is int):
            valid, labels = any(texts <= {*names} for names in self._labels), ", ".join(self._labels[0][:20])
        else:
            valid, labels = "" not in texts, "whole numbers or names"
        if not valid or type(predicted) is not type(true) or type(true) not in (int, str):
            raise UserError(f"The labels are {labels}; not {predicted!r} or {true!r}.")
        return len(texts) == 2

    def _log_evidence(self, counts: Mapping[str, Any]) -> float:
        return float(log_evidence(self.bound, counts["n"], counts["errors"], *_columns(counts["starts"])))

    def _load(self) -> dict[str, Any]:
        """The counts in the state file, or the present ones if there is no file."""
        if self.path is None or not self.path.exists():
            return dict(self._counts)
        state = read_json(self.path)
        fields = {*self._identity, *COUNTS}
        if set(state) != fields or (state["format"], state["version"]) != (FORMAT, VERSION):
            raise DamagedError(self.path, f"not the state of a monitor of version {VERSION}")
        if any(state[name] != value for name, value in self._identity.items()):
            raise UserError(
                f"{self.path} belongs to a monitor of another certificate, claim or alpha; give each monitor a state file of "
                "its own."
            )
        return {name: state[name] for name in COUNTS}


def _columns(starts: list[list[int]]) -> tuple[list[int], list[int]]:
    return [n for n, _ in starts], [errors for _, errors in starts]


def _certificate(claim: Any) -> Certificate:
    """The certificate itself, or the last one at a path."""
    if isinstance(claim, Certificate):
        return claim
    if not isinstance(claim, str | Path):
        raise UserError(f"Give a certificate, its path, or a bound such as 0.05, not {claim!r:.60}.")
    return read_certificate(find_certificates(Path(claim), Verdict())[-1])


def _statement(
    statements: Iterable[Mapping[str, Any]], family: str, task: int | None, subject: str | int | None
) -> dict[str, Any]:
    """The statement with this family, task and subject; task 0 is the same as none.

    Of the forgetting of a task it is the statement about what was lost: the net rise is a difference of two rates, which
    feedback of 0 and 1 cannot refute.
    """
    if family == "forgetting" and task and subject in (None, "net"):
        if subject == "net":
            raise UserError(
                "A net rise is a difference of two error rates, which cannot be monitored; watch lost."
            )
        subject = "lost"
    by_name = {_name(s["family"], s["task"], s["subject"]): dict(s) for s in statements}
    name = _name(family, task, subject)
    if name not in by_name:
        raise UserError(
            f"The certificate claims nothing about {name}; it claims: {', '.join(by_name)[:200]}."
        )
    return by_name[name]


def _name(family: str, task: int | None, subject: str | int | None) -> str:
    return family + (f" {task}" if task else "") + ("" if subject is None else f" ({subject})")


def _plain_values(values: Any, name: str) -> list[Any]:
    """An array, a tensor or an iterable as a list of Python values, one per example."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        rows = []
    rows = [row.item() if hasattr(row, "item") else row for row in rows]
    if not rows or any(isinstance(row, list) for row in rows):
        raise UserError(f"{name} must be a list or an array with one entry per example, not {values!r:.60}.")
    return rows
