"""Hostile run directories: honest runs whose files were edited, dropped, exchanged or planted, with all checksums made again."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torture_judge import Case
from torture_mutations import SHADOWS, at, branches, leaves, other

from cop2l.experiments import grid
from cop2l.experiments.run import run
from cop2l.files import (
    file_digest,
    read_json,
    read_lines,
    read_tensors,
    write_json,
    write_lines,
    write_tensors,
)
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
    "--repeated",
    "1",
    "--shared",
    "1000",
    "--limit",
    "1e11",
)
"""What the auditor of these runs knows; examples on a small grid repeat."""


def made(folder: Path) -> None:
    """The honest runs, each with a sibling of another seed."""
    for name, pairs in RUNS.items():
        for seed in (0, 1):
            chosen = grid.overrides([*SMALL, f"seed={seed}", *pairs])
            run(grid.single(grid.read("synthetic"), chosen), folder / name / str(seed))


# ---- a run directory as values


def edit_json(file: Path, draw: Draw, path: tuple[Any, ...] | None = None) -> str:
    """Change, remove or add something in a JSON file with a checksum."""
    content = read_json(file)
    where = draw.choice(list(leaves(content))) if path is None else path
    edit(content, where, draw)
    write_json(file, content)
    return f"{file.name} at {'.'.join(map(str, where))}"


def edit(content: Any, where: tuple[Any, ...], draw: Draw) -> None:
    how, place = draw.random(), at(content, where[:-1])
    if how < 0.75:
        place[where[-1]] = other(place[where[-1]], draw)
        while isinstance(place[where[-1]], float) and not abs(place[where[-1]]) < 1e308:
            place[where[-1]] = draw.random()
    elif how < 0.9:
        del place[where[-1]]
    else:
        inner = at(content, draw.choice([(), *branches(content)]))
        if isinstance(inner, dict):
            inner[draw.choice(SHADOWS)] = draw.choice([0.0001, "0.01 %", True])
        else:
            inner.append(draw.choice([0, 0.0001, {}]))


BOUNDS = (
    "bounds",
    "kind",
    "errors",
    "n",
    "picked",
    "missed",
    "holdout",
    "compression",
    "delta",
    "bound",
    "mean_bound",
)


def summary(folder: Path, _: Path, draw: Draw) -> str:
    return edit_json(folder / "summary.json", draw)


def summary_of_the_sibling(folder: Path, sibling: Path, _: Draw) -> str:
    shutil.copyfile(sibling / "summary.json", folder / "summary.json")
    return "summary.json of another run"


def configuration(folder: Path, _: Path, draw: Draw) -> str:
    return edit_json(folder / "config.json", draw)


def a_record(folder: Path, _: Path, draw: Draw) -> str:
    records = read_lines(folder / "records.jsonl")
    number = draw.randrange(len(records))
    paths = list(leaves(records[number]))
    spoken = [path for path in paths if {*map(str, path)} & {*BOUNDS}]
    where = draw.choice(spoken if draw.random() < 0.7 else paths)
    edit(records[number], where, draw)
    write_lines(folder / "records.jsonl", records)
    return f"records.jsonl at {'.'.join(map(str, (number, *where)))}"


def lines_of_records(folder: Path, sibling: Path, draw: Draw) -> str:
    records, theirs = read_lines(folder / "records.jsonl"), read_lines(sibling / "records.jsonl")
    how = draw.choice(["dropped", "reordered", "twice", "exchanged", "none", "more"])
    number = draw.randrange(len(records))
    changed = {
        "dropped": records[:number] + records[number + 1 :], "reordered": records[::-1], "twice": [*records, records[number]],
        "exchanged": [*records[:number], theirs[number], *records[number + 1 :]], "none": [],
        "more": [*records, {**deepcopy(records[-1]), "task": len(records) + 1}],
    }[how]  # fmt: skip
    write_lines(folder / "records.jsonl", changed)
    return f"lines of records.jsonl {how}"


def certificate_text(folder: Path, _: Path, draw: Draw) -> str:
    """An issued certificate, or the copy beside the saved learner, edited and signed again."""
    every = sorted(folder.rglob("certificate.json"))
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
    """The same smaller bound in every file that speaks of it."""
    factor = draw.choice([0.1, 0.5, 0.9, 0.999])
    for file in folder.rglob("certificate.json"):
        content = json.loads(file.read_text())
        for statement in content["statements"]:
            statement["value"] *= factor
        content["digest"] = content_digest(content)
        file.write_text(json.dumps(content))
    records = read_lines(folder / "records.jsonl")
    for record in records:
        for row in record["tasks"]:
            row["bounds"] = {kind: value * factor for kind, value in row["bounds"].items()}
    write_lines(folder / "records.jsonl", records)
    return f"all bounds times {factor}"


def a_folder_of_certificates(folder: Path, sibling: Path, draw: Draw) -> str:
    """Certificates deleted, renamed, planted or exchanged."""
    issued, theirs = sorted((folder / "certificates").iterdir()), sorted((sibling / "certificates").iterdir())
    one, name = (
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
    how = draw.choice(
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
    if how == "deleted":
        shutil.rmtree(one)
    elif how == "all deleted":
        shutil.rmtree(folder / "certificates")
    elif how == "renamed":
        one.rename(one.with_name(name))
    elif how in ("planted", "another's planted"):
        shutil.copytree(
            draw.choice(issued if how == "planted" else theirs), one.with_name(name), dirs_exist_ok=True
        )
    elif how == "of another run":
        shutil.rmtree(one)
        shutil.copytree(draw.choice(theirs), one)
    elif how == "emptied":
        shutil.rmtree(one)
        one.mkdir()
    else:
        one.rename(one.with_name("aside"))
        issued[0 if one != issued[0] else -1].rename(one) if len(issued) > 1 else None
        (one.with_name("aside")).rename(one.with_name("after-01")) if not one.with_name(
            "after-01"
        ).exists() else None
    return f"certificates/{one.name} {how} ({name})"


def newest_work_deleted(folder: Path, _: Path, draw: Draw) -> str:
    """A run cut back to an earlier time, as if it had never gone on: its later certificate was worse."""
    shutil.rmtree(folder / "certificates" / "after-02")
    keep = read_lines(folder / "records.jsonl")[:1]
    what = draw.sample(["records", "summary", "state"], draw.randint(0, 3))
    if "records" in what:
        write_lines(folder / "records.jsonl", keep)
    if "summary" in what:
        (folder / "summary.json").unlink()
    if "state" in what:
        shutil.rmtree(folder / "state")
    return f"the last certificate deleted, with {what}"


def the_state(folder: Path, sibling: Path, draw: Draw) -> str:
    """The saved learner: its parameters, its notes, or all of it."""
    (file,) = (folder / "state").glob("*.safetensors")
    tensors, note = read_tensors(file)
    how = draw.choice(["parameters", "note", "of another run", "deleted", "two of them"])
    if how == "parameters":
        name = draw.choice(
            sorted(key for key, value in tensors.items() if value.is_floating_point() and value.numel())
        )
        tensors[name] = tensors[name] + 1
        write_tensors(file, tensors, note)
        how = f"{name} + 1"
    elif how == "note":
        where = draw.choice(list(leaves(note)))
        edit(note, where, draw)
        write_tensors(file, tensors, note)
        how = f"note at {'.'.join(map(str, where))}"
    elif how == "of another run":
        shutil.copyfile(sibling / "state" / file.name, file)
    elif how == "deleted":
        file.unlink()
    else:
        shutil.copyfile(file, file.with_name("more.safetensors"))
    return f"state: {how}"


def stored_tensors(folder: Path, sibling: Path, draw: Draw) -> str:
    """The tensors of a certificate exchanged for those of another, and the text signed again."""
    file = draw.choice(sorted((folder / "certificates").rglob("*.safetensors")))
    theirs = draw.choice(sorted([*sibling.rglob(file.name), *folder.rglob(file.name)]))
    shutil.copyfile(theirs, file) if theirs != file else file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    text = file.with_name("certificate.json")
    content = json.loads(text.read_text())
    content["files"][file.name] = file_digest(file)
    name = file.stem
    if name in content:
        other_text = theirs.with_name("certificate.json")
        content[name] = (
            json.loads(other_text.read_text()).get(name, content[name])
            if other_text.exists()
            else content[name]
        )
    content["digest"] = content_digest(content)
    text.write_text(json.dumps(content))
    return f"{file.relative_to(folder)} from {theirs.parent.name}"


def what_nobody_speaks_of(folder: Path, _: Path, draw: Draw) -> str:
    """The environment, the trace or the lock: nothing is claimed of them."""
    name = draw.choice(["environment.json", "trace.jsonl", "lock"])
    if name == "environment.json":
        return edit_json(folder / name, draw)
    (folder / name).write_text("" if name == "lock" else '{"forged": 1}\n')
    return name


KINDS: tuple[Callable[[Path, Path, Draw], str], ...] = (
    summary, summary, summary_of_the_sibling, configuration, a_record, a_record, a_record, lines_of_records, certificate_text,
    certificate_text, smaller_bounds, a_folder_of_certificates, a_folder_of_certificates, newest_work_deleted, the_state,
    stored_tensors, what_nobody_speaks_of,
)  # fmt: skip


# ---- what an accepted run may differ in


WORD = (
    "accuracy", "classes", "test_error", "test_n", "test_groups", "matrix", "seconds", "learn_seconds", "peak_memory", "trace",
    "forgetting", "plasticity",
    "memory_used", "peak_cuda_allocated", "peak_cuda_reserved", "total_cuda_allocated", "n",
)  # fmt: skip


CONFIG = (
    "method",
    "scenario",
    "stream",
    "model",
    "seed",
    "delta",
    "tasks",
    "anytime",
    "holdout",
    "architecture",
    "data",
)
"""What a configuration says of the claim; the rest names the run, or options that its method has not."""


def stated(folder: Path) -> Any:
    """Everything that a run directory states, but for what a verdict lists as the issuer's word."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("certificate.json")):
        content = json.loads(file.read_text())
        content["options"] = Options(
            **content["options"]
        ).as_dict()  # an option that is absent has its default
        content["data"]["holdout_seed"] = content["data"].get("holdout_seed") or 0
        found[str(file.relative_to(folder))] = {
            key: value
            for key, value in content.items()
            if key not in ("made_by", "machine", "earlier", "digest", "files")
        }
    config = read_json(folder / "config.json")
    found["config"] = {key: config[key] for key in CONFIG}
    found["records"] = [spoken(record) for record in read_lines(folder / "records.jsonl")]
    found["summary"] = spoken(read_json(folder / "summary.json"))
    (learner,) = (folder / "state").glob("*.safetensors")
    with safe_open(learner, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(("theta/", "model."))]  # noqa: SIM118
        found["theta"] = {name: file.get_tensor(name).tolist() for name in names}
    return found


def spoken(value: Any) -> Any:
    """Without accuracies and times."""
    if isinstance(value, float):
        return round(value, 8)  # a bound may be written with other last digits
    if isinstance(value, dict):
        return {key: spoken(inner) for key, inner in value.items() if key not in WORD and key != "sha256"}
    return [spoken(inner) for inner in value] if isinstance(value, list) else value


def same_statements(folder: Path, honest: Path) -> bool:
    """Whether a run directory states what the honest one states."""
    try:
        return bool(stated(folder) == stated(honest))
    except (ValueError, KeyError, OSError, TypeError):
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
                what = kind(folder, honest / name / "1", draw)
                if content_of(folder) != content_of(honest / name / "0"):
                    break
            case.name += f" ({what})"
            case.harmless = same_statements(folder, honest / name / "0")
            return folder

        case.lay = lay
        yield case


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
