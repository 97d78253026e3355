"""Weights, program and certificate in one folder, bound to each other by hashes; `cop2l verify` reads it."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from cop2l._version import __version__
from cop2l.audit.finding import find_certificates
from cop2l.audit.split import samples_for
from cop2l.certify import counting
from cop2l.certify.bounding import statements
from cop2l.certify.program import Run, answers_alone, program, wrong_rows
from cop2l.errors import UserError
from cop2l.experiments import saved_learner
from cop2l.experiments.records import CONFIG
from cop2l.files import file_digest, read_json, replace_folder, write_bytes, write_json
from cop2l.kernel.building import stored_tensors, where
from cop2l.kernel.exact import digest, withheld_rows
from cop2l.kernel.exported import CERTIFICATE, EXPORT, FORMAT, NOT_RECOUNTED, PROGRAMS, VERSION, WEIGHTS
from cop2l.kernel.form import TEXT_FILE, read_certificate
from cop2l.kernel.learning import SET_NAMES, Sets
from cop2l.kernel.options import Options, Refusal
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.kernel.verdict import Verdict
from cop2l.methods import predicts_with_its_model
from cop2l.text import Names, statement_text

Samples = Mapping[int, tuple[Any, ...]]


def export(
    source: Any,
    folder: str | Path,
    *,
    format: str = "torch",  # noqa: A002
    data: str | Path | Samples | None = None,
) -> dict[str, Any]:
    """Write the model of a run, of a saved learner or of a learner with a certificate into a new folder; what export.json says.

    format: `torch` (a torch.export program) or `onnx`. data: what the tasks were learned from (a stream's name, a file, or a
    mapping from tasks to (x, y)), where the errors are to be counted again as the program makes them. ONNX always needs
    it, and takes the stream that the certificate names if nothing is given.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose a new folder, or remove it.")
    content: dict[str, Any] = {}

    def fill(new: Path) -> None:
        new.mkdir()
        learner = _with_certificate(source, new / CERTIFICATE)
        known = saved_learner.data_description(source) if isinstance(source, str | Path) else {}
        content.update(_written(new, learner, format, data, known, _repeats(source, learner)))

    try:
        replace_folder(folder, fill)
    except Refusal as refusal:
        raise UserError(str(refusal)) from None
    return content


def _with_certificate(source: Any, to: Path) -> Any:
    """The learner that is exported, once its certificate is put down."""
    if not isinstance(source, str | Path):
        if getattr(source, "certificate", None) is None:
            raise UserError(
                "This learner has no certificate for what it learned; certify it first: learner.certify(data)."
            )
        source.certificate.save(to)
        return source
    folders = find_certificates(Path(source), Verdict())
    to.mkdir()
    for name in (TEXT_FILE, *read_certificate(folders[-1])["files"]):  # nothing else that lies there
        shutil.copyfile(folders[-1] / name, to / name)
    return saved_learner.load(source)


def _repeats(source: Any, learner: Any) -> bool:
    """Whether equal rows were declared to be independent draws: to the learner or, of other methods, to their run."""
    if hasattr(learner, "state"):
        return bool(learner.state.repeats)
    config = Path(source) / CONFIG if isinstance(source, str | Path) else None
    return bool(config and config.is_file() and read_json(config).get("repeats"))


def _written(
    new: Path, learner: Any, kind: str, data: Any, known: Mapping[str, Any], repeats: bool
) -> dict[str, Any]:
    certificate = read_certificate(new / CERTIFICATE)
    if not predicts_with_its_model(certificate["method"]):
        raise UserError(
            f"{certificate['method']} does not predict with its model alone, so a program of the model would answer otherwise; "
            "load it in Python."
        )
    theta = stored_tensors(*where(certificate))
    if digest(theta) != digest(learner.model.state_dict()):
        raise UserError("The model is not the one that its last certificate is about; certify it first.")
    made = program(learner.model, shape := _inputs(learner), kind)
    save_file({name: value.contiguous() for name, value in theta.items()}, new / WEIGHTS)
    write_bytes(new / PROGRAMS[kind], made.content)
    counted = None
    if data is not None or kind == "onnx":
        samples, sets = _samples(certificate, data), stored_sets(certificate)
        options = certificate["options"]
        records, statements = recount_errors(made.logits, certificate, options, sets, samples, repeats)
        counted = {"run_by": made.run_by, "records": records, "statements": statements}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"cop2l {__version__}",
        "certificate": certificate["digest"],
        "weights": digest(theta),
        "files": {WEIGHTS: file_digest(new / WEIGHTS), "program": hashlib.sha256(made.content).hexdigest()},
        "program": {"format": kind, "made_by": made.made_by, "inputs": shape},
        "data": dict(known),
        "recount": counted,
    }
    write_json(new / EXPORT, content)
    return content


