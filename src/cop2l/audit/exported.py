"""An exported folder: its weights and its program must be those that its certificate speaks of.

Nothing of the folder is loaded but tensors and JSON. The program is made again from the weights and compared byte for byte,
and what is counted is counted with the one that was made here.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from cop2l.audit.cut import Samples
from cop2l.audit.model import Builder, model_for, stored_shapes
from cop2l.certify.program import (
    EXPORT,
    FORMAT,
    NOT_RECOUNTED,
    PROGRAMS,
    VERSION,
    WEIGHTS,
    Program,
    program,
    recount,
)
from cop2l.errors import UserError
from cop2l.files import DamagedError, read_json
from cop2l.kernel.arithmetic import follows
from cop2l.kernel.exact import digest
from cop2l.kernel.form import (
    COUNTED,
    HOLDOUT_FILES,
    MOST_BYTES,
    NAMED,
    SAMPLE,
    TEXT_FILE,
    Unreadable,
    described,
    promised,
    regular,
    rules_of_counts,
    sha256,
    share,
    table,
    text,
)
from cop2l.kernel.learning import SET_NAMES, Sets
from cop2l.kernel.options import Refusal, choice, many, maybe, require, whole
from cop2l.kernel.verdict import Verdict, in_words
from cop2l.methods import predicts_with_its_model

CERTIFICATE = "certificate"
MOST_INPUTS = 2**27
ERRORS = ("errors", "missed", "compressed")
"""The counts that a program may have otherwise than the certificate."""
NOT_THESE = f"{WEIGHTS} does not hold the parameters that the certificate speaks of."
RECOUNTED = table(
    run_by=text,
    records=many(table(**SAMPLE, **COUNTED), least=1),
    statements=many(table(**NAMED, value=share)),
)
CONTENT = table(
    format=choice(FORMAT),
    version=choice(VERSION),
    made_by=text,
    certificate=sha256,
    weights=sha256,
    files=table(**{WEIGHTS: sha256, "program": sha256}),
    program=table(format=choice(*PROGRAMS), made_by=text, inputs=many(whole(1, 2**20), least=1, most=8)),
    data=described,
    recount=maybe(RECOUNTED),
)


def check_export(
    notes: Verdict,
    folder: Path,
    certificate: Mapping[str, Any],
    samples: Samples,
    given: str | Builder | None,
    checked: bool,
) -> None:
    """Compare an exported folder with its certificate; `checked`: the certificate itself was found valid."""
    try:
        content = CONTENT(read_json(folder / EXPORT, MOST_BYTES), EXPORT)
        theta = _check_files(notes, folder, content, certificate)
        require(
            predicts_with_its_model(certificate["method"]),
            f"{certificate['method']!r:.40} does not predict with its model alone, so no program of the model is certified.",
        )
        made = _made_again(notes, content["program"], certificate, given, theta)
        if made is not None and not _same_program(notes, content, made):
            made = None
        _check_recount(notes, content, certificate, samples, made, checked)
    except Unreadable:
        raise
    except (Refusal, DamagedError) as error:
        notes.fault(str(error))


def certified_weights(certificate: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters that a certificate is about, from its own folder, which was checked for its hashes."""
    return tensors(*where(certificate))


def where(certificate: Mapping[str, Any]) -> tuple[Path, str]:
    """The file of a certificate that holds its parameters, and how their names begin there."""
    folder, own = certificate["folder"], certificate["method"] == "cop2l"
    if "theta" in certificate:
        return folder / "theta.safetensors", ""
    return folder / HOLDOUT_FILES[0], "theta/" if own else "model."


def tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a file whose names begin so, by the rest of their names."""
    with regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def stored_sets(certificate: Mapping[str, Any]) -> list[Sets]:
    """The sets of each task; empty ones where nothing can be picked."""
    records = certificate["records"]
    if certificate["options"].kind == "holdout":
        return [Sets() for _ in records]
    found = tensors(certificate["folder"] / "sets.safetensors")
    made = []
    for record in records:
        rows: dict[str, Any] = {name: found[f"{record['task']}/{name}"].numpy() for name in SET_NAMES}
        made.append(Sets(**rows, iterations=record["iterations"], stopped=record["stopped"]))
    return made


def _check_files(
    notes: Verdict, folder: Path, content: Mapping[str, Any], certificate: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The hashes of the folder; the exported weights."""
    file = PROGRAMS[content["program"]["format"]]
    for name, stated in ((WEIGHTS, content["files"][WEIGHTS]), (file, content["files"]["program"])):
        with regular(folder / name) as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        require(found == stated, f"The file {name} was changed: its hash does not match.")
    require(
        content["certificate"] == certificate["digest"],
        "The certificate in the exported folder is not the one that the export speaks of.",
    )
    require(stored_shapes(folder / WEIGHTS, "") == stored_shapes(*where(certificate)), NOT_THESE)
    theta, certified = tensors(folder / WEIGHTS), certified_weights(certificate)
    same = digest(theta) == content["weights"] == digest(certified)
    same &= certificate.get("theta") in (None, content["weights"])
    require(same, NOT_THESE)
    notes.checked.append(f"{WEIGHTS} holds the parameters that the certificate speaks of, bit for bit.")
    known = {EXPORT, WEIGHTS, file, CERTIFICATE}
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    inside, own = certificate["folder"], {TEXT_FILE, *certificate["files"]}
    others += sorted(f"{CERTIFICATE}/{path.name}" for path in inside.iterdir() if path.name not in own)
    if others:
        notes.doubt(f"The exported folder holds what nobody speaks of: {', '.join(others[:5])!r:.200}.")
    return theta


