"""The loader: reads the data, splits it into tasks, writes arrays, and starts the checker, which decides alone."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cop2l.audit.commitment import given_hash
from cop2l.audit.finding import find_certificates, is_export
from cop2l.audit.flags import verify_command
from cop2l.audit.readable import ReadableVerdict
from cop2l.audit.split import SPLIT_NOT_STANDARD, Samples, samples_for
from cop2l.errors import UserError, printable_text
from cop2l.experiments.records import SUMMARY, read_summary
from cop2l.kernel import arrays
from cop2l.kernel.form import Unreadable, read_certificate
from cop2l.kernel.options import Refusal
from cop2l.kernel.verdict import PARTS, Verdict, quoted
from cop2l.streams.loading import GENERATED

NO_DIGEST = "0" * 64
BESIDE = "Nothing beside the certificates was looked at: no saved learner (its memory, prior examples, sums), record or summary."
SPARE = 2**27
"""Bytes that stay free on the disk that the arrays are written to."""


def start_checker(words: list[str], **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run the checker in a process of its own; whatever ends it without a verdict is exit code 3."""
    done = subprocess.run([sys.executable, "-P", "-m", "cop2l.kernel", *words], check=False, text=True, **how)
    if not done.stdout and done.returncode not in (3, 130):  # it was killed, or could not be imported
        ended = f"cop2l: the checker ended without a verdict (its exit code: {done.returncode}).\n"
        done.returncode, done.stderr = 3, f"{done.stderr or ''}{ended}"
    return done


def check(
    path: str | Path,
    data: str | Path | Mapping[int, tuple[Any, ...]] | None = None,
    *,
    model: str | Callable[[int], Any] | None = None,
    split: Mapping[str, Any] | None = None,
    split_as_stated: bool = False,
    commitment: str | Path | Mapping[str, Any] | None = None,
    keep_arrays: str | Path | None = None,
    more: tuple[str, ...] = (),
    **how: Any,
) -> "subprocess.CompletedProcess[str]":
    """Load the data and have the checker decide; its exit code is the verdict."""
    notes, samples, digest, typed = Verdict(), Samples(), NO_DIGEST, None
    path, folders = Path(path), find_certificates(Path(path), notes)
    export = ["--export", str(path)] if is_export(path) else []
    if path not in (folders[-1], folders[-1] / "certificate.json") and not export:
        notes.assumed.append(BESIDE)
    try:
        last = read_certificate(folders[-1])
        digest = last["digest"]
        samples = samples_for(notes, last, data, split or {}, split_as_stated)
        _check_summary(notes, path, last["not_valid"])
        if any(
            SPLIT_NOT_STANDARD in sentence for sentence in notes.unverified
        ):  # the data is the auditor's to name
            typed = verify_command(path, {**(last["data"] or {}), "stream": str(data)})
    except Unreadable:
        raise
    except Refusal:  # the checker finds it, too
        pass
    words = [*map(str, folders), *export, *more]
    words += ["--model", _name(model)] if model is not None else []
    words += ["--commitment", given_hash(commitment)] if commitment is not None else []
    said = {name: [printable_text(line)[:900] for line in getattr(notes, name)] for name in PARTS}
    others = {
        "whole": samples.stream is not None,
        "draws": str(data) in GENERATED,
        "command": typed,
        "notes": said,
    }
    with _folder(keep_arrays, _size(samples)) as folder:
        try:
            arrays.write_arrays(folder, digest, samples.tasks, samples.tests, **others)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise Unreadable(f"The data cannot be written as arrays: {error!r:.200}") from None
        del samples
        return start_checker([str(folder), *words], **how)


def _check_summary(notes: Verdict, run: Path, claimed: Sequence[str]) -> None:
    """A run may know more against its claim than its certificates, which were issued before."""
    if not (run / SUMMARY).is_file():
        return
    try:
        reasons = [reason for reason in read_summary(run).not_valid if reason not in claimed]
    except UserError:
        return
    notes.invalid += [
        f"The run declares its certificate not valid: {quoted(reason, 600)}" for reason in reasons
    ]


def _size(samples: Samples) -> int:
    try:
        return arrays.size_of(samples.tasks) + arrays.size_of(samples.tests)
    except (TypeError, ValueError, AttributeError, IndexError):  # writing them says why
        return 0


@contextmanager
def _folder(kept: str | Path | None, size: int) -> Iterator[Path]:
    """A private folder for so many bytes, removed in the end, also on Ctrl-C; or a new one that is kept."""
    where = Path(kept).absolute().parent if kept is not None else Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(where).free) < size + SPARE:
        sizes = f"The arrays take {size / 1e9:.1f} GB, and {where} has {free / 1e9:.1f} GB"
        raise UserError(f"{sizes}: set TMPDIR to a larger disk, or give --keep-arrays.")
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="cop2l-") as scratch:
            yield Path(scratch)
        return
    try:
        Path(kept).mkdir(mode=0o700)
    except FileExistsError:
        raise UserError(f"{kept} is there already; give --keep-arrays a new folder.") from None
    yield Path(kept)


def _name(model: str | Callable[[int], Any]) -> str:
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
    **how: Any,
) -> Verdict:
    """Check the certificate in a folder, all certificates of a run directory, or an export, in a process of its own.

    `data` is a stream's name, a file or folder of data, or a mapping from task numbers to (x, y) or
    (x, y, groups); `split` are options of `cop2l.streams.load` that you know the data to be split with.
    `model` is your function build(seed), which must be in a module, or its name as package.module:function. `commitment` is what
    you were handed before: a hash, a file or its content. `count_repeats` and `repeats_are_draws` say what rows are that the
    model cannot tell from another. `Unreadable` or `cop2l.errors.UserError` is raised where nothing can be said.
    """
    more = ["--json", *["--count-repeats"] * count_repeats, *["--repeats-are-draws"] * repeats_are_draws]
    more += [] if limit is None else ["--limit", str(limit)]
    done = check(path, data, more=tuple(more), capture_output=True, **how)
    if done.returncode not in (0, 1, 2):
        raise Unreadable(done.stderr.strip()[-500:].removeprefix("cop2l: "))
    found = json.loads(done.stdout)
    fields = {name: found[name] for name in (*PARTS, "statements", "command")}
    return ReadableVerdict(**fields, _complete=found["status"] == "valid")
