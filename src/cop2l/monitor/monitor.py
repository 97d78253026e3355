"""Monitor: one claim, its feedback so far, and the alarm, in one small file."""

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from pathlib import Path
from typing import Any, cast

from cop2l.audit.finding import find
from cop2l.bounds.checks import real
from cop2l.certify.certificate import Certificate, read
from cop2l.errors import UserError
from cop2l.files import DamagedError, Lock, json_digest, read_json, write_json
from cop2l.kernel.arithmetic import percent
from cop2l.kernel.options import Refusal
from cop2l.kernel.verdict import Verdict
from cop2l.monitor.evidence import accuser, due, log_evidence

FORMAT, VERSION = "cop2l-monitor", 1
MOST_POINTS = 400
"""How many ends of batches the state keeps for the plot; then every second one is left out."""
IDENTITY = {
    "certificate": "another certificate",
    "statement": "another claim",
    "alpha": "another level alpha",
}


class Monitor:
    """Watches one claim of a certificate, "the error rate is at most b", through feedback that arrives in batches.

    If the claim is true and the assumptions of `words.ASSUMPTIONS` hold, the probability that there is ever an alarm is at
    most alpha, however long the monitor lives and whenever it is looked at.

    claim: a certificate, the path of one or of a run, or a bound b. family, task, subject: which of its statements. state: the
    file that carries the counts on; without one they live as long as the object. A state is never begun again.
    """

    def __init__(
        self,
        claim: Any,
        family: str = "tasks",
        task: int | None = None,
        subject: str | int | None = None,
        *,
        alpha: float = 0.01,
        state: str | Path | None = None,
    ) -> None:
        self.alpha, self.path = real("alpha", alpha), None if state is None else Path(state)
        if not 1e-300 <= self.alpha < 1:
            raise UserError(f"alpha must be a number above 0 and below 1, for example 0.01, not {alpha!r}.")
        self.classes: int | None = None
        identity = None
        if isinstance(claim, Real) and not isinstance(claim, bool):
            named = {"family": family, "task": task, "subject": subject}
            self.statement = {**named, "kind": None, "value": float(claim)}
        else:
            certificate = opened(claim)
            self.statement = chosen(certificate.statements, family, task, subject)
            self.classes = certificate.content["classes"]
            identity = json_digest(
                {key: value for key, value in certificate.content.items() if key not in ("files", "digest")}
            )
        self.bound = watchable(self.statement["value"])
        self._state: dict[str, Any] = {
            "format": FORMAT, "version": VERSION, "certificate": identity, "statement": self.statement,
            "alpha": self.alpha, "n": 0, "errors": 0, "batches": 0, "starts": [], "alarm": None, "trajectory": [],
        }  # fmt: skip
        self._load()

    def __repr__(self) -> str:
        state = "ALARM" if self.alarm else "no alarm"
        return f"Monitor(at most {percent(self.bound)}, {self.errors} wrong of {self.n}, {state})"

    @property
    def n(self) -> int:
        """How many examples have been counted."""
        return int(self._state["n"])

    @property
    def errors(self) -> int:
        """How many of them were errors."""
        return int(self._state["errors"])

    @property
    def batches(self) -> int:
        """After how many batches the evidence was looked at."""
        return int(self._state["batches"])

    @property
    def alarmed_at(self) -> int | None:
        """How many examples had been counted when the alarm came; None if there was none."""
        return cast("int | None", self._state["alarm"])

    @property
    def alarm(self) -> bool:
        """Whether there was an alarm; once there was, for ever."""
        return self.alarmed_at is not None

    @property
    def log_evidence(self) -> float:
        """The logarithm of the evidence against the claim, from the counts, rounded down."""
        return float(log_evidence(self.bound, self.n, self.errors, *self._starts()))

    @property
    def since(self) -> tuple[int, int]:
        """The counts (examples, errors) from which on the evidence is largest."""
        ends, wrong = self._starts()
        which = accuser(self.bound, self.n, self.errors, ends, wrong)
        return ([0, *ends][which], [0, *wrong][which])

    def _starts(self) -> tuple[list[int], list[int]]:
        starts = self._state["starts"]
        return [n for n, _ in starts], [errors for _, errors in starts]

    @property
    def evidence(self) -> float:
        """E_n: it stays around or below one if the claim is true; the alarm comes at 1/alpha."""
        return math.exp(min(self.log_evidence, math.log(sys.float_info.max) - 1e-9))

    @property
    def trajectory(self) -> list[tuple[int, int, float]]:
        """At some ends of batches, in order: examples, errors, and the logarithm of the evidence."""
        return [(n, errors, evidence) for n, errors, evidence in self._state["trajectory"]]

    def update(self, errors: Iterable[Any]) -> bool:
        """Count one batch, of 0 (right) and 1 (wrong), and look at the evidence once, at its end; whether there is an alarm."""
        found = listed(errors, "errors")
        for value in found:
            if isinstance(value, str) or value not in (0, 1):
                raise UserError(f"errors must be 0 (right) or 1 (wrong), not {value!r}; nothing was counted.")
        return self._count(len(found), int(sum(found)))

    def update_labels(self, predicted: Iterable[Any], true: Iterable[Any]) -> bool:
        """Count one batch from predicted and true labels."""
        ours, theirs = listed(predicted, "predicted"), listed(true, "true")
        if len(ours) != len(theirs):
            raise UserError(
                f"predicted has {len(ours)} labels and true has {len(theirs)}; give one of each per example."
            )
        return self.update([self.is_error(a, b) for a, b in zip(ours, theirs, strict=True)])

    def is_error(self, predicted: Any, true: Any) -> bool:
        """Whether two labels make an error; refused where they do not tell."""
        if self.statement["family"] == "forgetting":
            raise UserError(
                "Labels do not tell what was forgotten: give 1 for an example that the parameters of then had right and those "
                "of now have wrong, else 0."
            )
        return mistaken(predicted, true, self.classes)

    def reload(self) -> None:
        """Read what another process may have counted since."""
        self._load()

    def as_dict(self) -> dict[str, Any]:
        """What was found, for JSON."""
        found = {
            name: self._state[name]
            for name in ("certificate", "statement", "alpha", "n", "errors", "batches")
        }
        found |= {"evidence": self.evidence, "log_evidence": self.log_evidence}
        return found | {"alarm": self.alarm, "alarm_after": self.alarmed_at, "since": list(self.since)}

    def _count(self, n: int, errors: int) -> bool:
        with self._alone():
            self._load()  # another process may have counted since
            state = dict(self._state)
            before = state["n"]
            state |= {"n": before + n, "errors": state["errors"] + errors, "batches": state["batches"] + 1}
            if due(before, state["n"]):
                state["starts"] = [*state["starts"], [state["n"], state["errors"]]]
            old, self._state = self._state, state
            try:
                now = self.log_evidence
                if state["alarm"] is None and now >= -math.log(self.alpha):
                    state["alarm"] = state["n"]
                points = [*state["trajectory"], [state["n"], state["errors"], now]]
                state["trajectory"] = points[1::2] if len(points) == MOST_POINTS else points
                if self.path is not None:
                    write_json(self.path, state)
            except BaseException:
                self._state = old  # what is not on the disk was not counted
                raise
        return self.alarm

    def _alone(self) -> AbstractContextManager[Any]:
        if self.path is None:
            return nullcontext()
        busy = f"{self.path} is being written by another monitor ({{holder}}); try again when it is done."
        return Lock(self.path.with_name(f".{self.path.name}.lock"), busy)

    def _load(self) -> None:
        if self.path is None or not self.path.exists():
            return
        found = read_json(self.path)
        if (found.get("format"), found.get("version")) != (FORMAT, VERSION) or set(found) != set(self._state):
            raise DamagedError(self.path, f"not the state of a monitor of version {VERSION}")
        for name, words in IDENTITY.items():
            if found[name] != self._state[name]:
                raise UserError(
                    f"{self.path} belongs to a monitor of {words}; give each monitor a state file of its own."
                )
        self._state = found


