"""Checks exported folders. Another process makes the program again from the certified weights and runs it; this one counts."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.kernel import arrays, exact, form
from cop2l.kernel.arithmetic import bound_follows
from cop2l.kernel.building import parameter_location, stored_shapes, stored_tensors
from cop2l.kernel.counting import NO_REPEATS, Facts, count_records, group_numbers, used_rows
from cop2l.kernel.form import Content, Unreadable, object_of, open_regular, sha256, text_line
from cop2l.kernel.holdout import BlindMethod, unlabelled
from cop2l.kernel.learning import SET_NAMES, Sets
from cop2l.kernel.options import Refusal, choice_of, integer, list_of, optional, require
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import Verdict, quoted, statement_sentence

EXPORT, WEIGHTS, CERTIFICATE = "export.json", "weights.safetensors", "certificate"
FORMAT, VERSION = "cop2l-export", 1
PROGRAMS = {"torch": "model.pt2", "onnx": "model.onnx"}
"""The file of each format of programs."""
NOT_RECOUNTED = "forgetting"
"""The family that needs earlier parameters, for which there is no program."""
ERROR_COUNTS = ("errors", "errors_not_picked", "compressed")
"""The counts that may differ between a program and its certificate."""
OTHER_PARAMETERS = f"{WEIGHTS} does not hold the parameters that the certificate speaks of."
RECOUNT = object_of(
    run_by=text_line, records=list_of(object_of(**form.RECORD_FIELDS), 1), statements=list_of(form.STATEMENT),
)  # fmt: skip
EXPORT_CONTENT = object_of(
    format=choice_of(FORMAT), version=choice_of(VERSION), made_by=text_line, certificate=sha256, weights=sha256,
    recount=optional(RECOUNT), files=object_of(**{WEIGHTS: sha256, "program": sha256}), data=form.plain_object,
    program=object_of(format=choice_of(*PROGRAMS), made_by=text_line, inputs=list_of(integer(1, 2**20), 1, 8)),
)  # fmt: skip
PROGRAM_FACTS = object_of(sha256=sha256, made_by=text_line, run_by=text_line)


def check_export(
    verdict: Verdict, folder: Path, certificate: Content, samples: arrays.Samples, method: BlindMethod, draws: bool,
    original: Path, learned: arrays.Samples,
) -> None:  # fmt: skip
    """Check the export of a certificate and add to the verdict on it; `samples` are the data that certifies.

    `learned` are the rows that a hold-out learned from: the program must tell the others from them.
    `folder` is the checker's copy of the `original` exported folder.
    """
    try:
        raw = form.json_object(form.read_json(folder / EXPORT), EXPORT)
        checksum = raw.pop("sha256", None)
        content = EXPORT_CONTENT(raw, EXPORT)
        require(checksum == form.content_digest(raw), f"{EXPORT} was changed: its checksum does not fit.")
        _check_files(verdict, folder, content, certificate)
        expected = {EXPORT, WEIGHTS, PROGRAMS[content["program"]["format"]], CERTIFICATE}
        expected |= {f"{CERTIFICATE}/{name}" for name in (form.TEXT_FILE, *certificate["files"])}
        paths = (*original.iterdir(), *(original / CERTIFICATE).iterdir())
        if unexpected := sorted({path.relative_to(original).as_posix() for path in paths} - expected):
            verdict.unverified.append(f"The exported folder holds unexpected files: {quoted(unexpected)}.")
        complete = verdict.status == "valid" and len(samples) >= len(certificate["records"])
        last = len(certificate["records"])
        counted = {**samples, **{last + t: rows for t, rows in learned.items()}} if content["recount"] and complete else {}
        program = _make_program(verdict, folder, content, certificate, counted, method)
        recounts = _recount(program[1], certificate, counted, draws) if program and counted else []
        _check_recount(verdict, content, certificate, program and program[0], recounts)
    except Refusal as refusal:
        verdict.invalid.append(str(refusal))


def _check_files(verdict: Verdict, folder: Path, content: Content, certificate: Content) -> None:
    """Check the hashes of the folder, and that the exported weights are the certified parameters."""
    form.check_hash(folder / WEIGHTS, content["files"][WEIGHTS])
    form.check_hash(folder / PROGRAMS[content["program"]["format"]], content["files"]["program"])
    same = content["certificate"] == certificate["digest"]
    require(same, "The certificate in the exported folder is not the one that the export speaks of.")
    require(stored_shapes(folder / WEIGHTS, "") == stored_shapes(*parameter_location(certificate)), OTHER_PARAMETERS)
    weights = exact.digest(stored_tensors(folder / WEIGHTS))
    same = weights == content["weights"] == exact.digest(stored_tensors(*parameter_location(certificate)))
    require(same and certificate.get("theta") in (None, weights), OTHER_PARAMETERS)
    verdict.checked.append(f"{WEIGHTS} holds the parameters that the certificate speaks of, bit for bit.")


def _make_program(
    verdict: Verdict, folder: Path, content: Content, certificate: Content, samples: arrays.Samples, method: BlindMethod
) -> tuple[Content, Path] | None:
    """Make the program again: the facts about it, and the folder of its answers; None if it is not the exported file."""
    record = content["program"]
    file, inputs = PROGRAMS[record["format"]], certificate["model"].get("inputs", record["inputs"])
    require(inputs == record["inputs"], "The program is said to take inputs of another shape than the model.")
    try:
        out = method.run("program", unlabelled({t: x for t, (x, *_) in samples.items()}), folder)
    except Unreadable as error:  # another version of torch may be able to do it
        verdict.unverified.append(f"{file} could not be made again. {error}")
        return None
    with open_regular(out / "made.json") as opened:
        facts = PROGRAM_FACTS(json.load(opened), "made.json")
    if content["files"]["program"] == facts["sha256"]:
        verdict.checked.append(f"{file} was made again from these parameters: the same bytes.")
        return facts, out
    require(record["made_by"] != facts["made_by"], f"{file} is not the program that these parameters give.")
    verdict.unverified.append(f"{file} is not the program that these parameters give here. But it was made by other versions.")
    verdict.issuer.append(f"program made by: {quoted(record['made_by'])}")
    return None


def _check_recount(
    verdict: Verdict, content: Content, certificate: Content, program: Content | None, recounts: Sequence[Any]
) -> None:
    """The bounds of the program itself must follow from its errors, which must be one of the recounts."""
    file, stated_recount = PROGRAMS[content["program"]["format"]], content["recount"]
    if stated_recount is None:
        verdict.claim.append(f"These bounds are about the exported weights as cop2l runs them: {file} was not counted.")
        require(content["program"]["format"] != "onnx", "ONNX rounds in its own way, and its errors were not counted again.")
        return
    _check_statements(stated_recount["statements"], stated_recount["records"], certificate)
    same_runner = program is not None and stated_recount["run_by"] == program["run_by"]
    agrees = stated_recount["records"] in recounts
    by = f", run by {program['run_by']}, one example at a time" if program is not None and agrees else ""
    verdict.claim.append(f"For {file}{by}, these take their place (both sets at once: 1 - 2 delta):")
    verdict.claim += [f"{file}, {statement_sentence(bound, stated_recount['records'])}" for bound in stated_recount["statements"]]
    verdict.assumed.append(f"The program and what runs it were chosen before the data was seen, not by the bounds of {file}.")
    verdict.issuer += [] if same_runner else [f"program counted by: {quoted(stated_recount['run_by'])}"]
    if not recounts:
        verdict.unverified.append(f"The errors that {file} makes were not counted again.")
    elif agrees:
        verdict.checked.append(f"The errors that {file} makes were counted again: they are as stated.")
    else:
        require(not same_runner, f"The errors that {file} makes are not those that are stated.")
        verdict.unverified.append(f"{file} makes other errors here than those stated, which were counted elsewhere.")


def _recount(answers: Path, certificate: Content, samples: arrays.Samples, draws: bool) -> list[list[Content]]:
    """The records of the certificate with the errors of the program, where rows that it answers alike are errors, too.

    The rows that task t of a hold-out learned from are those of task T + t; a row that repeats one of them is an error, too.
    If the rows are `draws` of discrete data, also the records in which repeated rows are no errors.
    """
    options, records = certificate["options"], certificate["records"]
    tensors = {} if options.kind == "holdout" else stored_tensors(certificate["folder"] / "sets.safetensors")
    tasks = [_program_errors(answers, certificate, record, samples) for record in records]
    sets = []
    for t, record in enumerate(records, 1):
        rows: Any = {name: tensors[f"{t}/{name}"].numpy() for name in SET_NAMES if tensors}
        sets.append(Sets(**rows, iterations=record["iterations"], stopped=record["stopped"]))
    used = [used_rows(len(errors), of_task) for (errors, _, _), of_task in zip(tasks, sets, strict=True)]
    learned = [_answers(answers, certificate, t, samples) for t in range(len(records) + 1, 2 * len(records) + 1)]
    keys = [np.concatenate([_answer_keys(own), of_task]) for own, (_, of_task, _) in zip(learned, tasks, strict=True)]
    all_used = [np.concatenate([np.ones(len(own), bool), mask]) for own, mask in zip(learned, used, strict=True)]
    repeats = [mask[len(own) :] for own, mask in zip(learned, exact.repeated_answers(keys, all_used), strict=True)]
    errors, facts = [errors for errors, _, _ in tasks], [facts for _, _, facts in tasks]
    counted = [repeats, NO_REPEATS] if draws else [repeats]
    recounts = [count_records(certificate, sets, errors, masks, facts) for masks in counted]
    for record in itertools.chain(*recounts):
        record["parts"] = [part for part in record["parts"] if part["family"] != NOT_RECOUNTED]
    return recounts


def _program_errors(
    answers: Path, certificate: Content, record: Content, samples: arrays.Samples
) -> tuple[np.ndarray, np.ndarray, Facts]:
    """Of the program on a task: the mask of misclassified rows, keys of equal answers, and facts about the rows."""
    x, y, *groups = (*samples[record["task"]], None)
    labels, rows = numbers(y).astype(np.int64), np.arange(len(x))
    logits = _answers(answers, certificate, record["task"], samples)
    keys = _answer_keys(logits)
    if certificate["scenario"] == "task-incremental":
        logits[:, ~np.isin(np.arange(certificate["classes"]), record["head"])] = -np.inf
    logit_of_class = logits[rows, labels].copy()
    logits[rows, labels] = -np.inf
    numbers_of_groups = group_numbers(groups[0], certificate["options"], len(x))
    facts = {"labels": labels, "groups": numbers_of_groups, "wrong": np.zeros(len(x), bool)}
    return ~(logit_of_class > logits.max(1)), keys, facts


def _answers(answers: Path, certificate: Content, task: int, samples: arrays.Samples) -> np.ndarray:
    """The logits of the program on the rows of a task; none if there are no such rows."""
    if task not in samples:
        return np.empty((0, certificate["classes"]))
    with open_regular(answers / f"{task}.npy") as file:
        logits: np.ndarray = np.load(file)
    good = logits.shape == (len(samples[task][0]), certificate["classes"])
    require(good, "The program gives other logits than the model.")
    return logits


def _answer_keys(logits: np.ndarray) -> np.ndarray:
    """A 64-bit hash of every row of logits: equal for equal bits, where -0 is 0."""
    return np.array([hash(row.tobytes()) for row in logits + 0], np.int64)


def _check_statements(statements: Sequence[Content], records: Sequence[Content], certificate: Content) -> None:
    """The records must be the certificate's but for errors, and the statements must follow from them."""
    options = certificate["options"]
    same = [_without_errors(record) for record in records] == [_without_errors(record) for record in certificate["records"]]
    parts = [(part, record) for record in records for part in (record, *record["parts"])]
    same = same and all(all(form.count_conditions(part, record, options)) for part, record in parts)
    require(same, "The export states other counts than its certificate, not only other errors.")
    promised = [name for name in form.promised_statements(options, records) if name[0] != NOT_RECOUNTED]
    stated = [tuple(statement[key] for key in form.STATEMENT_NAME) for statement in statements]
    require(stated == promised, "The export must state of its program what the certificate promised, once, in order.")
    content = {"records": records, "options": options, "statements": statements}
    for statement in statements:
        sentence = f"A bound of the program is smaller than its counts allow: {statement_sentence(statement, records)}."
        require(bound_follows(statement, content), sentence)


def _without_errors(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record or part without counts of errors, and without parts that are not recounted."""
    fields = {key: value for key, value in record.items() if key not in (*ERROR_COUNTS, "parts")}
    parts = [part for part in record.get("parts", ()) if part["family"] != NOT_RECOUNTED]
    return fields | {"gone": record["errors"] is None, "parts": [_without_errors(part) for part in parts]}
