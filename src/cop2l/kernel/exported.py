"""Exported folders: the program is made again from the certified weights, in another process; what it answers is counted here."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l.kernel import arrays, exact, form
from cop2l.kernel.arithmetic import bound_follows
from cop2l.kernel.building import stored_shapes, stored_tensors, where
from cop2l.kernel.counting import counts_and_parts, group_numbers, used_rows
from cop2l.kernel.form import Content, Unreadable, open_regular, sha256, table, text
from cop2l.kernel.holdout import Blind, predicting_model
from cop2l.kernel.learning import SET_NAMES, Sets
from cop2l.kernel.options import Refusal, choice, many, maybe, require, whole
from cop2l.kernel.samples import numbers
from cop2l.kernel.verdict import Verdict, quoted, statement_sentence

EXPORT, WEIGHTS, CERTIFICATE = "export.json", "weights.safetensors", "certificate"
FORMAT, VERSION = "cop2l-export", 1
PROGRAMS = {"torch": "model.pt2", "onnx": "model.onnx"}
"""The file of each format of programs."""
NOT_RECOUNTED = "forgetting"
"""The family that compares with earlier parameters, which no program is made of."""
ERRORS = ("errors", "errors_not_picked", "compressed")
"""The counts that a program may have otherwise than the certificate."""
NOT_THESE = f"{WEIGHTS} does not hold the parameters that the certificate speaks of."
RECOUNTED = table(
    run_by=text, records=many(table(**form.SAMPLE, **form.COUNTED), 1), statements=many(table(**form.NAMED, value=form.share)),
)  # fmt: skip
CONTENT = table(
    format=choice(FORMAT), version=choice(VERSION), made_by=text, certificate=sha256, weights=sha256, recount=maybe(RECOUNTED),
    files=table(**{WEIGHTS: sha256, "program": sha256}), data=form.plain_object,
    program=table(format=choice(*PROGRAMS), made_by=text, inputs=many(whole(1, 2**20), least=1, most=8)),
)  # fmt: skip
MADE = table(sha256=sha256, made_by=text, run_by=text)


def check_export(
    verdict: Verdict, folder: Path, certificate: Content, samples: arrays.Samples, blind: Blind, draws: bool, beside: Path
) -> None:
    """Compare an exported folder with its certificate, whose own verdict this is; `samples` are what it was counted on.

    `folder` is a copy of what lies `beside` the certificate.
    """
    try:
        with open_regular(folder / EXPORT) as file:
            raw = form.an_object(json.loads(file.read(form.MOST_BYTES).decode()), EXPORT)
        stamp = raw.pop("sha256", None)
        require(stamp == form.content_digest(raw), f"{EXPORT} was changed: its checksum does not fit.")
        content = CONTENT(raw, EXPORT)
        _check_files(verdict, folder, content, certificate)
        known = {EXPORT, WEIGHTS, PROGRAMS[content["program"]["format"]], CERTIFICATE, form.TEXT_FILE, *certificate["files"]}
        if others := [path for path in (*beside.iterdir(), *(beside / CERTIFICATE).iterdir()) if path.name not in known]:
            verdict.add_unverified(f"The exported folder holds {len(others)} files that nobody speaks of.")
        if certificate["options"].kind == "holdout":
            _check_predictions(certificate, samples, blind)
        complete = verdict.status == "valid" and len(samples) >= len(certificate["records"])
        made = _made_again(verdict, folder, content, certificate, samples if content["recount"] and complete else {}, blind)
        again = _recount(made[1], certificate, samples, draws) if made and content["recount"] and complete else []
        _check_recount(verdict, content, certificate, made, again)
    except Unreadable:
        raise
    except Refusal as refusal:
        verdict.add_invalid(str(refusal))


def _check_files(verdict: Verdict, folder: Path, content: Content, certificate: Content) -> None:
    """The hashes of the folder, and the exported weights."""
    file = PROGRAMS[content["program"]["format"]]
    for name, claimed in ((WEIGHTS, content["files"][WEIGHTS]), (file, content["files"]["program"])):
        with open_regular(folder / name) as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        require(found == claimed, f"The file {name} was changed: its hash does not match.")
    good = content["certificate"] == certificate["digest"]
    require(good, "The certificate in the exported folder is not the one that the export speaks of.")
    require(stored_shapes(folder / WEIGHTS, "") == stored_shapes(*where(certificate)), NOT_THESE)
    found = exact.digest(stored_tensors(folder / WEIGHTS))
    same = found == content["weights"] == exact.digest(stored_tensors(*where(certificate)))
    require(same and certificate.get("theta") in (None, found), NOT_THESE)
    verdict.checked.append(f"{WEIGHTS} holds the parameters that the certificate speaks of, bit for bit.")


def _check_predictions(certificate: Content, samples: arrays.Samples, blind: Blind) -> None:
    """Refuse a method that does not predict with its model alone: the model must make no more errors than are stated."""
    heads, model = [record["head"] for record in certificate["records"]], predicting_model(certificate, blind.model)
    masked_classes = exact.head_masks(heads, certificate["classes"], certificate["scenario"], next(model.parameters()).device)
    for record in certificate["records"] if len(samples) >= len(heads) else ():
        x, y, *_ = samples[t := record["task"]]
        S = exact.sample(x, torch.from_numpy(numbers(y)).long().to(next(model.parameters()).device), t, 0)
        with exact.exact_arithmetic(certificate["threads"]):
            good = int(exact.score(model, S, masked_classes)[1].sum()) <= record["errors"]
        require(good, "The method does not predict with its model alone, so no program of the model is certified.")


def _made_again(
    verdict: Verdict, folder: Path, content: Content, certificate: Content, samples: arrays.Samples, blind: Blind
) -> tuple[Content, Path] | None:
    """What is known of the program that the weights give here, and where its answers lie; None, where it is not the file."""
    claimed, given, made = content["program"], blind.folder / "exported", blind.folder / "program"
    file, shape = PROGRAMS[claimed["format"]], certificate["model"].get("inputs", claimed["inputs"])
    require(shape == claimed["inputs"], "The program is said to take inputs of another shape than the model.")
    given.mkdir()
    unlabelled = {t: (x, np.zeros(len(x), np.int64)) for t, (x, *_) in samples.items()}
    arrays.write_arrays(given, certificate["digest"], unlabelled)
    try:
        blind.run("program", given, made, folder)
    except Unreadable as error:  # here: another torch may do it
        verdict.add_unverified(f"{file} could not be made again. {error}")
        return None
    with open_regular(made / "made.json") as opened:
        here = MADE(json.load(opened), "made.json")
    if content["files"]["program"] == here["sha256"]:
        verdict.checked.append(f"{file} was made again from these parameters: the same bytes.")
        return here, made
    require(claimed["made_by"] != here["made_by"], f"{file} is not the program that these parameters give.")
    verdict.add_unverified(f"{file} is not the program that these parameters give here. But it was made by other versions.")
    verdict.issuer.append(f"program made by: {quoted(claimed['made_by'])}")
    return None


def _check_recount(
    verdict: Verdict, content: Content, certificate: Content, made: tuple[Content, Path] | None, again: Sequence[Any]
) -> None:
    """The bounds of the program itself must follow from counts that its answers give: one of `again`."""
    file, claimed = PROGRAMS[content["program"]["format"]], content["recount"]
    if claimed is None:
        verdict.claim.append(f"These bounds are about the exported weights as cop2l runs them: {file} was not counted.")
        require(content["program"]["format"] != "onnx", "ONNX rounds in its own way, and its errors were not counted again.")
        return
    _check_statements(claimed["statements"], claimed["records"], certificate)
    same = made is not None and claimed["run_by"] == made[0]["run_by"]
    by = f", run by {made[0]['run_by']}, one example at a time" if made is not None and claimed["records"] in again else ""
    verdict.claim.append(f"For {file}{by}, these take their place (both sets at once: 1 - 2 delta):")
    verdict.claim += [f"{file}, {statement_sentence(one, claimed['records'])}" for one in claimed["statements"]]
    verdict.assumed.append(f"The program and what runs it were chosen before the data was seen, not by the bounds of {file}.")
    verdict.issuer += [] if same else [f"program counted by: {quoted(claimed['run_by'])}"]
    if not again:
        verdict.add_unverified(f"The errors that {file} makes were not counted again.")
    elif claimed["records"] in again:
        verdict.checked.append(f"The errors that {file} makes were counted again: they are as stated.")
    else:
        require(not same, f"The errors that {file} makes are not those that are stated.")
        verdict.add_unverified(f"{file} makes other errors here than those stated, which were counted elsewhere.")


def _recount(answers: Path, certificate: Content, samples: arrays.Samples, draws: bool) -> list[list[Content]]:
    """The records of the certificate with the errors that the program makes; rows that it answers alike are errors, too.

    If these are `draws` of discrete data, also the records in which they are not.
    """
    options, last, given = certificate["options"], len(certificate["records"]), []
    sets = {} if options.kind == "holdout" else stored_tensors(certificate["folder"] / "sets.safetensors")
    for claimed in certificate["records"]:
        x, y, *groups = (*samples[task := claimed["task"]], None)
        labels, rows = numbers(y).astype(np.int64), np.arange(len(x))
        with open_regular(answers / f"{task}.npy") as file:
            logits = np.load(file)
        require(logits.shape == (len(x), certificate["classes"]), "The program gives other logits than the model.")
        keys = np.array([hash(row.tobytes()) for row in logits + 0], np.int64)
        if certificate["scenario"] == "task-incremental":
            logits[:, ~np.isin(np.arange(certificate["classes"]), claimed["head"])] = -np.inf
        right = logits[rows, labels].copy()
        logits[rows, labels] = -np.inf
        picked: Any = {name: sets[f"{task}/{name}"].numpy() for name in SET_NAMES} if sets else {}
        own = Sets(**picked, iterations=claimed["iterations"], stopped=claimed["stopped"])
        facts = {"labels": labels, "groups": group_numbers(groups[0], options, len(x)), "wrong": np.zeros(len(x), bool)}
        given.append((claimed, own, facts, ~(right > logits.max(1)), keys))
    used = [used_rows(options, r["task"], r["rows"], s) for r, s, *_ in given]
    masks = exact.repeated_answers([keys for *_, keys in given], used)

    def records(count: bool) -> list[Content]:
        found = []
        for (claimed, own, facts, wrong, _), mask in zip(given, masks, strict=True):
            event, gone = wrong | mask if count else wrong, claimed["errors"] is None
            counted = counts_and_parts(options, last, claimed["task"], own, event, facts, gone)
            counted["parts"] = [part for part in counted["parts"] if part["family"] != NOT_RECOUNTED]
            found.append({**{name: claimed[name] for name in ("task", "rows", "head", "fingerprint")}, **counted})
        return found

    return [records(True)] + [records(False)] * draws


def _check_statements(values: Sequence[Content], records: Sequence[Content], certificate: Content) -> None:
    """The records are the certificate's but for errors, and the statements follow from them."""
    options = certificate["options"]
    alike = [_without_errors(one) for one in records] == [_without_errors(one) for one in certificate["records"]]
    parts = [(part, one) for one in records for part in (one, *one["parts"])]
    alike = alike and all(all(form.rules_of_counts(part, one, options)) for part, one in parts)
    require(alike, "The export states other counts than its certificate, not only other errors.")
    wanted = [one for one in form.promised_statements(options, records) if one[0] != NOT_RECOUNTED]
    good = [tuple(one[key] for key in form.NAMED) for one in values] == wanted
    require(good, "The export must state of its program what the certificate promised, once, in order.")
    content = {"records": records, "options": options, "statements": values}
    for one in values:
        sentence = f"A bound of the program is smaller than its counts allow: {statement_sentence(one, records)}."
        require(bound_follows(one, content), sentence)


def _without_errors(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in record.items() if key not in (*ERRORS, "parts")}
    kept = [part for part in record.get("parts", ()) if part["family"] != NOT_RECOUNTED]
    return found | {"gone": record["errors"] is None, "parts": [_without_errors(part) for part in kept]}
