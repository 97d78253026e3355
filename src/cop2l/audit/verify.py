"""The loader reads the data, splits it into tasks, writes arrays, and runs the checker, which decides alone."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cop2l.audit.commitment import hash_from
from cop2l.audit.finding import find_certificates, is_export
from cop2l.audit.flags import verify_command
from cop2l.audit.readable import ReadableVerdict
from cop2l.audit.split import SPLIT_NOT_STANDARD, LoadedData, samples_for
from cop2l.errors import UserError, printable_text
from cop2l.experiments.records import SUMMARY, read_summary
from cop2l.kernel import arrays
from cop2l.kernel.form import TEXT_FILE, Unreadable, read_certificate
from cop2l.kernel.options import Refusal
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import PARTS, Verdict, quoted
from cop2l.streams.loading import GENERATED

NO_DIGEST = "0" * 64
NOT_READ = (
    "Beside the certificates only the reasons in the summary why they are not valid were read: "
    "no saved learner (its memory, prior examples, sums), no record, and no number of the summary."
)
SPARE_BYTES = 2**27
"""Bytes that stay free on the disk that the arrays are written to."""


def start_checker(arguments: list[str], **process_options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the checker in a process of its own; an end without a verdict is exit code 3."""
    command = [sys.executable, "-P", "-m", "cop2l.kernel", *arguments]
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
    notes, samples, digest, command = Verdict(), LoadedData(), NO_DIGEST, None
    path, folders = Path(path), find_certificates(Path(path), notes)
    export = ["--export", str(path)] if is_export(path) else []
    if path not in (folders[-1], folders[-1] / TEXT_FILE) and not export:
        notes.assumed.append(NOT_READ)
    try:
        last = read_certificate(folders[-1])
        digest = last["digest"]
        samples = samples_for(notes, last, data, split or {}, split_as_stated)
        _check_summary(notes, path, last["not_valid"])
        if any(SPLIT_NOT_STANDARD in sentence for sentence in notes.unverified):
            # the auditor names the data, the certificate the options
            command = verify_command(path, {**(last["data"] or {}), "stream": str(data)})
    except Refusal:  # the checker will refuse the certificate, too
        pass
    arguments = [*map(str, folders), *export, *checker_options]
    arguments += ["--model", _function_name(model)] if model is not None else []
    arguments += ["--commitment", hash_from(commitment)] if commitment is not None else []
    fields = {
        "whole": samples.stream is not None,
        "draws": not isinstance(data, Mapping) and str(data) in GENERATED,
        "command": command,
        "notes": {name: [printable_text(line)[:900] for line in getattr(notes, name)] for name in PARTS},
    }
    with _arrays_folder(keep_arrays, _bytes_of(samples.tasks) + _bytes_of(samples.tests)) as folder:
        try:
            arrays.write_arrays(folder, digest, samples.tasks, samples.tests, **fields)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise Unreadable(f"The data cannot be written as arrays: {error!r:.200}") from None
        del samples
        return start_checker([str(folder), *arguments], **process_options)


def _check_summary(notes: Verdict, run: Path, declared: Sequence[str]) -> None:
    """Add the reasons in a run's summary that its certificates, which are older, do not declare."""
    if not (run / SUMMARY).is_file():
        return
    try:
        reasons = [reason for reason in read_summary(run).not_valid if reason not in declared]
    except UserError:
        return
    notes.invalid += [
        f"The run declares its certificate not valid: {quoted(reason, 600)}" for reason in reasons
    ]


def _bytes_of(tasks: arrays.Samples) -> int:
    """The number of bytes that the arrays take; 0 for values that cannot be written, which writing refuses."""
    try:
        return sum(len(x) * (numbers(x[:1]).nbytes + 16) for x, *_ in tasks.values() if len(x))
    except (TypeError, ValueError, AttributeError, IndexError):
        return 0


@contextmanager
def _arrays_folder(keep_arrays: str | Path | None, size: int) -> Iterator[Path]:
    """A private folder for this number of bytes: a temporary one, or the new folder that the auditor names."""
    parent = Path(keep_arrays).absolute().parent if keep_arrays is not None else Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(parent).free) < size + SPARE_BYTES:
        sizes = f"The arrays take {size / 1e9:.1f} GB, and {parent} has {free / 1e9:.1f} GB"
        raise UserError(f"{sizes}: set TMPDIR to a larger disk, or give --keep-arrays.")
    if keep_arrays is None:
        with tempfile.TemporaryDirectory(prefix="cop2l-") as scratch:
            yield Path(scratch)
        return
    try:
        Path(keep_arrays).mkdir(mode=0o700)
    except FileExistsError:
        raise UserError(f"{keep_arrays} is there already; give --keep-arrays a new folder.") from None
    yield Path(keep_arrays)


def _function_name(model: str | Callable[[int], Any]) -> str:
    """The name of the auditor's function, which the checker imports."""
    if isinstance(model, str):
        return model
    name = f"{getattr(model, '__module__', '')}:{getattr(model, '__qualname__', '')}"
    if (
        not callable(model)
        or name.startswith("__main__")
        or "<" in name
        or name.count(".") > name.partition(":")[0].count(".")
    ):
        raise UserError(
            "Give the model as the name of a function build(seed) in a module, such as 'my_models:build'."
        )
    return name


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