def _inputs(learner: Any) -> list[int]:
    """The shape of one example: that of the model's description, or of the examples that are kept."""
    described = getattr(learner.model, "description", None) or {}
    kept = learner.engine.buffer if hasattr(learner, "engine") else []
    if "inputs" not in described and not kept:
        raise UserError(
            "Which inputs the model takes is not known: it has no description, and keeps no examples."
        )
    return [int(size) for size in described.get("inputs") or kept[0].x.shape[1:]]


def _samples(certificate: Mapping[str, Any], data: Any) -> Samples:
    """What the errors are counted on again: exactly the examples that the certificate was counted on."""
    options, notes = certificate["options"], Verdict()
    source = (certificate["data"] or {}).get("stream") if data is None else data
    if source is None:
        raise UserError(
            "An ONNX program is counted again on the data of every task; give it with --data (data= in Python)."
        )
    found = samples_for(notes, certificate, source, {}, as_stated=True)
    if notes.invalid:
        raise UserError(notes.invalid[0])
    recipe = certificate["data"] or {}
    share: Any = recipe.get("holdout")
    samples, certified = found.tasks, options.kind == "holdout"
    for t, columns in found.tasks.items() if found.stream is not None and share else ():
        rows = withheld_rows(len(columns[1]), t, share, recipe.get("holdout_seed", 0)) == certified
        samples[t] = tuple(column[rows] for column in columns)
    for record in certificate["records"]:
        x, y, *groups = (*samples.get(record["task"], (None, None)), None)
        if y is None:
            raise UserError(f"The data of task {record['task']} is missing; give the data of every task.")
        column = counting.group_numbers(groups[0], options, len(y))
        if len(y) != record["rows"] or fingerprint(len(y), blocks_of(x, y), column) != record["fingerprint"]:
            raise UserError(f"The data of task {record['task']} is not what the certificate was counted on.")
    return samples


def stored_sets(certificate: Mapping[str, Any]) -> list[Sets]:
    """The sets of each task; empty ones where nothing can be picked."""
    records, made = certificate["records"], []
    if certificate["options"].kind == "holdout":
        return [Sets() for _ in records]
    found = stored_tensors(certificate["folder"] / "sets.safetensors")
    for record in records:
        rows: dict[str, Any] = {name: found[f"{record['task']}/{name}"].numpy() for name in SET_NAMES}
        made.append(Sets(**rows, iterations=record["iterations"], stopped=record["stopped"]))
    return made


def recount_errors(
    run: Run,
    certificate: Mapping[str, Any],
    options: Options,
    sets: Sequence[Sets],
    samples: Mapping[int, tuple[Any, ...]],
    repeats: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of a certificate with the errors that a program makes, and the statements that follow from them.

    Let h be the program, a function of theta_T fixed before the data was seen. With probability at least 1 - delta over the draw
    of all samples and marks, under the assumptions of the certificate, the error rate of h on every task is at most its bound,
    for all tasks at once (docs/theory.md, section 12). It says nothing of theta_T in another runtime, nor of what was forgotten.
    """
    last, records, alone = len(certificate["records"]), [], certificate["scenario"] == "task-incremental"
    logits = {t: answers_alone(run, x) for t, (x, *_) in samples.items() if t <= last}
    keys = {t: counting.row_numbers(found) for t, found in logits.items()}
    used = {t: counting.used_rows(len(own), t, options, sets[t - 1]) for t, own in keys.items()}
    same = {} if counting.declared_draws(certificate["data"], repeats) else counting.repeated_rows(keys, used)
    for claimed in certificate["records"]:
        _, y, *groups = (*samples[task := claimed["task"]], None)
        labels = np.asarray(y).astype(np.int64)
        masked_classes = ~np.isin(np.arange(certificate["classes"]), claimed["head"]) if alone else None
        facts = {
            "labels": labels,
            "groups": counting.group_numbers(groups[0], options, len(labels)),
            "wrong": np.zeros(len(labels), bool),  # of then: only forgetting asks for it
        }
        wrong = wrong_rows(logits[task], labels, masked_classes) | same.get(task, False)
        has_data = claimed["errors"] is not None
        counted = counting.task_record(options, last, task, sets[task - 1], wrong, facts, has_data)
        counted["parts"] = [part for part in counted["parts"] if part["family"] != NOT_RECOUNTED]
        records.append(
            {**{name: claimed[name] for name in ("task", "rows", "head", "fingerprint")}, **counted}
        )
    return records, statements(options, records, without=NOT_RECOUNTED)


def export_sentences(content: Mapping[str, Any]) -> list[str]:
    """What an export says of its program, for people."""
    file, counted = PROGRAMS[content["program"]["format"]], content["recount"]
    if counted is None:
        return [f"{file} was not counted; the certificate speaks of the weights as cop2l runs them."]
    errors = sum(record["errors_not_picked"] or 0 for record in counted["records"])
    lines = [f"{file} makes {errors} errors on the certified examples that were not picked."]
    stated = [f"In {file}, {statement_text(one, counted['records'])}." for one in counted["statements"]]
    return lines + [Names.from_description(content["data"]).with_names(sentence) for sentence in stated]
