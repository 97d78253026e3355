"""The certificate: what is claimed, of which model and data, and everything needed to check it."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cop2l._version import __version__
from cop2l.bounds import Bound
from cop2l.certify.compress import digest
from cop2l.certify.history import History
from cop2l.certify.options import Options
from cop2l.certify.record import Counts, bounds_of, sharing
from cop2l.errors import UserError
from cop2l.kernel.arithmetic import percent

FORMAT, VERSION = "cop2l-certificate", 1
SET_NAMES = ("own", "first", "second", "left", "picked")

ASSUMPTIONS = (
    "Within each task the examples are independent draws from one distribution, the task's own.",
    "The samples of different tasks, and the marks, are mutually independent.",
    "The order, the sizes and the distributions of the tasks were not chosen by looking at earlier data.",
    "The initial parameters, the representation of inputs, the options and the claim were fixed independently of the data.",
    "The bound is on the probability of error on new examples of the task's own distribution, not of any other.",
)


@dataclass(frozen=True)
class TaskRecord:
    """One task's line: the integers, the bounds, and what the data was."""

    counts: Counts
    bounds: dict[str, Bound]
    fingerprint: str
    head: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        if name in Counts.__dataclass_fields__:
            return getattr(self.counts, name)
        raise AttributeError(name)


