"""The auditor's one function: is this certificate, or this whole run, to be relied on?"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cop2l.audit.commitment import check_commitment
from cop2l.audit.cut import MOST, only, samples_for
from cop2l.audit.directory import check_names, check_run, check_saved, nothing_issued
from cop2l.audit.exported import check_export
from cop2l.audit.finding import find, is_export
from cop2l.audit.holdout import HoldoutRun
from cop2l.audit.model import Builder, model_for
from cop2l.audit.prior import check_scale, put_scale
from cop2l.audit.readable import ReadableVerdict
from cop2l.audit.unread import check_unread
from cop2l.certify.saved import FILE as SAVED
from cop2l.errors import printable
from cop2l.kernel import verify as kernel
from cop2l.kernel.form import Unreadable, read
from cop2l.kernel.options import Refusal
from cop2l.kernel.verdict import PARTS, Verdict
from cop2l.kernel.verify import Allowed, Say
from cop2l.streams.loading import GENERATED
from cop2l.text import Names


def verify(
    path: str | Path,
    data: str | Path | Mapping[int, tuple[Any, ...]] | None = None,
    *,
    model: str | Builder | None = None,
    cut: Mapping[str, Any] | None = None,
    cut_as_stated: bool = False,
    commitment: str | Path | Mapping[str, Any] | None = None,
    allowed: Allowed | None = None,
    say: Say = lambda _: None,
) -> Verdict:
    """Check the certificate in a folder, all certificates and files of a run directory, or an export; the kernel decides.

    `data` is a stream's name, a file or folder of data, or a mapping from task numbers to (x, y) or
    (x, y, groups); `cut` are options of `cop2l.streams.load` that you know the data to be cut with.
    `model` is your function build(seed), or its name as package.module:function. `commitment` is what you were
    handed before: a hash, a file or its content. `Unreadable` or `cop2l.errors.UserError` is raised where nothing can be said.
    """
    notes, accepted, committed, names = Verdict(), allowed or Allowed(), False, Names()
    # what is generated is drawn here, independently, from few values
    allowed = replace(accepted, repeated=1.0, shared=MOST) if str(data) in GENERATED else accepted
    folders, run = find(Path(path), notes)
    if run is not None and not folders:
        return ReadableVerdict.of(nothing_issued(run))
    try:
        certificates = [read(folder) for folder in folders]
        last = certificates[-1]
        names = Names.of(last["data"])
        committed = check_commitment(notes, last, commitment)
        start = last.get("theta_0") if committed else None
        samples = samples_for(notes, last, data, cut or {}, cut_as_stated)
        left = run is not None and check_run(notes, run, certificates)
        beside = Path(path) / SAVED
        if beside.exists() and (Path(path) not in folders or SAVED not in last["files"]):
            check_saved(notes, beside, last)
        check_names(notes, Path(path), samples.stream)
        check_scale(notes, last, samples, left, model is not None, committed)
        if last["options"].kind == "holdout":
            verdict = HoldoutRun(notes, certificates, samples, model, allowed, say).verdict()
        else:
            built = _model(notes, last, model)
            put_scale(last, samples, built)
            verdict = kernel.verify(folders, samples.learned, built, start=start, allowed=allowed, say=say)
            if verdict.status == "valid":
                check_unread(notes, only(samples.learned, len(last["records"])), built, allowed)
        if is_export(Path(path)):
            valid = verdict.status == "valid" and not notes.faults and not notes.doubts
            check_export(notes, Path(path), last, samples, model, valid)
    except Unreadable:
        raise
    except Refusal as refusal:  # the kernel says what is wrong with the certificates themselves
        verdict = kernel.verify(folders)
        if str(refusal) not in verdict.faults:
            notes.fault(str(refusal))
    if committed and kernel.UNCOMMITTED in verdict.word:
        verdict.word.remove(kernel.UNCOMMITTED)
    return ReadableVerdict.of(lowered(verdict, notes, accepted, names))


def _model(notes: Verdict, certificate: Mapping[str, Any], given: str | Builder | None) -> Any:
    try:
        return model_for(certificate, given, certificate["folder"] / "theta_0.safetensors")
    except Unreadable:
        raise
    except Refusal as refusal:
        notes.fault(str(refusal))
        return None


def lowered(verdict: Verdict, notes: Verdict, allowed: Allowed, names: Names) -> Verdict:
    """The kernel's verdict with everything that was found around it."""
    for name in PARTS:
        getattr(verdict, name).extend(printable(sentence) for sentence in getattr(notes, name))
    usual = Allowed()
    if (allowed.repeated, allowed.shared) != (usual.repeated, usual.shared):
        verdict.claim.append(
            f"Accepted by the auditor: up to {100 * allowed.repeated:g} % of the rows of a task repeat another, "
            f"and up to {allowed.shared} are rows of an earlier task."
        )
    for name in PARTS:
        setattr(verdict, name, [names.put(sentence) for sentence in getattr(verdict, name)])
    return verdict
