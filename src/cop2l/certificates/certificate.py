"""The certificate: what is claimed of which model and data, and everything needed to check it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cop2l._version import __version__
from cop2l.certificates import notebook
from cop2l.certificates.bounding import bound_of, kinds_of, log_delta
from cop2l.certificates.families import all_sentences
from cop2l.errors import UserError
from cop2l.files import DamagedError, file_digest, last_complete, write_text
from cop2l.kernel import form
from cop2l.kernel.options import Options
from cop2l.text import HEADS, Names, aligned, all_hold, percent, statement_sentence

if TYPE_CHECKING:
    from torch import Tensor

FROM_MEMORY = (
    "Bounds of the kind buffer are counted only on the old examples still in memory, and are larger; "
    "'cop2l plan' says what more memory, or the data, would give."
)
FROM_KEPT = (
    "Past tasks are certified by the withheld rows that were kept: among them copies of learned rows count as errors if their"
    " inputs are equal; near-copies were not looked for."
)


@dataclass(frozen=True, repr=False)
class Certificate:
    """Upper bounds on the true error of one model on every task that it learned, with the evidence.

    With probability at least 1 - delta over the draw of all samples and marks, under the assumptions listed, the error
    rate on every task t is at most its bound, for all t at once.
    """

    content: dict[str, Any]
    """The fields of certificate.json; docs/certificates.md explains each."""
    options: Options
    tensors: "Mapping[str, Mapping[str, Tensor]] | None" = None
    """The contents of the files beside it (sets, theta_0, theta); None if it was read without them."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """The integers of every task; `records[0]` is task 1."""
        return list(self.content["records"])

    @property
    def statements(self) -> list[dict[str, Any]]:
        """The claims: family, task, subject, kind and value of each."""
        return list(self.content["statements"])

    @property
    def kind(self) -> str:
        """The kind of bound that is claimed."""
        return self.options.kind

    @property
    def bounds(self) -> dict[int, float]:
        """The claimed bound on the error of every task that has one."""
        return {s["task"]: s["value"] for s in self.content["statements"] if s["family"] == "tasks"}

    @cached_property
    def claimed(self) -> dict[int, dict[str, float]]:
        """The claimed bound of every task that has one, by kind."""
        return {
            s["task"]: {s["kind"]: s["value"]} for s in self.content["statements"] if s["family"] == "tasks"
        }

    @property
    def sentences(self) -> list[str]:
        """The statements, one sentence each."""
        sizes = [record["n"] for record in self.records]
        return [f"{statement_sentence(statement, sizes)}." for statement in self.statements]

    @property
    def not_valid(self) -> tuple[str, ...]:
        """Known reasons why the assumptions do not hold."""
        return tuple(self.content["not_valid"])

    def information(self, task: int) -> dict[str, float]:
        """Bounds of other kinds for a task, to compare with. They are not claimed: delta does not cover a choice among kinds."""
        records = self.content["records"]
        if task not in range(1, len(records) + 1):
            raise UserError(f"There is no task {task!r}; the certificate has the tasks 1 to {len(records)}.")
        values = [s["value"] for s in self.statements if s["task"] in (task, None)]
        if self.not_valid and min(values, default=1.0) == 1.0:
            return {}  # the reason why the claim is void applies to the other kinds, too
        claimed = {*self.claimed.get(task, ())}
        if "tasks" not in self.options.claim:  # readers would take it for a claim
            claimed.add(self.kind)
        counts, share = records[task - 1], log_delta(self.options, len(records))
        messages = [record["iterations"] for record in records]
        kinds = [kind for kind in kinds_of(counts, self.options) if kind not in claimed]
        return {kind: float(bound_of(kind, counts, task, self.options, messages, share)) for kind in kinds}

    def save(self, folder: str | Path) -> None:
        """Write the certificate into a new folder; the text last, so that it never names a missing file."""
        from safetensors.torch import save_file

        if self.tensors is None:
            raise UserError("This certificate was read without its tensors; copy its folder instead.")
        folder, files = Path(folder), {}
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensors in self.tensors.items():
            path = folder / f"{name}.safetensors"
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
            files[path.name] = file_digest(path)
        self._write(folder, files)

    def _write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write the text, with the hashes of its files and its own digest."""
        content = {**self.content, "files": files}
        content["digest"] = form.content_digest(content)
        write_text(folder / form.TEXT_FILE, certificate_text(content))

    def __str__(self) -> str:
        return "\n".join([*self._invalid_lines, *aligned(table_cells(self)), *notes(self)])

    @property
    def _invalid_lines(self) -> list[str]:
        return [f"NOT VALID: {reason}" for reason in self.not_valid]

    def __repr__(self) -> str:
        bounds, count = self.bounds.values(), len(self.records)
        tasks = "every task" if len(bounds) == count else f"{len(bounds)} of them"
        claim = f"error at most {percent(max(bounds))} on {tasks}" if bounds else "no bound on single tasks"
        invalid = ", NOT VALID" * bool(self.not_valid)
        return f"Certificate({count} task{'s' * (count != 1)}, {claim}, {self.kind}{invalid})"

    def _repr_html_(self) -> str:
        head, *rows = table_cells(self)
        paragraphs = map(notebook.paragraph, [*self._invalid_lines, *notes(self)])
        title, colour = "Certificate", notebook.ACCENT
        if self.not_valid:
            title, colour = "Certificate, NOT VALID", notebook.ALARM
        elif len(self.bounds) == len(self.records):
            title = f"Certified: at most {percent(max(self.bounds.values()))} error on every task"
        bold = [(row, head.index("error <=")) for row in range(len(rows))]
        table = notebook.table(rows, head, text_columns=(0, len(head) - 1), bold=bold)
        return notebook.card(title, table, *paragraphs, colour=colour)


