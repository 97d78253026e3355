"""The loader reads the data, splits it into tasks, writes arrays, and runs the checker, which decides alone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cop2l.audit.finding import find_certificates, is_export
from cop2l.audit.flags import verify_command
from cop2l.audit.split import SPLIT_NOT_STANDARD, LoadedData, samples_for
from cop2l.certificates import notebook
from cop2l.certificates.commitment import commitment_hash, read_commitment
from cop2l.errors import UserError, printable_text
from cop2l.experiments.records import SUMMARY
from cop2l.kernel import arrays
from cop2l.kernel.form import TEXT_FILE, Unreadable, json_object, read_content, read_json
from cop2l.kernel.options import Refusal
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import CONCLUSIONS, PARTS, Verdict, quoted
from cop2l.streams.loading import GENERATED
from cop2l.text import count

NOT_READ = (
    "Beside the certificates only the reasons in the summary why they are not valid were read: "
    "no saved learner (its memory), no record, and no number of the summary."
)
COLOURS = {"valid": notebook.ACCENT, "invalid": notebook.ALARM, "cannot tell": notebook.QUIET}
UNFOLDED = ("invalid", "unverified", "claim")
"""The parts that a notebook shows first; the others are folded."""


def start_checker(arguments: list[str], **process_options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the checker in a process of its own; an end without a verdict is exit code 3."""
    command = [sys.executable, "-P", "-m", "cop2l.kernel", *arguments, "--parent", str(os.getpid())]
    process = subprocess.run(command, check=False, text=True, **process_options)
    if not process.stdout and process.returncode not in (3, 130):  # it was killed, or could not be imported
        sentence = f"cop2l: the checker ended without a verdict (its exit code: {process.returncode}).\n"
        process.returncode, process.stderr = 3, f"{process.stderr or ''}{sentence}"
    return process


def run_checker(
    path: str | Path,
    data: str | Path | Mapping[int, tuple[Any, ...]] | None = None,
    *,
    model: str | Callable[[int], Any] | None = None,
    split: Mapping[str, Any] | None = None,
    split_as_stated: bool = False,
    commitment: str | Path | Mapping[str, Any] | None = None,
    keep_arrays: str | Path | None = None,
    checker_options: Sequence[str] = (),
    **process_options: Any,
) -> "subprocess.CompletedProcess[str]":
    """Load the data and run the checker on it; its exit code is the verdict."""
    notes, samples, digest, command, has_all_rows = Verdict(), LoadedData(), "0" * 64, None, False
    path, folders = Path(path), find_certificates(Path(path), notes)
    export = ["--export", str(path)] if is_export(path) else []
    if path not in (folders[-1], folders[-1] / TEXT_FILE) and not export:
        notes.assumed.append(NOT_READ)
    try:
        last = read_content(folders[-1])
        digest = last["digest"]
        samples = samples_for(notes, last, data, split or {}, split_as_stated)
        _check_summary(notes, path, last["not_valid"])
        sizes = {record["task"]: record["rows"] for record in last["records"]}
        has_all_rows = samples.stream is not None or any(
            len(y) > sizes.get(t, len(y)) for t, (_, y, *_) in samples.tasks.items()
        )
        if any(SPLIT_NOT_STANDARD in sentence for sentence in notes.unverified):
            # the auditor names the data, the certificate the options
            command = verify_command(path, {**(last["data"] or {}), "stream": str(data)})
    except Refusal:  # the checker will refuse the certificate, too
        pass
    arguments = [*map(str, folders), *export, *checker_options]
    arguments += ["--model", _function_name(model)] if model is not None else []
    arguments += ["--commitment", _hash_of(commitment)] if commitment is not None else []
    fields = {
        "whole": has_all_rows,
        "draws": not isinstance(data, Mapping) and str(data) in GENERATED,
        "command": command if len(command or "") <= 10**4 else None,  # a part would be another split
        "notes": {name: [printable_text(line)[:900] for line in getattr(notes, name)] for name in PARTS},
    }
    with _arrays_folder(keep_arrays) as folder:
        try:
            _check_free_space(Path(folder), samples)
            arrays.write_arrays(Path(folder), digest, samples.tasks, samples.tests, **fields)
        except UserError:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, OSError) as error:
            raise Unreadable(f"The data cannot be written as arrays to {folder}: {error!r:.200}") from None
        del samples
        return start_checker([str(folder), *arguments], **process_options)


def _check_summary(notes: Verdict, run: Path, declared: Sequence[str]) -> None:
    """Add the reasons in a run's summary that its certificates, which are older, do not declare."""
    try:
        reasons = json_object(read_json(run / SUMMARY), SUMMARY).get("not_valid")
    except (Refusal, Unreadable):  # also if there is none
        return
    notes.invalid += [
        f"The run declares its certificate not valid: {quoted(reason, 600)}"
        for reason in (reasons if isinstance(reasons, list) else [])
        if isinstance(reason, str) and reason not in declared
    ]


