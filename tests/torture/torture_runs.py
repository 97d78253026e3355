"""Hostile run directories: certificates of honest runs edited, dropped, exchanged or planted, with all checksums made again."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torture_judge import Case
from torture_mutations import SHADOWS, at, branches, leaves, other

from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.files import file_digest
from cop2l.kernel.form import content_digest
from cop2l.kernel.options import Options

Draw = random.Random
SMALL = (
    "tasks=2",
    "data.n=60",
    "model=linear",
    "memory=60",
    "epochs=2",
    "methods.cop2l.k=8",
    "methods.cop2l.max_iterations=4",
)
RUNS = {
    "anytime": ("anytime=true",),
    "fixed": (),
    "hold-out": ("method=replay", "holdout=0.4", "epochs=1"),
    "hold-out, anytime": ("method=finetuning", "holdout=0.4", "epochs=1", "anytime=true"),
}
AUDITOR = (
    "--data",
    "synthetic",
    "--tasks",
    "2",
    "--option",
    "n=60",
    "--limit",
    "1e11",
)
"""What the auditor of these runs knows."""


def made(folder: Path) -> None:
    """The honest runs, each with a sibling of another seed."""
    for name, pairs in RUNS.items():
        for seed in (0, 1):
            chosen = grid.overrides([*SMALL, f"seed={seed}", *pairs])
            run(grid.single_run(grid.read_configuration("synthetic"), chosen), folder / name / str(seed))


# ---- a run directory as values


def edit(content: Any, where: tuple[Any, ...], draw: Draw) -> None:
    chance, place = draw.random(), at(content, where[:-1])
    if chance < 0.75:
        place[where[-1]] = other(place[where[-1]], draw)
        while isinstance(place[where[-1]], float) and not abs(place[where[-1]]) < 1e308:
            place[where[-1]] = draw.random()
    elif chance < 0.9:
        del place[where[-1]]
    else:
        inner = at(content, draw.choice([(), *branches(content)]))
        if isinstance(inner, dict):
            inner[draw.choice(SHADOWS)] = draw.choice([0.0001, "0.01 %", True])
        else:
            inner.append(draw.choice([0, 0.0001, {}]))


def certificate_text(folder: Path, _: Path, draw: Draw) -> str:
    """An issued certificate, edited and signed again."""
    every = sorted((folder / "certificates").rglob("certificate.json"))
    file = draw.choice(every)
    content = json.loads(file.read_text())
    values = [
        path
        for path in leaves(content)
        if path[0] in ("statements", "records", "options", "not_valid", "data", "settings", "model")
    ]
    where = draw.choice(values)
    edit(content, where, draw)
    content["digest"] = content_digest(content)
    file.write_text(json.dumps(content))
    return f"{file.relative_to(folder)} at {'.'.join(map(str, where))}"


def smaller_bounds(folder: Path, _: Path, draw: Draw) -> str:
    """The same smaller bounds in every certificate."""
    factor = draw.choice([0.1, 0.5, 0.9, 0.999])
    for file in folder.rglob("certificate.json"):
        content = json.loads(file.read_text())
        for statement in content["statements"]:
            statement["value"] *= factor
        content["digest"] = content_digest(content)
        file.write_text(json.dumps(content))
    return f"all bounds times {factor}"


def a_folder_of_certificates(folder: Path, sibling: Path, draw: Draw) -> str:
    """Certificates deleted, renamed, planted or exchanged."""
    issued, sibling_folders = (
        sorted((folder / "certificates").iterdir()),
        sorted((sibling / "certificates").iterdir()),
    )
    target, name = (
        draw.choice(issued),
        draw.choice(
            [
                "after-zz",
                "after-99",
                "after-100",
                "after-001",
                "after-03",
                "after-0",
                "after-2",
                "x",
                ".after-02.old",
            ]
        ),
    )
    edit = draw.choice(
        [
            "deleted",
            "all deleted",
            "renamed",
            "planted",
            "of another run",
            "another's planted",
            "exchanged",
            "emptied",
        ]
    )
    if edit == "deleted":
        shutil.rmtree(target)
    elif edit == "all deleted":
        shutil.rmtree(folder / "certificates")
    elif edit == "renamed":
        target.rename(target.with_name(name))
    elif edit in ("planted", "another's planted"):
        shutil.copytree(
            draw.choice(issued if edit == "planted" else sibling_folders),
            target.with_name(name),
            dirs_exist_ok=True,
        )
    elif edit == "of another run":
        shutil.rmtree(target)
        shutil.copytree(draw.choice(sibling_folders), target)
    elif edit == "emptied":
        shutil.rmtree(target)
        target.mkdir()
    else:
        target.rename(target.with_name("aside"))
        issued[0 if target != issued[0] else -1].rename(target) if len(issued) > 1 else None
        (target.with_name("aside")).rename(target.with_name("after-01")) if not target.with_name(
            "after-01"
        ).exists() else None
    return f"certificates/{target.name} {edit} ({name})"


def stored_tensors(folder: Path, sibling: Path, draw: Draw) -> str:
    """The tensors of a certificate exchanged for those of another, and the text signed again."""
    file = draw.choice(sorted((folder / "certificates").rglob("*.safetensors")))
    source = draw.choice(sorted([*sibling.rglob(file.name), *folder.rglob(file.name)]))
    shutil.copyfile(source, file) if source != file else file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    text = file.with_name("certificate.json")
    content = json.loads(text.read_text())
    content["files"][file.name] = file_digest(file)
    name = file.stem
    if name in content:
        other_text = source.with_name("certificate.json")
        content[name] = (
            json.loads(other_text.read_text()).get(name, content[name])
            if other_text.exists()
            else content[name]
        )
    content["digest"] = content_digest(content)
    text.write_text(json.dumps(content))
    return f"{file.relative_to(folder)} from {source.parent.name}"


KINDS: tuple[Callable[[Path, Path, Draw], str], ...] = (
    certificate_text, certificate_text, smaller_bounds, a_folder_of_certificates, a_folder_of_certificates, stored_tensors,
)  # fmt: skip


# ---- what an accepted run may differ in


def claimed(file: Path) -> Any:
    """Everything that a certificate states, but for what a verdict lists as the issuer's word."""
    content = json.loads(file.read_text())
    content["options"] = Options(**content["options"]).as_dict()  # an option that is absent has its default
    for statement in content["statements"]:
        statement["value"] = round(statement["value"], 8)  # a bound may be written with other last digits
    unsaid = ["made_by", "machine", "earlier", "digest"]
    unsaid += ["files"] * ("theta" in content)  # a hold-out names its predictor by the hash of its file alone
    return {key: value for key, value in content.items() if key not in unsaid}