def opened(claim: Any) -> Certificate:
    """The certificate itself, or the last one at a path."""
    if isinstance(claim, Certificate):
        return claim
    if not isinstance(claim, str | Path):
        raise UserError(f"Give a certificate, its path, or a bound such as 0.05, not {claim!r:.60}.")
    try:
        folders, _ = find(Path(claim), Verdict())
    except Refusal as refusal:
        raise UserError(str(refusal)) from None
    if not folders:
        raise UserError(f"There is no certificate in {claim}; its run has issued none so far.")
    return read(folders[-1])


def chosen(
    statements: Iterable[Mapping[str, Any]], family: str, task: int | None, subject: str | int | None
) -> dict[str, Any]:
    """The one statement with this family, task and subject; task 0 and none are the same.

    Of what was forgotten of a task, that is what was lost: the net is a difference of two rates, and feedback of 0 and 1 with a
    larger mean does not refute it.
    """
    every = [dict(statement) for statement in statements]
    if family == "forgetting" and task:
        if subject == "net":
            raise UserError(
                "A net rise is a difference of two error rates, which cannot be monitored; watch lost."
            )
        subject = "lost" if subject is None else subject
    wanted = (family, task or None, None if subject is None else str(subject))
    found = [one for one in every if _name(one) == wanted]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise UserError(
            f"The certificate claims several things about {_words(wanted)}; monitor a bound instead."
        )
    known = ", ".join(_words(_name(one)) for one in every[:12]) + (", ..." if len(every) > 12 else "")
    raise UserError(f"The certificate claims nothing about {_words(wanted)}; it claims: {known}.")


