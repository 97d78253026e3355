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


def record(task: int, **changed: Any) -> dict[str, Any]:
    """Counts that can be, of a task with a hundred examples."""
    return {
        "task": task, "rows": 100, "head": [2 * task - 2, 2 * task - 1], "fingerprint": SHA, "n": 90, "prior": 10,
        "compression": 8, "evicted": 0, "evicted_last": 0, "picked": 8, "iterations": 1, "stopped": 3, "errors": 4,
        "missed": 4, "selected": 50, "compressed": 6,
    } | changed  # fmt: skip


def content(tasks: int = 2, kind: str = "preference", **options: Any) -> dict[str, Any]:
    """The text of a certificate, without its files and its digest."""
    holdout = kind == "holdout"
    records = [record(task) for task in range(1, tasks + 1)]
    if holdout:
        names = ("task", "rows", "head", "fingerprint", "errors")
        records = [{name: one[name] for name in names} for one in records]
    found = {
        "format": FORMAT, "version": VERSION, "made_by": "a test", "method": "cop2l",
        "options": {"kind": kind, "delta": 0.05, "seed": 3, "tasks": tasks} | options, "settings": None,
        "scenario": "class-incremental", "classes": 2 * tasks, "model": {"name": "mlp", "layers": [4, 4]},
        "data": {"lr": 0.1}, "machine": "this one", "earlier": [], "threads": 1, "not_valid": [],
        "assumptions": list(ASSUMPTIONS), "commitment": None, "records": records,
        "statements": [
            {"family": "tasks", "task": task, "subject": None, "kind": kind, "value": 0.9} for task in range(1, tasks + 1)
        ],
    }  # fmt: skip
    return found if holdout else found | dict.fromkeys(("theta_0", "theta", "sets"), SHA)


def write(
    folder: Path, given: dict[str, Any], *, files: dict[str, str] | None = None, text: str | None = None
) -> Path:
    """A folder with this content, its tensors and its digest. `text` stands in the place of the text of the content."""
    folder.mkdir(exist_ok=True)
    found = copy.deepcopy(given)
    if files is None:
        files = {}
        for name in HOLDOUT_FILES if "theta" not in found else FILES:
            save_file({"weight": torch.arange(6.0)}, folder / name)
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    found.setdefault("files", files)
    if text is None:
        try:
            found.setdefault("digest", content_digest(found))
        except ValueError:  # a number that JSON does not have
            found["digest"] = SHA
        text = json.dumps(found)
    (folder / TEXT_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
    return folder