def _made_again(
    notes: Verdict,
    stated: Mapping[str, Any],
    certificate: Mapping[str, Any],
    given: str | Builder | None,
    theta: Mapping[str, Tensor],
) -> Program | None:
    """The program made from the exported weights here; None, with a doubt, where that cannot be."""
    file = PROGRAMS[stated["format"]]
    model = _model(certificate, given)
    if model is None:
        notes.doubt(f"{file} could not be made again: its model is the issuer's own; give it with --model.")
        return None
    shape = certificate["model"].get("inputs", stated["inputs"])
    good = shape == stated["inputs"] and math.prod(stated["inputs"]) <= MOST_INPUTS
    require(good, "The program is said to take inputs of another shape than the model, or larger than any.")
    model.cpu().load_state_dict(dict(theta))
    try:
        return program(model, stated["inputs"], stated["format"])
    except UserError as error:  # here: another torch may do it
        notes.doubt(f"{file} could not be made again: {error}")
        return None


def _model(certificate: Mapping[str, Any], given: str | Builder | None) -> nn.Module | None:
    """A model that takes the certified parameters."""
    return model_for(certificate, given, *where(certificate))


def _same_program(notes: Verdict, content: Mapping[str, Any], made: Program) -> bool:
    """Whether the file is, byte for byte, what the weights give here."""
    stated = content["program"]
    file = PROGRAMS[stated["format"]]
    if content["files"]["program"] == hashlib.sha256(made.content).hexdigest():
        notes.checked.append(f"{file} was made again from these parameters: the same bytes.")
        return True
    sentence = f"{file} is not the program that these parameters give"
    if stated["made_by"] == made.made_by:
        notes.fault(f"{sentence}.")
    else:
        notes.doubt(f"{sentence} here. But it was made by {stated['made_by']}; here is {made.made_by}.")
    return False


def _check_recount(
    notes: Verdict,
    content: Mapping[str, Any],
    certificate: Mapping[str, Any],
    samples: Samples,
    made: Program | None,
    checked: bool,
) -> None:
    """The bounds of the program itself must follow from counts that the data gives."""
    file, stated, options = PROGRAMS[content["program"]["format"]], content["recount"], certificate["options"]
    if stated is None:
        notes.claim.append(
            f"The claim is about the exported weights as cop2l runs them. {file} was not counted: "
            "its logits may differ in the last digits, and answers that are close to a tie with them."
        )
        if content["program"]["format"] == "onnx":
            notes.fault("ONNX rounds in its own way, and the errors of the program were not counted again.")
        return
    records, values = stated["records"], stated["statements"]
    _check_statements(values, records, certificate)
    learned, again = samples.withheld if options.kind == "holdout" else samples.learned, None
    if made is not None and checked and len(learned) >= len(certificate["records"]):
        again = recount(made.logits, certificate, options, stored_sets(certificate), learned)[0]
    # what was counted here is known of what is here; where else it was counted is the issuer's word
    run_by = made.run_by if made is not None and again == records else stated["run_by"]
    notes.claim.append(
        f"The bounds above are about the weights in PyTorch. For {file}, run by {run_by}, one example at a time, "
        "these take their place (each set of bounds has probability 1 - delta; both at once 1 - 2 delta):"
    )
    notes.claim += [f"In {file}, {in_words(one, records)}." for one in values]
    notes.word.append(
        f"The program and what runs it were chosen before the data was seen, not by the bounds of {file}."
    )
    if NOT_RECOUNTED in options.claim:
        notes.claim.append(f"What was forgotten is not claimed of {file}.")
    if made is None or again is None:
        notes.doubt(f"The errors that {file} makes were not counted again.")
    elif again == records:
        notes.checked.append(f"The errors that {file} makes were counted again: they are as stated.")
        if stated["run_by"] != made.run_by:
            notes.word.append(f"They were first counted by {stated['run_by']}, which is not what is here.")
    elif stated["run_by"] == made.run_by:
        notes.fault(f"The errors that {file} makes are not those that are stated.")
    else:
        notes.doubt(
            f"The errors that {file} makes here are not those that are stated. But they were counted by "
            f"{stated['run_by']}; here is {made.run_by}."
        )


def _check_statements(
    values: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]], certificate: Mapping[str, Any]
) -> None:
    """The records are the certificate's but for errors, and the statements follow from them."""
    options = certificate["options"]
    alike = [_without_errors(one) for one in records] == [
        _without_errors(one) for one in certificate["records"]
    ]
    parts = [(part, one) for one in records for part in (one, *one["parts"])]
    alike = alike and all(all(rules_of_counts(part, one, options)) for part, one in parts)
    require(alike, "The export states other counts than its certificate, not only other errors.")
    wanted = [one for one in promised(options, records) if one[0] != NOT_RECOUNTED]
    require(
        [tuple(one[key] for key in NAMED) for one in values] == wanted,
        "The export must state of its program what the certificate promised, once, in order.",
    )
    content = {"records": records, "options": options, "statements": values}
    for one in values:
        said = in_words(one, records)
        require(follows(one, content), f"A bound of the program is smaller than its counts allow: {said}.")


def _without_errors(record: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in record.items() if key not in (*ERRORS, "parts")}
    kept = [part for part in record.get("parts", ()) if part["family"] != NOT_RECOUNTED]
    return found | {"gone": record["errors"] is None, "parts": [_without_errors(part) for part in kept]}