def _name(statement: Mapping[str, Any]) -> tuple[str, int | None, str | None]:
    subject = statement["subject"]
    return statement["family"], statement["task"] or None, None if subject is None else str(subject)


def _words(name: tuple[str, int | None, str | None]) -> str:
    family, task, subject = name
    return family + (f" {task}" if task else "") + (f" ({subject})" if subject is not None else "")


def watchable(bound: Any) -> float:
    """A bound that feedback can refute."""
    if bound == 1:
        raise UserError(
            "The claim is that the error rate is at most 100 %; nothing can refute that, so there is nothing to monitor."
        )
    if bound == 0:
        raise UserError(
            "The claim is that there are no errors at all; a single error refutes it, so it needs no monitor."
        )
    if not 1e-12 <= bound <= 1 - 1e-12:
        raise UserError(f"The bound must be above 0 and below 1, for example 0.05, not {bound!r}.")
    return float(bound)


def listed(values: Any, name: str) -> list[Any]:
    """An array, a tensor or an iterable as a list of plain values."""
    try:
        found = values.tolist() if hasattr(values, "tolist") else list(values)
    except TypeError:
        found = None
    if (
        not isinstance(found, list)
        or isinstance(values, str | bytes | Mapping)
        or any(isinstance(v, list) for v in found)
    ):
        raise UserError(f"{name} must be a list or an array with one entry per example, not {values!r:.60}.")
    if not found:
        raise UserError(f"{name} is empty; a batch has at least one example.")
    return found


def mistaken(predicted: Any, true: Any, classes: int | None) -> bool:
    """Whether two labels differ; what is not a label, or not one of the certificate's classes, is refused."""
    one, other = _label(predicted, classes), _label(true, classes)
    if type(one) is not type(other):
        raise UserError(
            f"A label is a number or a name, in both places the same, not {predicted!r} and {true!r}."
        )
    return one != other


def _label(value: Any, classes: int | None) -> int | str:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise UserError(
            f"A label is a whole number or a name, not {value!r}; nothing of its batch was counted."
        )
    if isinstance(value, int) and classes is not None and not 0 <= value < classes:
        raise UserError(
            f"The model tells classes 0 to {classes - 1} apart, and {value} is none; nothing of its batch was counted."
        )
    return value
