"""Export weights, program and certificate into one folder; hashes bind them to each other, and `cop2l verify` checks them."""

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
from cop2l.certificates.bounding import statements
from cop2l.certificates.program import Run, answers_alone, program, wrong_rows
from cop2l.errors import UserError
from cop2l.experiments import saved_learner
from cop2l.experiments.records import CONFIG
from cop2l.files import file_digest, read_json, replace_folder, write_bytes, write_json
from cop2l.kernel.building import parameter_location, stored_tensors
from cop2l.kernel.exact import digest, kept_rows, withheld_rows
from cop2l.kernel.exported import CERTIFICATE, EXPORT, FORMAT, NOT_RECOUNTED, PROGRAMS, VERSION, WEIGHTS
from cop2l.kernel.form import TEXT_FILE, read_content
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint
from cop2l.kernel.verdict import Verdict
from cop2l.learner import advice, counting
from cop2l.methods import predicts_with_its_model
from cop2l.text import Names, statement_sentence

Samples = Mapping[int, tuple[Any, ...]]


def export(
    source: Any,
    folder: str | Path,
    *,
    format: str = "torch",  # noqa: A002
    data: str | Path | Samples | None = None,
) -> dict[str, Any]:
    """Write the model of a run, a saved learner or a learner with a certificate into a new folder. Returns export.json.

    format: `torch` (a torch.export program) or `onnx`. data: the data of the tasks (the name of a stream, a file, or a mapping
    from tasks to (x, y)), to count the errors of the program on. ONNX always needs it; the default is the stream that the
    certificate names.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose a new folder, or remove it.")
    content: dict[str, Any] = {}

    def fill(new: Path) -> None:
        new.mkdir()
        learner = _with_certificate(source, new / CERTIFICATE)
        description = saved_learner.data_description(source) if isinstance(source, str | Path) else {}
        content.update(_write(new, learner, format, data, description, _repeats(source, learner)))

    replace_folder(folder, fill)
    return content


def _with_certificate(source: Any, target: Path) -> Any:
    """The learner to export; its certificate is written to `target`."""
    if not isinstance(source, str | Path):
        if getattr(source, "certificate", None) is None:
            raise UserError(
                "This learner has no certificate for what it learned; certify it first: learner.certify(data)."
            )
        source.certificate.save(target)
        return source
    folders = find_certificates(Path(source), Verdict())
    target.mkdir()
    for name in (TEXT_FILE, *read_content(folders[-1])["files"]):  # and no other file
        shutil.copyfile(folders[-1] / name, target / name)
    return saved_learner.load(source)


def _repeats(source: Any, learner: Any) -> bool:
    """Whether the learner or, for other methods, the run declares that equal rows are independent draws."""
    if hasattr(learner, "state"):
        return bool(learner.state.repeats)
    config = Path(source) / CONFIG if isinstance(source, str | Path) else None
    return bool(config and config.is_file() and read_json(config).get("repeats"))


def _write(
    new: Path, learner: Any, kind: str, data: Any, description: Mapping[str, Any], repeats: bool
) -> dict[str, Any]:
    """Write weights, program and export.json beside the certificate, and return the content of export.json."""
    certificate = read_content(new / CERTIFICATE)
    if not predicts_with_its_model(certificate["method"]):
        raise UserError(
            f"{certificate['method']} does not predict with its model alone, so it cannot be exported; load it in Python."
        )
    theta = stored_tensors(*parameter_location(certificate))
    is_newest = learner.tasks_seen == len(certificate["records"])  # a task may change no parameter
    if not is_newest or digest(theta) != digest(learner.model.state_dict()):
        raise UserError("The model is not the one that its last certificate is about; certify it first.")
    exported = program(learner.model, shape := _inputs(learner), kind)
    save_file({name: value.contiguous() for name, value in theta.items()}, new / WEIGHTS)
    write_bytes(new / PROGRAMS[kind], exported.content)
    counted = None
    if data is not None or kind == "onnx":
        (samples, learned), options = _samples(certificate, data), certificate["options"]
        sets = [Sets()] * learner.tasks_seen if options.kind == "holdout" else learner.engine.sets
        records, statements = recount_errors(
            exported.logits, certificate, options, sets, samples, repeats, learned
        )
        counted = {"run_by": exported.run_by, "records": records, "statements": statements}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"cop2l {__version__}",
        "certificate": certificate["digest"],
        "weights": digest(theta),
        "files": {
            WEIGHTS: file_digest(new / WEIGHTS),
            "program": hashlib.sha256(exported.content).hexdigest(),
        },
        "program": {"format": kind, "made_by": exported.made_by, "inputs": shape},
        "data": dict(description),
        "recount": counted,
    }
    write_json(new / EXPORT, content)
    advice.warn_user(f"The certificate is not valid: {reason}" for reason in certificate["not_valid"])
    return content


def _inputs(learner: Any) -> list[int]:
    """The shape of one example, from the description of the model or from the stored examples."""
    description = getattr(learner.model, "description", None) or {}
    buffer = learner.engine.buffer if hasattr(learner, "engine") else getattr(learner.state, "tasks", [])
    if "inputs" not in description and not buffer:
        raise UserError(
            "The shape of the inputs is unknown: the model has no description, and the learner keeps no examples."
        )
    return [int(size) for size in description.get("inputs") or buffer[0].x.shape[1:]]


def _samples(certificate: Mapping[str, Any], data: Any) -> tuple[Samples, Mapping[int, Any]]:
    """The examples that the certificate was counted on, to count the errors of the program; and what a hold-out learned from."""
    options, notes, learned = certificate["options"], Verdict(), dict[int, Any]()
    source = (certificate["data"] or {}).get("stream") if data is None else data
    if source is None:
        raise UserError(
            "The errors of an ONNX program are counted on the data of every task; give it with --data (data= in Python)."
        )
    loaded = samples_for(notes, certificate, source, {}, split_as_stated=True)
    if notes.invalid:
        raise UserError(notes.invalid[0])
    recipe = certificate["data"] or {}
    is_holdout, samples, sizes = (
        options.kind == "holdout",
        loaded.tasks,
        [r["rows"] for r in certificate["records"]],
    )
    share: Any = recipe.get("holdout" if is_holdout else "prepare")
    for t, columns in loaded.tasks.items() if share else ():
        mask = withheld_rows(len(columns[1]), t, share, options.seed)
        if t > len(sizes) or len(mask) == sizes[t - 1] or not (is_holdout or t == 1):
            continue
        rows = np.flatnonzero(mask == is_holdout)
        if recipe.get("kept") and t < len(sizes):
            rows = kept_rows(mask, t, recipe["keep_withheld"] // (len(sizes) - 1), options.seed)
        samples[t] = tuple(column[rows] for column in columns)
        learned |= {t: columns[0][~mask]} if is_holdout else {}
    for record in certificate["records"]:
        x, y, *groups = (*samples.get(record["task"], (None, None)), None)
        if y is None:
            raise UserError(f"The data of task {record['task']} is missing; give the data of every task.")
        column = counting.group_numbers(groups[0], options, len(y))
        if len(y) != record["rows"] or fingerprint(len(y), blocks_of(x, y), column) != record["fingerprint"]:
            raise UserError(f"The data of task {record['task']} is not what the certificate was counted on.")
    return samples, learned


def recount_errors(
    run: Run,
    certificate: Mapping[str, Any],
    options: Options,
    sets: Sequence[Sets],
    samples: Mapping[int, tuple[Any, ...]],
    repeats: bool = False,
    learned: Mapping[int, Any] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of a certificate with the errors of a program, and the statements that follow from them.

    Let h be the program, a function of theta_T fixed before the data was seen. With probability at least 1 - delta over the draw
    of all samples and marks, under the assumptions of the certificate, the error rate of h on every task is at most its bound,
    for all tasks at once (docs/theory.md, section 12). Nothing is stated about theta_T in another runtime, or about forgetting.
    """
    last, records, has_heads = len(certificate["records"]), [], certificate["scenario"] == "task-incremental"
    logits = {t: answers_alone(run, x) for t, (x, *_) in samples.items() if t <= last}
    keys = {t: counting.row_numbers(values) for t, values in logits.items()}
    used = {t: counting.used_rows(len(numbers), sets[t - 1]) for t, numbers in keys.items()}
    all_repeated = dict[int, np.ndarray]()
    if not counting.declared_draws(certificate["data"], repeats):
        learned_keys = {t: counting.row_numbers(answers_alone(run, x)) for t, x in (learned or {}).items()}
        all_repeated = counting.repeated_rows(keys, used, learned_keys)
    for claimed in certificate["records"]:
        _, y, *groups = (*samples[task := claimed["task"]], None)
        labels = np.asarray(y).astype(np.int64)
        masked_classes = ~np.isin(np.arange(certificate["classes"]), claimed["head"]) if has_heads else None
        columns = {
            "errors": wrong_rows(logits[task], labels, masked_classes),
            "repeated": all_repeated.get(task, np.zeros(len(labels), bool)),
            "labels": labels,
            "groups": counting.group_numbers(groups[0], options, len(labels)),
            "wrong": np.zeros(len(labels), bool),  # after its task: only forgetting uses it
        }
        has_data = claimed["errors"] is not None
        counted = counting.task_record(options, last, task, sets[task - 1], columns, has_data)
        counted["parts"] = [part for part in counted["parts"] if part["family"] != NOT_RECOUNTED]
        identity = {name: claimed[name] for name in ("task", "rows", "head", "fingerprint")}
        records.append({**identity, **counted})
    return records, statements(options, records, without=NOT_RECOUNTED)


def export_sentences(content: Mapping[str, Any]) -> list[str]:
    """The sentences about the program of an export."""
    file, counted = PROGRAMS[content["program"]["format"]], content["recount"]
    if counted is None:
        return [f"The errors of {file} were not counted; the certificate is about the weights in cop2l."]
    errors = sum(record["errors_not_picked"] or 0 for record in counted["records"])
    lines = [f"{file} makes {errors} errors on the certified examples that were not picked."]
    names = Names.from_description(content["data"])
    sizes = [record["n"] for record in counted["records"]]
    sentences = (statement_sentence(statement, sizes) for statement in counted["statements"])
    return lines + [names.with_names(f"In {file}: {sentence}.") for sentence in sentences]
