"""The checker: `python -P -m cop2l.kernel ARRAYS CERTIFICATE...` reads the arrays of the loader, and decides alone.

Exit code 0: valid. 1: invalid. 2: cannot tell. 3: no verdict could be made.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cop2l.kernel import arrays
from cop2l.kernel.building import model_for, stored_shapes
from cop2l.kernel.checking import Policy, Say, check_certificates
from cop2l.kernel.exported import CERTIFICATE, EXPORT, PROGRAMS, WEIGHTS, check_export
from cop2l.kernel.form import FILES, HOLDOUT_FILES, TEXT_FILE, open_regular, read_content
from cop2l.kernel.holdout import BlindMethod, check_holdouts, split, watch
from cop2l.kernel.options import Refusal, UserError, require
from cop2l.kernel.verdict import PARTS, Verdict


def decide(
    folder: Path, certificates: list[Path], scratch: Path, model: str | None, commitment: str | None, policy: Policy,
    export: Path | None, say: Say,
) -> Verdict:  # fmt: skip
    """The verdict on the certificates of a run, with the notes of the loader; all files are copied once, then read."""
    index, tasks, tests = arrays.read_arrays(folder)
    policy = replace(policy, draws=policy.draws or index["draws"])
    folders = [_copy_files(original, scratch / f"{i}" / CERTIFICATE) for i, original in enumerate(certificates)]
    (blind := scratch / "blind").mkdir()
    try:
        last = read_content(folders[-1])
        holdout = last["options"].kind == "holdout"
        learned, withheld = split(last, tasks) if index["whole"] else ({}, tasks) if holdout else (tasks, {})
        settings: dict[str, Any] = {"commitment": commitment, "policy": policy, "say": say}
        require(index["certificate"] == last["digest"], "The data was loaded for another certificate than this one.")
        if holdout:
            verdict = check_holdouts(folders, withheld, learned, blind, model, tests=tests, **settings)
        else:
            module = model_for(last, model, folders[-1] / "theta_0.safetensors")
            verdict = check_certificates(folders, learned, module, prepared=withheld, tests=tests, **settings)
        if export is not None:
            copy = _copy_files(export, folders[-1].parent, (EXPORT, WEIGHTS, *PROGRAMS.values()))
            samples, method = withheld if holdout else learned, BlindMethod(blind, model, last, policy.operations, say)
            check_export(verdict, copy, last, samples, method, policy.draws, export, learned if holdout else {})
    except Refusal as refusal:
        verdict = Verdict(invalid=[str(refusal)])
    for name in PARTS:  # the sentences of the loader come first; they can only lower the verdict
        getattr(verdict, name)[:0] = index["notes"][name]
    verdict.command = index["command"]
    verdict.checked.append(f"At most {policy.operations:.1e} operations and {policy.seconds:.0f} seconds were allowed (--limit).")
    return verdict


def _copy_files(folder: Path, target: Path, names: tuple[str, ...] = (TEXT_FILE, *FILES, *HOLDOUT_FILES)) -> Path:
    """Copy these files to a private folder, so that nobody can exchange them between reading and deciding."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name == TEXT_FILE or os.path.lexists(folder / name):
            if name.endswith(".safetensors") and (folder / name).stat().st_size > 2**26:
                stored_shapes(folder / name, "")  # raises if the file is not as large as its header states
            with open_regular(folder / name) as file, (target / name).open("xb") as copy:
                shutil.copyfileobj(file, copy)
    return target


def main(arguments: list[str] | None = None) -> int:
    """Decide; the exit code is the verdict."""
    parser = argparse.ArgumentParser(prog="python -P -m cop2l.kernel", description=__doc__)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("certificates", type=Path, nargs="+")
    parser.add_argument("--model", metavar="PACKAGE.MODULE:BUILD")
    parser.add_argument("--commitment", metavar="HASH")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=float, default=Policy.operations)
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process has ended")
    for name in ("--count-repeats", "--repeats-are-draws", "--json", "--say"):
        parser.add_argument(name, action="store_true")
    parsed = parser.parse_args(arguments)
    policy = Policy(parsed.count_repeats, parsed.repeats_are_draws, parsed.limit)
    say: Say = (lambda sentence: print(sentence, file=sys.stderr, flush=True)) if parsed.say else (lambda _: None)
    try:
        with tempfile.TemporaryDirectory(prefix="cop2l-") as scratch:
            if arguments is None:  # a process of its own
                watch(parsed.parent, policy.seconds, Path(scratch))
            paths = parsed.arrays, parsed.certificates, Path(scratch)
            verdict = decide(*paths, parsed.model, parsed.commitment, policy, parsed.export, say)
    except UserError as error:
        print(f"cop2l: {error}", file=sys.stderr)
        return 3
    except SystemExit:  # raised by the model
        return 3
    print(json.dumps(verdict.as_dict(), indent=1) if parsed.json else verdict, flush=True)
    return verdict.exit_code


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # a failure must not look like a verdict
        code = 0 if isinstance(error, SystemExit) and not error.code else 3  # 0: --help
        if not isinstance(error, SystemExit):
            print(f"cop2l: the check could not be made: {error!r:.300}", file=sys.stderr)
    sys.exit(code)
