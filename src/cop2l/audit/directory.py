"""A whole run directory: every certificate that was issued, and every file that repeats what they say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cop2l.audit.finding import NUMBERED
from cop2l.certify.certificate import read as read_certificate
from cop2l.certify.presets import PRIOR
from cop2l.certify.saved import certified
from cop2l.errors import UserError
from cop2l.experiments.config import FIELDS, Config
from cop2l.experiments.learners import recipe
from cop2l.experiments.life import names_beside
from cop2l.experiments.measure import COUNTS, informal, summarise
from cop2l.experiments.options import left_open, usual_step
from cop2l.files import file_digest, read_json, read_lines, read_tensors, standing
from cop2l.kernel.exact import digest
from cop2l.kernel.form import HOLDOUT_FILES, Unreadable, canonical
from cop2l.kernel.verdict import Verdict
from cop2l.streams.task import Stream

CLOSE = 1e-9
CLAIMS = ("claim", "shares", "groups")
BAD_FORM = (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, ZeroDivisionError)
RECORD = (
    "task", "wrong", "accuracy", "classes", "kind", "claims", "tasks", "seconds", "learn_seconds", "peak_memory",
    "peak_cuda_allocated", "peak_cuda_reserved", "total_cuda_allocated", "memory_used", "trace",
)  # fmt: skip
ROW = ("task", *COUNTS, "bounds", "test_error", "test_n", "test_groups", "holdout")
"""The fields of a record, and of its entry for a task: another one could state what nobody checks."""
Content = Mapping[str, Any]


class Left(NamedTuple):
    """What the configuration of a run leaves to the prior part of the first task."""

    scale: bool
    lr: float | None
    """The step where the prior part gives none; None: it is not left to it."""


def check_run(notes: Verdict, run: Path, certificates: Sequence[Content]) -> Left | None:
    """Compare the files of a run with its certificates, and with each other; whatever differs is a fault."""
    config, summary = _object(notes, run / "config.json"), None
    try:
        records = read_lines(run / "records.jsonl")
    except UserError as error:
        notes.fault(str(error))
        return None
    finished = config is not None and len(records) == config.get("tasks")
    if (run / "summary.json").exists() or finished:
        summary = _object(notes, run / "summary.json")
    else:
        notes.doubt("The run is not finished: it has no summary.json, and fewer records than tasks.")
    try:
        _check_times(notes, run, certificates, records)
        times = {len(one["records"]): one for one in certificates}
        for record in records:
            _check_record(notes, record, times.get(record["task"]), _holds_out_forgetting(certificates[-1]))
        if config is not None:
            _check_config(notes, config, certificates[-1])
        if config is not None and summary is not None:
            _check_summary(notes, summary, _configured(config), records, certificates[-1])
        left = None if config is None else _left(_configured(config))
    except BAD_FORM as error:
        notes.fault(f"The files of the run do not have the documented form ({type(error).__name__}).")
        return None
    if not notes.faults:
        notes.checked.append(
            "config.json, records.jsonl, summary.json and the state agree with the certificates, and with each other."
        )
    notes.word.append(
        "Accuracies, times, sizes, the trace and the environment of the run: no certificate speaks of them."
    )
    if certificates[-1]["options"].kind != "holdout" and any(
        "holdout" in row for row in records[-1]["tasks"]
    ):
        notes.word.append(
            "The errors on withheld examples, which are shown beside the claim for information."
        )
    return left


def _left(config: Config) -> Left:
    return Left(PRIOR in config.scale, usual_step(config) if left_open(config) else None)


def nothing_issued(run: Path) -> Verdict:
    """The verdict on a run directory without certificates: faults if its files speak of bounds."""
    verdict = Verdict(claim=["There is no certificate."])
    try:
        spoken = any(record.get("kind") is not None for record in read_lines(run / "records.jsonl"))
        spoken |= (run / "summary.json").exists() and read_json(run / "summary.json").get("kind") is not None
    except UserError as error:
        raise Unreadable(str(error)) from None
    if not spoken:
        raise Unreadable(f"There is no certificate in {run}; its run has issued none so far.")
    verdict.fault("The run states bounds, and its certificates are missing.")
    return verdict


def _object(notes: Verdict, path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except UserError as error:
        notes.fault(str(error))
        return None


def _check_times(
    notes: Verdict, run: Path, certificates: Sequence[Content], records: Sequence[Content]
) -> None:
    """No certificate may be missing: one after each task or, if their number was fixed in advance, one after the last."""
    last = certificates[-1]
    times = [len(one["records"]) for one in certificates]
    for one, time in zip(certificates, times, strict=True):
        if NUMBERED.fullmatch(one["folder"].name)[1].lstrip("0") != str(time):  # type: ignore[index]
            notes.fault(f"{one['folder'].name} holds the certificate after task {time}.")
    if [record["task"] for record in records] != list(range(1, len(records) + 1)):
        notes.fault("records.jsonl does not have one record for each task, in order.")
    learned = _learned(notes, sorted(standing(run / "state").glob("*.safetensors")), last)
    for what, seen in (("records.jsonl has", len(records)), ("the saved learner has", learned)):
        if seen is not None and seen != times[-1]:
            notes.fault(
                f"The last certificate speaks of {times[-1]} tasks, and {what} {seen}: certificates were removed, or put there."
            )
    expected = (
        [last["options"].tasks] if last["options"].tasks else list(range(1, max(times[-1], len(records)) + 1))
    )
    for time in sorted(set(expected) - set(times)):
        notes.fault(f"The certificate after task {time} is missing.")
    for time in sorted(set(times) - set(expected)):
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
        names = names_beside(folder)
    except (UserError, *BAD_FORM):
        notes.doubt("The names of the classes beside the learner cannot be read.")
        return
    if names and stream is None:
        notes.word.append(
            "The names of the classes beside the learner: the certificate speaks of their numbers."
        )
    elif names and stream is not None and names != stream.description.get("class_names", names):
        notes.doubt("The names of the classes beside the learner are not those of the data.")


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
    fields = (
        "scenario",
        "model",
        "classes",
        "data",
        "commitment",
        "threads",
        "machine",
        "earlier",
        "not_valid",
    )
    return {
        **{name: certificate[name] for name in (*fields, "theta_0", "theta", "sets")},
        "options": certificate["options"].as_dict(),
        "records": [[record[name] for name in names] for record in certificate["records"]],
    }


def same(one: Path, other: Path) -> bool:
    """Whether two files hold the same bytes."""
    return one.is_file() and other.is_file() and file_digest(one) == file_digest(other)


def _check_record(notes: Verdict, record: Content, certificate: Content | None, evidence: bool) -> None:
    """A record repeats the counts and the bounds of its certificate; without one it has none.

    `evidence`: what was wrong after each task is part of what is claimed.
    """
    task, rows = record["task"], record["tasks"]
    if unknown := {*record} - {*RECORD} | {key for row in rows for key in row} - {*ROW}:
        notes.fault(
            f"The record of task {task} has fields that are not documented: {sorted(unknown)[:5]!r:.200}."
        )
    if record["wrong"] is not None and not evidence:
        notes.fault(
            f"The record of task {task} notes what was wrong then, and no hold-out claim of forgetting asks for it."
        )
    if certificate is None:
        uncertified = record["claims"] == [] and all(row["bounds"] == {} and _uncounted(row) for row in rows)
        if record["kind"] is not None or not uncertified:
            notes.fault(
                f"The record of task {task} states counts or bounds, and no certificate was issued then."
            )
        return
    options, read = certificate["options"], read_certificate(certificate["folder"])
    if record["kind"] != options.kind or [row["task"] for row in rows] != list(range(1, task + 1)):
        notes.fault(f"The record of task {task} is not that of its certificate.")
        return
    if record["claims"] != [s for s in certificate["statements"] if s["family"] != "tasks"]:
        notes.fault(f"The record of task {task} does not repeat the claims of its certificate.")
    for row, counts in zip(rows, certificate["records"], strict=True):
        t = row["task"]
        wanted = read.stated.get(t, {}) | read.information(t)
        if options.kind == "holdout":
            agrees = row["holdout"] == {"n": counts["rows"], "errors": counts["errors"]} and _uncounted(row)
        else:
            agrees = all(row[name] == counts[name] for name in COUNTS)
            if "holdout" in row:
                wanted["holdout"] = informal(row["holdout"], options, task)
        if not agrees:
            notes.fault(
                f"The counts of task {t} in the record of task {task} are not those of the certificate."
            )
        if set(wanted) != set(row["bounds"]) or any(
            not abs(row["bounds"][k] - v) <= CLOSE for k, v in wanted.items()
        ):
            notes.fault(
                f"The bounds of task {t} in the record of task {task} do not follow from the certificate."
            )


def _holds_out_forgetting(certificate: Content) -> bool:
    """Whether what was wrong after each task is part of the evidence."""
    options = certificate["options"]
    return bool(options.kind == "holdout" and "forgetting" in options.claim)


def _uncounted(row: Content) -> bool:
    """Whether a row of a record has nothing that only a certificate of CoP2L counts."""
    return all(row[name] is None for name in COUNTS if name != "n")


def _configured(config: Content) -> Config:
    return Config(**{key: value for key, value in config.items() if key in FIELDS})


def _check_config(notes: Verdict, config: Content, last: Content) -> None:
    """The configuration must say what the certificate says."""
    own, options, chosen = {**config, **config["options"]}, last["options"].as_dict(), _configured(config)
    stated = dict(options) | {
        "method": last["method"],
        "scenario": last["scenario"],
        "threads": last["threads"],
    }
    if last["options"].kind == "holdout":
        stated = {
            key: stated[key]
            for key in ("delta", "seed", "kind", *CLAIMS, "tasks", "method", "scenario", "threads")
        }
        stated = {key: value for key, value in (last["settings"] or {}).items() if key not in stated} | stated
    stated["tasks"] = config["tasks"] if stated["tasks"] is None and config["anytime"] else stated["tasks"]
    tried = (last["data"] or {}).get("tried")
    if left_open(chosen) and tried is not None:
        del stated["lr"]  # it is what the prior part gave
    stated |= {"model": last["model"].get("name")}
    stated["commitment"] = last["commitment"]
    wrong = [key for key, value in stated.items() if own.get(key) != value]
    wrong += [key for key in config["options"] if key in config]
    cut = recipe(chosen, config["scenario"], config["tasks"], tried if left_open(chosen) else None)
    wrong += ["data"] if cut != last["data"] else []
    scales = [PRIOR, None] if chosen.scale == (PRIOR,) else [list(chosen.scale) or None]
    wrong += ["scale"] if last["model"].get("scale") not in scales else []
    wrong += [key for key, value in config["architecture"].items() if last["model"].get(key) != value]
    wrong += ["anytime"] if config["anytime"] != last["options"].anytime else []
    if wrong:
        notes.fault(f"config.json differs from the certificate in {', '.join(sorted(wrong)[:10])}.")


def _check_summary(
    notes: Verdict, summary: Content, config: Config, records: list[dict[str, Any]], last: Content
) -> None:
    """The summary is a function of the records."""
    expected = summarise(config, last["scenario"], last["not_valid"], records)
    wrong = sorted(key for key in {*expected, *summary} if summary.get(key) != expected.get(key))
    if wrong:
        notes.fault(f"summary.json does not follow from the records: look at {', '.join(wrong[:10])}.")