@dataclass
class Certificate:
    """Upper bounds on the true error of one model on every task seen, with the evidence.

    With probability at least 1 - delta over the draw of all samples and marks, under the assumptions listed, the
    error rate on every task t is at most the bound of the claimed kind, for all t at once.
    """

    options: Options
    scenario: str
    classes: int
    model: dict[str, Any]
    environment: dict[str, Any]
    histories: list[History]
    records: list[TaskRecord]
    theta_0: dict[str, Tensor]
    theta: dict[str, Tensor]
    not_valid: tuple[str, ...] = ()
    data: dict[str, Any] | None = None
    """How the data can be had and cut again, for those who verify; nothing is concluded from it."""
    examples: dict[str, Tensor] = field(default_factory=dict)
    """Only in a portable certificate: the examples of the compression sets and of the prior parts."""

    @property
    def tasks(self) -> list[TaskRecord]:
        """One record per task seen; `tasks[0]` is task 1."""
        return self.records

    @property
    def claim(self) -> str:
        """The kind of bound that was named in advance."""
        return self.options.claim

    @property
    def sharing(self) -> str:
        """Fixed or anytime: how delta is shared over time."""
        return sharing(self.options, len(self.records))

    @property
    def valid(self) -> bool:
        """Whether nothing is known against the assumptions."""
        return not self.not_valid

    def bound(self, task: int) -> Bound | None:
        """The claimed bound on this task (the buffer's, if the task's data was not at hand); None if there is none."""
        found = self.records[task - 1].bounds
        return found.get(self.claim) or found.get("buffer")

    def __str__(self) -> str:
        return table(self)

    def save(self, folder: str | Path) -> Path:
        """Write the certificate as a new folder, all at once; an older certificate of that name is replaced."""
        folder = Path(folder).resolve()
        if folder.exists() and not ((folder / "certificate.json").is_file() or not any(folder.iterdir())):
            raise UserError(f"{folder} exists and is not a certificate; choose another folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = folder.with_name(f".{folder.name}.partial")  # one a kill left behind is used again
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            sets = {
                f"{h.task}/{name}": torch.from_numpy(np.array(getattr(h, name), np.int64))
                for h in self.histories
                for name in SET_NAMES
            }
            parts = {"sets": sets, "theta_0": self.theta_0, "theta": self.theta}
            if self.examples:
                parts["examples"] = self.examples
            for name, tensors in parts.items():
                save_file(
                    {key: value.contiguous() for key, value in tensors.items()},
                    building / f"{name}.safetensors",
                )
            content = describe(self)
            content["files"] = {
                f"{name}.safetensors": file_digest(building / f"{name}.safetensors") for name in parts
            }
            content["digest"] = content_digest(content)
            (building / "certificate.json").write_text(
                json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            if folder.exists():
                shutil.rmtree(folder)
            building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        return folder

    @staticmethod
    def load(folder: str | Path) -> "Certificate":
        """Read a certificate; nothing in it is believed beyond its form: `verify` checks it."""
        return parse(*read(Path(folder)))


def issue(
    options: Options,
    scenario: str,
    classes: int,
    model: dict[str, Any],
    environment: dict[str, Any],
    histories: Sequence[History],
    counts: Sequence[Counts],
    theta_0: dict[str, Tensor],
    theta: dict[str, Tensor],
    not_valid: Sequence[str],
    data: dict[str, Any] | None = None,
    examples: dict[str, Tensor] | None = None,
) -> Certificate:
    """A certificate from the integers; the bounds are computed here and nowhere else."""
    messages = [history.iterations for history in histories]
    records = [
        TaskRecord(c, bounds_of(c, options, messages), history.fingerprint, history.head)
        for c, history in zip(counts, histories, strict=True)
    ]
    return Certificate(
        options,
        scenario,
        classes,
        model,
        environment,
        list(histories),
        records,
        theta_0,
        theta,
        tuple(not_valid),
        data,
        examples or {},
    )


def describe(certificate: Certificate) -> dict[str, Any]:
    """The certificate's JSON, without the digests of its files (docs/certificate.md explains every field)."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"cop2l {__version__}",
        "tasks": len(certificate.records),
        "delta": certificate.options.delta,
        "sharing": certificate.sharing,
        "claim": certificate.claim,
        "valid": certificate.valid,
        "not_valid": list(certificate.not_valid),
        "assumptions": list(ASSUMPTIONS),
        "scenario": certificate.scenario,
        "classes": certificate.classes,
        "model": certificate.model,
        "options": certificate.options.as_dict(),
        "data": certificate.data,
        "environment": certificate.environment,
        "theta_0": digest(certificate.theta_0),
        "theta": digest(certificate.theta),
        "records": [
            {
                **asdict(record.counts),
                "rows": history.rows,
                "head": list(record.head),
                "fingerprint": record.fingerprint,
                "bounds": {
                    kind: {"value": b.value, "reason": b.reason, "terms": b.terms}
                    for kind, b in record.bounds.items()
                },
            }
            for record, history in zip(certificate.records, certificate.histories, strict=True)
        ],
    }


def read(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The JSON and the tensors of a certificate's folder, unchecked."""
    path = folder / "certificate.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise UserError(
            f"There is no certificate in {folder}: the file certificate.json is missing."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable as JSON ({error}); ask for the certificate again.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not a cop2l certificate.")
    if content.get("version") != VERSION:
        raise UserError(
            f"{path} has version {content.get('version')!r}; this program reads version {VERSION}: use a matching cop2l."
        )
    tensors = {}
    for name in ("sets", "theta_0", "theta", "examples"):
        file = folder / f"{name}.safetensors"
        if name == "examples" and not file.exists():
            continue
        try:
            tensors[name] = load_file(file)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{file} is missing or damaged ({error}); ask for the certificate again."
            ) from None
    return content, tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one that names a key twice reads differently to people and to programs."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UserError("The certificate's text names a field twice; ask for the certificate again.")
    return found


def parse(content: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> Certificate:
    """A certificate from its JSON and tensors; a wrong form is a UserError that names what is wrong."""
    try:
        options = Options(**content["options"])
        histories, records = [], []
        for entry in content["records"]:
            task = entry["task"]
            sets = {name: tensors["sets"][f"{task}/{name}"].numpy() for name in SET_NAMES}
            histories.append(
                History(
                    task,
                    entry["rows"],
                    tuple(entry["head"]),
                    entry["fingerprint"],
                    entry["iterations"],
                    **sets,
                )
            )
            counts = Counts(**{f.name: entry[f.name] for f in fields(Counts)})
            bounds = {
                kind: Bound(b["value"], kind, b["reason"], b["terms"]) for kind, b in entry["bounds"].items()
            }
            records.append(TaskRecord(counts, bounds, entry["fingerprint"], tuple(entry["head"])))
        return Certificate(
            options,
            content["scenario"],
            content["classes"],
            content["model"],
            content["environment"],
            histories,
            records,
            tensors["theta_0"],
            tensors["theta"],
            tuple(content["not_valid"]),
            content["data"],
            tensors.get("examples", {}),
        )
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"The certificate does not have the documented form: {type(error).__name__} {error}."
        ) from None


def content_digest(content: dict[str, Any]) -> str:
    """SHA-256 of the JSON without its digest, in canonical form."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(
        json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table(certificate: Certificate) -> str:
    """A readable table: task, n, kept, errors, bound."""
    lines = [f"{'task':>4} {'n':>9} {'kept':>7} {'errors':>7} {'error <=':>9}  kind"]
    ours = certificate.claim in ("preference", "combined")
    for record in certificate.records:
        c, bound = record.counts, certificate.bound(record.counts.task)
        counted = c.missed if ours else c.errors
        kept = c.picked if ours else c.compression + c.evicted
        value, kind = (
            (percent(bound.value).replace(" ", "").rjust(9), bound.kind)
            if bound
            else (f"{'-':>9}", "data not at hand")
        )
        lines.append(
            f"{c.task:>4} {c.n:>9} {kept:>7} {'-' if counted is None else counted:>7} {value}  {kind}"
        )
    confidence = f"{100 * (1 - certificate.options.delta):g} %"
    lines.append(
        f"With probability at least {confidence} over the draw of the data, all of these hold at once ({certificate.sharing})."
    )
    lines += [f"NOT VALID: {reason}" for reason in certificate.not_valid]
    return "\n".join(lines)