def certificate_text(content: Mapping[str, Any]) -> str:
    """The text of a certificate: one line for each field, and for each statement and record."""
    line = partial(json.dumps, sort_keys=True, allow_nan=False)
    fields = []
    for name, value in sorted(content.items()):
        is_list = name in ("statements", "records")
        text = "[\n  " + ",\n  ".join(map(line, value)) + "\n ]" if is_list else line(value)
        fields.append(f" {line(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def read_certificate(folder: str | Path) -> Certificate:
    """The certificate in a folder, without its tensors. Only its form and hashes are checked: see `cop2l.verify`."""
    content = form.read_content(Path(folder))
    options = content["options"]
    del content["folder"]  # a path, which is no part of the certificate
    return Certificate({**content, "options": options.as_dict()}, options)


def stored_certificate(folder: Path, tasks: int) -> Certificate | None:
    """The certificate beside a saved learner of so many tasks, or in its run directory; None if there is none."""
    path = last_complete(folder / "certificate")
    if not path.exists():
        path = last_complete(folder.parent / "certificates" / f"after-{tasks:02d}")
    try:
        return read_certificate(path) if path.exists() else None
    except UserError as error:
        raise DamagedError(path, str(error).rstrip(".")) from None


def content_of(
    options: Options,
    statements: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
    **fields: Any,
) -> dict[str, Any]:
    """The content of a certificate, without the hashes of its files and its digest."""
    return {
        "format": form.FORMAT,
        "version": form.VERSION,
        "made_by": f"cop2l {__version__}",
        "options": options.as_dict(),
        "assumptions": list(form.ASSUMPTIONS),
        "statements": [dict(statement) for statement in statements],
        "records": [dict(record) for record in records],
        "settings": None,
        "data": None,
        "commitment": None,
        "earlier": [],
        "not_valid": [],
        **fields,
    }


def certifying_examples(record: Mapping[str, Any]) -> int:
    """The number of examples of a task that certify it: without its data, those in the memory."""
    return int((record["selected"] or 0) if record["errors_not_picked"] is None else record["n"])


def table_cells(certificate: Certificate) -> list[tuple[Any, ...]]:
    """The heading and the rows of the table."""
    claimed = {s["task"]: s for s in certificate.statements if s["family"] == "tasks"}
    is_holdout = certificate.kind == "holdout"  # nothing is picked
    reason = "its data was gone" if "tasks" in certificate.options.claim else "not claimed"
    rows: list[tuple[Any, ...]] = [tuple(head for head in HEADS if not (is_holdout and head == "picked"))]
    names = Names.from_description(certificate.content["data"])
    for record in certificate.records:
        statement = claimed.get(record["task"])
        picked = () if is_holdout else (record["picked"],)
        numbers = [certifying_examples(record), *picked, record["errors_not_picked"]]
        bound = (percent(statement["value"]), statement["kind"]) if statement else ("-", reason)
        task = f"{record['task']}{names.task(record['task'])}"
        rows.append((task, *("-" if number is None else number for number in numbers), *bound))
    return rows


def notes(certificate: Certificate) -> list[str]:
    """The sentences under the table."""
    options = certificate.options
    lines = [*all_sentences(certificate.statements, certificate.records)]
    when = "of this run, one after each task at most, " if options.anytime else ""
    lines += [all_hold(options.delta, when)] * (not certificate.not_valid)
    if any(statement["kind"] == "buffer" for statement in certificate.statements):
        lines.append(FROM_MEMORY)
    if (certificate.content["data"] or {}).get("kept"):
        lines.append(FROM_KEPT)
    return [*map(Names.from_description(certificate.content["data"]).with_names, lines)]
