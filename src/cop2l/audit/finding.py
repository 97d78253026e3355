"""Finds certificates: in their own folder, in a saved learner, or in a run directory. Needs no torch."""

import os
import re
from pathlib import Path

from cop2l.experiments.records import AFTER, CERTIFICATES, CONFIG, RECORDS, SUMMARY
from cop2l.kernel.form import TEXT_FILE, Unreadable
from cop2l.kernel.verdict import Verdict

FILES = (CONFIG, RECORDS, SUMMARY, CERTIFICATES)
EXPORTED = ("export.json", "weights.safetensors", "model.pt2", "model.onnx")
"""The files of an export; the first names the certificate that the others belong to."""
NUMBERED = re.compile(rf"{AFTER}(\d{{1,7}})", re.ASCII)


def is_export(path: Path) -> bool:
    """Whether `cop2l export` wrote this folder."""
    return os.path.lexists(path / EXPORTED[0])


def find_certificates(path: Path, notes: Verdict) -> list[Path]:
    """The folders of the certificates, in the order of their numbers."""
    if not path.exists():
        raise Unreadable(f"There is nothing at {path}; give a certificate's folder or a run directory.")
    if path.name == TEXT_FILE:
        return [path.parent]
    if is_export(path):
        return [path / "certificate"]
    if loose := [name for name in EXPORTED if os.path.lexists(path / name)]:
        notes.unverified.append(
            f"{', '.join(loose)} lies beside a certificate without {EXPORTED[0]}, which would say that they belong together: "
            "it was not checked."
        )
    if not any(os.path.lexists(path / name) for name in FILES):
        for folder in (path, path / "certificate"):
            if os.path.lexists(folder / TEXT_FILE):
                return [folder]
        raise Unreadable(
            f"There is no certificate in {path}; give a certificate's folder or a run directory."
        )
    if os.path.lexists(path / TEXT_FILE):
        notes.unverified.append(
            f"A {TEXT_FILE} lies beside the files of a run, which were checked instead of it."
        )
    folders: dict[int, Path] = {}
    for folder in sorted((path / CERTIFICATES).glob("*")):
        match = NUMBERED.fullmatch(folder.name)
        if match is None:
            notes.unverified.append(
                f"{CERTIFICATES}/{folder.name!r:.60} is not the name of a certificate and was ignored."
            )
        elif int(match[1]) in folders:
            notes.invalid.append(f"There are two certificates after task {int(match[1])}.")
        else:
            folders[int(match[1])] = folder
    if not folders:
        raise Unreadable(f"There is no certificate in {path}; its run has issued none so far.")
    return [folders[number] for number in sorted(folders)]