def same_statements(folder: Path, honest: Path) -> bool:
    """Whether every certificate of a run states what one of this honest run states."""
    files, true = (sorted((one / "certificates").glob("*/certificate.json")) for one in (folder, honest))
    try:
        known = [claimed(file) for file in true]
        return bool(files) and all(claimed(file) in known for file in files)
    except (ValueError, KeyError, OSError, TypeError, AttributeError):
        return False


def hostile_runs(honest: Path, count: int, seed: int) -> Iterator[Case]:
    """Forged run directories, one after the other."""
    for number in range(count):
        draw = Draw(f"{seed} {number}")
        name, kind = list(RUNS)[number % len(RUNS)], draw.choice(KINDS)
        label = kind.__name__.replace("_", " ")
        case = Case(label, f"run {number} of seed {seed}: {name}, {label}", lambda place: place, AUDITOR)

        def lay(
            place: Path, case: Case = case, kind: Any = kind, name: str = name, draw: Draw = draw
        ) -> Path:
            folder = place / "run"
            while True:  # until something was changed
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(honest / name / "0", folder)
                description = kind(folder, honest / name / "1", draw)
                if content_of(folder) != content_of(honest / name / "0"):
                    break
            case.name += f" ({description})"
            case.harmless = any(
                same_statements(folder, honest / name / one) for one in "01"
            )  # never a mixture
            return folder

        case.lay = lay
        yield case


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
