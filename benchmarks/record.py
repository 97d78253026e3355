"""Results of a benchmark as JSON, with the machine, the versions and the best rates of that machine."""

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
    """Write the rows of a benchmark to a file, if one is named; without `rates` (of a GPU) those of one thread are measured."""
    if file is None:
        return
    machine = {
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
        "machine": machine,
        "versions": versions,
        "ceilings": rates or ceilings(),
        "rows": [_rounded(row) for row in rows],
    }
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(json.dumps(content, indent=1) + "\n")


def ceilings() -> dict[str, float]:
    """The best rates of one thread: a large product of float32, and a copy in memory."""
    a, source, target = torch.ones(SIDE, SIDE), torch.ones(LARGE), torch.ones(LARGE)
    product, copy = fewest_seconds(lambda: a @ a), fewest_seconds(lambda: target.copy_(source))
    return {"Gflop/s": round(2e-9 * SIDE**3 / product, 1), "GB/s": round(2e-9 * source.nbytes / copy, 1)}


def fewest_seconds(function: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of the quickest call."""
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def _without_file(arguments: list[str]) -> list[str]:
    """The arguments of the command line without --json FILE."""
    at = arguments.index("--json") if "--json" in arguments else len(arguments)
    return arguments[:at] + arguments[at + 2 :]


def _rounded(value: Any) -> Any:
    """Numbers rounded to four digits."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
