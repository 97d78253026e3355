"""A whole run directory: every certificate that was issued, and every file that repeats what they say."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cop2l.audit.finding import NUMBERED
from cop2l.audit.flags import NAMED
from cop2l.certify.certificate import read as read_certificate
from cop2l.certify.presets import PRIOR
from cop2l.certify.saved import certified
from cop2l.errors import UserError
from cop2l.experiments.config import FIELDS, Config
from cop2l.experiments.learners import recipe
from cop2l.experiments.life import kept_beside
from cop2l.experiments.measure import repeating, summarise
from cop2l.experiments.records import (
    CONFIG,
    COUNTS,
    RECORDS,
    STATE,
    SUMMARY,
    Record,
    TaskRow,
    read_records,
    read_summary,
)
from cop2l.files import file_digest, read_json, read_tensors, standing
from cop2l.kernel.exact import digest
from cop2l.kernel.form import HOLDOUT_FILES, Unreadable, canonical
from cop2l.kernel.verdict import Verdict
from cop2l.streams.task import Stream

CLOSE = 1e-9
BAD_FORM = (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, ZeroDivisionError)
Content = Mapping[str, Any]


def check_run(notes: Verdict, run: Path, certificates: Sequence[Content]) -> bool:
    """Compare the files of a run with its certificates, and with each other; whatever differs is a fault.

    Returns whether the configuration leaves the scale of the inputs to the prior part of the first task.
    """
    last = certificates[-1]
    try:
        records, config = read_records(run), read_json(run / CONFIG)
        chosen = Config(**{key: value for key, value in config.items() if key in FIELDS})
        _check_times(notes, run, certificates, len(records))
        folders = {len(one["records"]): one["folder"] for one in certificates}
        for number, record in enumerate(records, 1):
            _check_record(notes, number, record, folders.get(number))
        _check_config(notes, config, chosen, last)
        if (run / SUMMARY).exists() or len(records) == config["tasks"]:
            found, expected = (
                read_summary(run),
                summarise(chosen, {**(last["data"] or {}), "scenario": last["scenario"]}, records),
            )
            for reason in found.not_valid:
                if reason not in last["not_valid"]:
                    notes.fault(f"The run declares its certificate not valid: {reason}")
            names = [f.name for f in fields(found) if getattr(found, f.name) != getattr(expected, f.name)]
            if names:
                notes.fault(f"{SUMMARY} does not follow from the records: look at {', '.join(names)}.")
        else:
            notes.doubt(f"The run is not finished: it has no {SUMMARY}, and fewer records than tasks.")
    except UserError as error:
        notes.fault(str(error))
        return False
    except BAD_FORM as error:
        notes.fault(f"The files of the run do not have the documented form ({type(error).__name__}).")
        return False
    if not notes.faults:
        notes.checked.append(
            "config.json, records.jsonl, summary.json and the state agree with the certificates, and with each other."
        )
    notes.word.append(
        "Accuracies, times, sizes, the trace and the environment of the run: no certificate speaks of them."
    )
    if last["options"].kind != "holdout" and any(row.holdout for row in records[-1].tasks):
        notes.word.append(
            "The errors on withheld examples, which are shown beside the claim for information."
        )
    return PRIOR in chosen.scale


def nothing_issued(run: Path) -> Verdict:
    """The verdict on a run directory without certificates: faults if its files speak of bounds."""
    verdict = Verdict(claim=["There is no certificate."])
    try:
        kinds = [record.kind for record in read_records(run)]
        kinds += [read_summary(run).kind] if (run / SUMMARY).exists() else []
    except UserError as error:
        raise Unreadable(str(error)) from None
    if not any(kinds):
        raise Unreadable(f"There is no certificate in {run}; its run has issued none so far.")
    verdict.fault("The run states bounds, and its certificates are missing.")
    return verdict


def _check_times(notes: Verdict, run: Path, certificates: Sequence[Content], recorded: int) -> None:
    """No certificate may be missing: one after each task or, if their number was fixed in advance, one after the last."""
    last, fixed = certificates[-1], certificates[-1]["options"].tasks
    times = [len(one["records"]) for one in certificates]
    for one, time in zip(certificates, times, strict=True):
        if NUMBERED.fullmatch(one["folder"].name)[1].lstrip("0") != str(time):  # type: ignore[index]
            notes.fault(f"{one['folder'].name} holds the certificate after task {time}.")
    learned = _learned(notes, sorted(standing(run / STATE).glob("*.safetensors")), last)
    for what, seen in ((f"{RECORDS} has", recorded), ("the saved learner has", learned)):
        if seen is not None and seen != times[-1]:
            notes.fault(
                f"The last certificate speaks of {times[-1]} tasks, and {what} {seen}: certificates were removed, or put there."
            )
    expected = {fixed} if fixed else {*range(1, max(times[-1], recorded) + 1)}
    for time in sorted(expected - {*times}):
        notes.fault(f"The certificate after task {time} is missing.")
    for time in sorted({*times} - expected):
        notes.fault(f"There is a certificate after task {time}, where none may be issued.")


def check_saved(notes: Verdict, file: Path, certificate: Content) -> None:
    """Whether the learner that is saved beside a certificate is the one that it speaks of."""
    found = Verdict()
    try:
        same = _learned(found, [file], certificate) == len(certificate["records"]) and not found.faults
    except BAD_FORM:
        same = False
    if not same:
        notes.doubt("The learner that is saved beside the certificate is not the one that it speaks of.")
    else:
        notes.checked.append("The learner that is saved beside the certificate is the one that it speaks of.")


def check_names(notes: Verdict, folder: Path, stream: Stream | None) -> None:
    """Whether the names of the classes that lie beside a learner are those of the data: predictions are told by them."""
    try:
        kept = kept_beside(folder)
        names = kept.get("class_names")
    except (UserError, *BAD_FORM):
        notes.doubt("The names of the classes beside the learner cannot be read.")
        return
    if names and stream is None:
        notes.word.append(
            "The names of the classes beside the learner: the certificate speaks of their numbers."
        )
    elif names and stream is not None and names != stream.description.get("class_names", names):
        notes.doubt("The names of the classes beside the learner are not those of the data.")
    if stream is not None and kept.get("inputs", {}).get("columns") != stream.description.get(
        "inputs", {}
    ).get("columns"):
        notes.doubt("How the learner reads a table, as it is kept beside it, is not how this data is read.")


def _learned(notes: Verdict, files: Sequence[Path], last: Content) -> int | None:
    """How many tasks the saved learner has learned; all that the certificate says of it must be so."""
    if len(files) != 1:
        notes.fault("The saved learner is missing: state/ must hold one safetensors file.")
        return None
    try:
        tensors, note = read_tensors(files[0])
    except UserError as error:
        notes.fault(str(error))
        return None
    if "theta" in last:
        alike = canonical(certified(note, tensors)) == canonical(_repeated(last))
    else:
        stored, its_note = read_tensors(last["folder"] / HOLDOUT_FILES[0])
        alike = canonical([digest(tensors), note]) == canonical([digest(stored), its_note])
        heads = note["heads"] if "heads" in note else [task["head"] for task in note["tasks"]]
        alike &= [sorted(head) for head in heads] == [record["head"] for record in last["records"]]
        described = note["model"] or last["model"]  # None: whoever loads it must give one
        alike &= described | {"parameters": 0} == last["model"] | {"parameters": 0}
    if not alike:
        notes.fault("The saved learner is not the one that the last certificate speaks of.")
    copy = files[0].parent / "certificate"
    if copy.exists() and not all(same(file, last["folder"] / file.name) for file in copy.iterdir()):
        notes.fault("The certificate beside the saved learner is not the last one that was issued.")
    return len(note["tasks"]) if "tasks" in note else int(note["tasks_seen"])


def _repeated(certificate: Content) -> dict[str, Any]:
    """What a certificate says of its learner: see `cop2l.certify.saved.certified`."""
    names = ("head", "fingerprint", "rows", "n", "iterations", "stopped")
    told = "scenario model classes data commitment threads machine earlier not_valid theta_0 theta sets"
    return {
        **{name: certificate[name] for name in told.split()},
        "options": certificate["options"].as_dict(),
        "records": [[record[name] for name in names] for record in certificate["records"]],
    }


def same(one: Path, other: Path) -> bool:
    """Whether two files hold the same bytes."""
    return one.is_file() and other.is_file() and file_digest(one) == file_digest(other)


def _check_record(notes: Verdict, number: int, record: Record, folder: Path | None) -> None:
    """A record repeats the claims, counts and bounds of its certificate; without one it has none."""
    certificate = None if folder is None else read_certificate(folder)
    measured = [_measured(row, certificate is None or certificate.kind == "holdout") for row in record.tasks]
    expected = replace(record, kind=None, claims=[], tasks=measured)
    if certificate is not None:
        expected = repeating(expected, certificate)
    about = [row.task for row in record.tasks]
    claims = record.claims != expected.claims or record.kind != expected.kind
    claims |= record.not_valid != expected.not_valid
    if claims or record.task != number or about != [*range(1, number + 1)]:
        notes.fault(f"The record of task {number} does not repeat what was certified then.")
    for row, wanted in zip(record.tasks, expected.tasks, strict=True):
        close = row.bounds.keys() == wanted.bounds.keys() and all(
            abs(row.bounds[kind] - value) <= CLOSE for kind, value in wanted.bounds.items()
        )
        if not close or replace(row, bounds={}) != replace(wanted, bounds={}):
            notes.fault(
                f"The counts and bounds of task {row.task} in the record of task {number} do not follow from a certificate."
            )


def _measured(row: TaskRow, uncounted: bool) -> TaskRow:
    """A row without what a certificate adds to it."""
    none: dict[str, Any] = dict.fromkeys(name for name in COUNTS if name != "n")
    return replace(row, bounds={}, **none) if uncounted else replace(row, bounds={})


def _check_config(notes: Verdict, config: Content, chosen: Config, last: Content) -> None:
    """The configuration must say what the certificate says."""
    options, model = last["options"], last["model"]
    stated = options.as_dict()
    if options.kind == "holdout":
        names = ("delta", "siblings", "seed", "kind", "claim", "shares", "groups", "tasks")
        stated = dict(last["settings"] or {}) | {name: stated[name] for name in names}
    stated |= {name: last[name] for name in ("method", "scenario", "threads", "commitment")}
    stated |= {"anytime": options.anytime, "model": model.get("name")}
    if options.anytime:
        del stated["tasks"]
    own = {**config, **config["options"], **config["architecture"]}
    stated |= {name: model.get(name) for name in config["architecture"]}
    wrong = {name for name, value in stated.items() if own.get(name) != value}
    wrong |= {name for name in config["options"] if name in config}
    cut = {key: value for key, value in (last["data"] or {}).items() if key not in NAMED}
    if recipe(chosen, config["scenario"], config["tasks"]) != cut:
        wrong.add("data")
    if model.get("scale") not in ([PRIOR, None] if PRIOR in chosen.scale else [list(chosen.scale) or None]):
        wrong.add("scale")
    if wrong:
        notes.fault(f"config.json differs from the certificate in {', '.join(sorted(wrong)[:10])}.")
