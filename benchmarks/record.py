"""Results of a benchmark as JSON, with where they were measured, and what that machine can do at best."""

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l._version import __version__
from cop2l.kernel.exact import processor

SIDE, LARGE, ROUNDS = 1024, 2**24, 20


def record(
    file: str | None,
    name: str,
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    rates: dict[str, float] | None = None,
) -> None:
    """Write the rows of a benchmark's table to a file, if one is named; `rates` are a device's, else they are one thread's."""
    if file is None:
        return
    where = {
        "processor": processor(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {
        "cop2l": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    settings = {key: value for key, value in settings.items() if key != "json"}
    content = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py {' '.join(_without_file(sys.argv[1:]))}".strip(),
        "when": time.strftime("%Y-%m-%d"),
        "settings": settings,
        "machine": where,
        "versions": versions,
        "ceilings": rates or ceilings(),
        "rows": [_rounded(row) for row in rows],
    }
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps(content, indent=1) + "\n")


def ceilings() -> dict[str, float]:
    """The best rates of this process on one thread: a large product of float32, and a copy in memory."""
    a, long, there = torch.ones(SIDE, SIDE), torch.ones(LARGE), torch.ones(LARGE)
    product, copy = quickest(lambda: a @ a, ROUNDS), quickest(lambda: there.copy_(long), ROUNDS)
    return {"Gflop/s": round(2e-9 * SIDE**3 / product, 1), "GB/s": round(2e-9 * long.nbytes / copy, 1)}


def quickest(what: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the quietest of some rounds."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        what()
        found.append(time.process_time() - begin)
    return min(found)


def _without_file(words: list[str]) -> list[str]:
    """The command without the file that it writes."""
    at = words.index("--json") if "--json" in words else len(words)
    return words[:at] + words[at + 2 :]


def _rounded(value: Any) -> Any:
    """Four digits: more are noise."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
