"""The checker: `python -P -m cop2l.kernel ARRAYS CERTIFICATE...` reads what the loader wrote, and decides alone.

Exit code 0: valid. 1: invalid. 2: cannot tell. 3: no verdict could be made.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from cop2l.kernel import arrays, exact
from cop2l.kernel.building import model_for, stored_shapes
from cop2l.kernel.exported import CERTIFICATE, EXPORT, PROGRAMS, WEIGHTS, check_export
from cop2l.kernel.form import FILES, HOLDOUT_FILES, TEXT_FILE, Content, Unreadable, open_regular, read_certificate
from cop2l.kernel.holdout import Blind, verify_holdout
from cop2l.kernel.options import Refusal, UserError, require
from cop2l.kernel.verdict import PARTS, Verdict
from cop2l.kernel.verify import Allowed, Say, verify


def check(
    folder: Path, certificates: list[Path], scratch: Path, model: str | None = None, commitment: str | None = None,
    allowed: Allowed | None = None, export: Path | None = None, say: Say = lambda _: None,
) -> Verdict:  # fmt: skip
    """The verdict on the certificates of a run, lowered by what the loader found; all files are copied once, then read."""
    loaded, tasks, tests = arrays.read_arrays(folder)
    allowed = allowed or Allowed()
    allowed = Allowed(allowed.count_repeats, allowed.draws or loaded["draws"], allowed.operations)
    folders = [_copied(one, scratch / f"{i}" / CERTIFICATE) for i, one in enumerate(certificates)]
    (blind := scratch / "blind").mkdir()
    try:
        last = read_certificate(folders[-1])
        learned, withheld = split(last, tasks) if loaded["whole"] else (tasks, tasks)
        given = {"tests": tests, "loaded_for": loaded["certificate"], "commitment": commitment, "allowed": allowed, "say": say}
        if last["options"].kind == "holdout":
            learned = learned if loaded["whole"] else {}
            verdict = verify_holdout(folders, withheld, learned, blind, model, **given)
        else:
            built = model_for(last, model, folders[-1] / "theta_0.safetensors")
            verdict = verify(folders, learned, built, **given)
        _lower(verdict, loaded)
        if export is not None:
            copy = _copied(export, folders[-1].parent, (EXPORT, WEIGHTS, *PROGRAMS.values()))
            samples = withheld if last["options"].kind == "holdout" else learned
            own = Blind(blind, model, last, allowed.operations, say)
            check_export(verdict, copy, last, samples, own, allowed.draws, export)
    except Unreadable:
        raise
    except Refusal as refusal:
        verdict = Verdict(invalid=[str(refusal)])
        _lower(verdict, loaded)
    return verdict


def _lower(verdict: Verdict, loaded: Content) -> None:
    for name in PARTS:
        getattr(verdict, name).extend(loaded["notes"][name])
    verdict.command = loaded["command"]


def _copied(folder: Path, to: Path, names: tuple[str, ...] = (TEXT_FILE, *FILES, *HOLDOUT_FILES)) -> Path:
    """A private copy of these files, so that nobody can exchange them between reading and deciding."""
    to.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name == TEXT_FILE or os.path.lexists(folder / name):
            if name.endswith(".safetensors") and (folder / name).stat().st_size > 2**26:  # is it as large as its header says?
                stored_shapes(folder / name, "")
            with open_regular(folder / name) as file, (to / name).open("xb") as copy:
                if os.fstat(file.fileno()).st_size > shutil.disk_usage(to).free:
                    raise Unreadable(f"{name} is larger than what is free for a copy: set TMPDIR to a larger disk.")
                shutil.copyfileobj(file, copy)
    return to


def split(certificate: Content, tasks: arrays.Samples) -> tuple[arrays.Samples, arrays.Samples]:
    """What was learned from, and what was withheld, by marks."""
    recipe = certificate["data"] or {}
    share, seed = recipe.get("holdout"), recipe.get("holdout_seed", certificate["options"].seed)
    if share is None:
        return tasks, {}
    require(type(share) is float and 0 < share < 1 and type(seed) is int, "No such share can be withheld.")
    masks = {t: exact.withheld_rows(len(y), t, share, seed) for t, (_, y, *_) in tasks.items()}
    learned, withheld = ({t: np.flatnonzero(mask == own) for t, mask in masks.items()} for own in (False, True))
    return arrays.take_rows(tasks, learned), arrays.take_rows(tasks, withheld)


def main(words: list[str] | None = None) -> int:
    """Decide; the exit code is the verdict."""
    parser = argparse.ArgumentParser(prog="python -P -m cop2l.kernel", description=__doc__)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("certificates", type=Path, nargs="+")
    parser.add_argument("--model", metavar="PACKAGE.MODULE:BUILD")
    parser.add_argument("--commitment", metavar="HASH")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=float, default=Allowed.operations)
    for name in ("--count-repeats", "--repeats-are-draws", "--json", "--say"):
        parser.add_argument(name, action="store_true")
    typed = parser.parse_args(words)
    allowed = Allowed(typed.count_repeats, typed.repeats_are_draws, typed.limit)
    say: Say = (lambda sentence: print(sentence, file=sys.stderr, flush=True)) if typed.say else (lambda _: None)
    try:
        with tempfile.TemporaryDirectory(prefix="cop2l-") as scratch:
            given = typed.model, typed.commitment, allowed, typed.export, say
            verdict = check(typed.arrays, typed.certificates, Path(scratch), *given)
    except (Refusal, UserError) as error:
        print(f"cop2l: {error}", file=sys.stderr)
        return 3
    except SystemExit:  # of a model: no verdict
        return 3
    print(json.dumps(verdict.as_dict(), indent=1) if typed.json else verdict, flush=True)
    return verdict.exit_code


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # nothing that fails may look like a verdict
        code = 0 if isinstance(error, SystemExit) and not error.code else 3  # 0: --help
        if not isinstance(error, SystemExit):
            print(f"cop2l: the check could not be made: {error!r:.300}", file=sys.stderr)
    sys.exit(code)