def _arrays_folder(keep_arrays: str | Path | None) -> AbstractContextManager[Any]:
    """A private folder: a temporary one, or the new folder that the auditor names."""
    if keep_arrays is None:
        return tempfile.TemporaryDirectory(prefix="cop2l-")
    try:
        Path(keep_arrays).mkdir(mode=0o700)
    except FileExistsError:
        raise UserError(f"{keep_arrays} is there already; give --keep-arrays a new folder.") from None
    return nullcontext(keep_arrays)


def _check_free_space(folder: Path, samples: LoadedData) -> None:
    """Refuse data whose arrays are larger than what the disk of this folder has free."""
    inputs = [x for x, *_ in (*samples.tasks.values(), *samples.tests.values()) if len(x)]
    size, free = sum(len(x) * numbers(x[:1]).nbytes for x in inputs), shutil.disk_usage(folder).free
    if size > free:
        sizes = f"The arrays take {size / 1e9:.1f} GB, and {folder.parent} has {free / 1e9:.1f} GB"
        raise UserError(f"{sizes}: set TMPDIR to a larger disk, or give --keep-arrays.")


def _hash_of(commitment: str | Path | Mapping[str, Any]) -> str:
    """The hash of a commitment that an auditor gives as a hash, a file or its content."""
    if isinstance(commitment, Mapping):
        return commitment_hash(commitment)
    if Path(commitment).exists():
        return commitment_hash(read_commitment(commitment))
    if not re.fullmatch("[0-9a-fA-F]{64}", str(commitment)):
        raise UserError(
            f"{commitment} is neither the SHA-256 of a commitment nor its file; give the one you were handed."
        )
    return str(commitment).lower()


def _function_name(model: str | Callable[[int], Any]) -> str:
    """The name of the auditor's function, which the checker imports."""
    if isinstance(model, str):
        return model
    module, name = getattr(model, "__module__", ""), getattr(model, "__qualname__", "")
    if not callable(model) or module == "__main__" or not name.isidentifier():
        raise UserError(
            "Give the model as the name of a function build(seed) in a module, such as 'my_models:build'."
        )
    return f"{module}:{name}"


class ReadableVerdict(Verdict):
    """A verdict with a short repr and a table for notebooks."""

    def __repr__(self) -> str:
        numbers = {name: len(getattr(self, name)) for name in ("invalid", "unverified")}
        counts = (f"{number} {name}" for name, number in numbers.items() if number)
        return f"Verdict({', '.join([self.status, count(len(self.statements), 'statement'), *counts])})"

    def _repr_html_(self) -> str:
        parts = {
            name: notebook.folded_list(title, getattr(self, name), folded=name not in UNFOLDED)
            for name, title in PARTS.items()
        }
        title, _, meaning = CONCLUSIONS[self.status].partition(": ")
        unfolded = [parts.pop(name) for name in UNFOLDED]
        conclusion = notebook.paragraph(f"{meaning[0].upper()}{meaning[1:]}")
        return notebook.card(
            title.capitalize(), *unfolded, conclusion, *parts.values(), colour=COLOURS[self.status]
        )


def verify(
    path: str | Path,
    data: str | Path | Mapping[int, tuple[Any, ...]] | None = None,
    *,
    count_repeats: bool = False,
    repeats_are_draws: bool = False,
    limit: float | None = None,
    **options: Any,
) -> Verdict:
    """Check the certificate in a folder, all certificates of a run directory, or an export, in a process of its own.

    - `data`: a stream's name, a file or folder, or a mapping from task numbers to (x, y) or (x, y, groups)
    - `split`: the options of `cop2l.streams.load` with which you know the data to be split
    - `split_as_stated`: accept the issuer's split; the verdict lists it
    - `model`: your function build(seed), in a module, or its name as package.module:function
    - `commitment`: the commitment that you were handed before: a hash, a file or its content
    - `count_repeats`: accept larger bounds in which rows count as errors if the model cannot tell them from another
    - `repeats_are_draws`: such rows are independent draws of discrete data
    - `limit`: stop if the check needs more than this number of operations
    - `keep_arrays`: keep the checker's input in this new folder

    `cop2l.errors.UserError` is raised if no verdict is possible.
    """
    flags = ["--json", *["--count-repeats"] * count_repeats, *["--repeats-are-draws"] * repeats_are_draws]
    flags += [] if limit is None else ["--limit", str(limit)]
    process = run_checker(path, data, checker_options=flags, capture_output=True, **options)
    if process.returncode not in (0, 1, 2):
        raise Unreadable(process.stderr.strip()[-500:].removeprefix("cop2l: "))
    content = json.loads(process.stdout)
    fields = {name: content[name] for name in (*PARTS, "statements", "command")}
    return ReadableVerdict(**fields, _complete=content["status"] == "valid")
