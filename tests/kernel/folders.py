"""Well-formed certificates made by hand, so that tests can spoil them one way at a time."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from cop2l.kernel.form import ASSUMPTIONS, FILES, FORMAT, HOLDOUT_FILES, TEXT_FILE, VERSION, content_digest

SHA = "0123456789abcdef" * 4


NONE_PICKED = {"compression": 0, "picked": 0, "iterations": 0, "stopped": 0, "compressed": 2}
ALL = {"claim": ["tasks", "average", "forgetting", "classes", "groups"], "groups": ["a", "b"]}
"""Options that claim everything that can be claimed."""


def record(task: int, **changed: Any) -> dict[str, Any]:
    """Counts that can be, of a task with ninety examples."""
    return {
        "task": task, "rows": 90, "head": [2 * task - 2, 2 * task - 1], "fingerprint": SHA, "n": 90,
        "compression": 8, "evicted": 0, "picked": 8, "iterations": 1, "stopped": 3, "errors": 4,
        "errors_not_picked": 4, "selected": 50, "compressed": 6, "parts": [],
    } | changed  # fmt: skip


def parts(record: dict[str, Any], lost: bool) -> list[dict[str, Any]]:
    """The parts of a record whose counts are even: two classes and two groups of half its size, and what was lost and gained."""
    counts = {
        name: value
        for name, value in record.items()
        if name not in ("task", "rows", "head", "fingerprint", "parts")
    }
    half = {
        name: value if name in ("iterations", "stopped") else value // 2 for name, value in counts.items()
    }
    found = [{"family": "classes", "subject": label} | half for label in record["head"]]
    found += [{"family": "groups", "subject": name} | half for name in ALL["groups"]]
    return found + [{"family": "forgetting", "subject": name} | counts for name in ("lost", "gained") if lost]  # fmt: skip


def content(tasks: int = 2, kind: str = "preference", **options: Any) -> dict[str, Any]:
    """The text of a certificate, without its files and its digest."""
    holdout = kind == "holdout"
    records = [record(task, **(NONE_PICKED if holdout else {})) for task in range(1, tasks + 1)]
    fields = {
        "format": FORMAT, "version": VERSION, "made_by": "a test", "method": "replay" if holdout else "cop2l",
        "options": {"kind": kind, "delta": 0.05, "seed": 3, "tasks": tasks} | options, "settings": None,
        "scenario": "class-incremental", "classes": 2 * tasks, "model": {"name": "mlp", "layers": [4, 4]},
        "data": {"lr": 0.1}, "machine": "this one", "earlier": [], "threads": 1, "not_valid": [],
        "assumptions": list(ASSUMPTIONS), "commitment": None, "records": records,
        "statements": [statement("tasks", task, None, kind) for task in range(1, tasks + 1)],
    }  # fmt: skip
    return fields if holdout else fields | dict.fromkeys(("theta_0", "theta", "sets"), SHA)


def statement(family: str, task: int | None, subject: Any, kind: str) -> dict[str, Any]:
    return {"family": family, "task": task, "subject": subject, "kind": kind, "value": 0.9}


def everything(kind: str = "preference", **options: Any) -> dict[str, Any]:
    """The text of a certificate of two tasks that claims all that can be claimed."""
    certificate = content(2, kind, **ALL, **options)
    for one in certificate["records"]:
        one["parts"] = parts(one, lost=one["task"] == 1)
    certificate["statements"] += [
        statement("average", None, None, kind),
        statement("forgetting", 1, "lost", kind),
        *([statement("forgetting", 1, "net", kind)] if kind == "holdout" else []),
        statement("forgetting", None, None, kind),
        *(statement("classes", 1 + label // 2, label, kind) for label in range(4)),
        *(statement("groups", task, name, kind) for task in (1, 2) for name in ALL["groups"]),
    ]
    return certificate


def write(
    folder: Path, certificate: dict[str, Any], *, files: dict[str, str] | None = None, text: str | None = None
) -> Path:
    """A folder with this content, its tensors and its digest. `text` stands in the place of the text of the content."""
    folder.mkdir(exist_ok=True)
    written = copy.deepcopy(certificate)
    if files is None:
        files = {}
        for name in HOLDOUT_FILES if "theta" not in written else FILES:
            save_file({"weight": torch.arange(6.0)}, folder / name)
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    written.setdefault("files", files)
    if text is None:
        try:
            written.setdefault("digest", content_digest(written))
        except ValueError:  # a number that JSON does not have
            written["digest"] = SHA
        text = json.dumps(written)
    (folder / TEXT_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
    return folder
