"""Run directories condensed into small files that a repository can hold: no weights."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from statistics import fmean
from typing import Any

from cop2l.files import read_json, read_lines, write_text
from cop2l.report.runs import Run

ENVIRONMENT = ("cop2l", "python", "torch", "cuda", "cpu", "cores", "threads", "device")
OVER_TASKS: dict[str, Callable[[list[float]], float]] = {
    "peak_memory": max,
    "peak_cuda_allocated": max,
    "peak_cuda_reserved": max,
    "total_cuda_allocated": fmean,
    "memory_used": max,
    "numbers_stored": max,
}
"""What is kept of the records beside the accuracy per class: one number for all tasks, in the first of them."""
SHORT = {"class-incremental": "ci", "task-incremental": "ti", "domain-incremental": "di"}
MOST_CLASSES = 10
"""Streams with more classes keep no accuracy per class: it would be most of the file."""
DIGITS = 6


def collect(runs: Iterable[Run], folder: Path) -> list[Path]:
    """Add runs to the files of a folder, two files per stream; a run that is there already is replaced."""
    fresh: dict[Path, dict[str, str]] = {}
    for run in runs:
        line = condensed(run)
        key = str(run.config.get("hash", run.folder))
        who = "cop2l" if run.method == "cop2l" else "others"
        fresh.setdefault(folder / f"{file_name(run)}-{who}.jsonl", {})[key] = json.dumps(
            line, sort_keys=True, separators=(",", ":")
        )
    for path, lines in fresh.items():
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = {str(json.loads(line)["config"].get("hash")): line for line in old} | lines
        write_text(path, "".join(f"{kept[key]}\n" for key in sorted(kept)))
    return sorted(fresh)


def file_name(run: Run) -> str:
    """The stream, how it is cut, and the model where the stream's name does not tell it."""
    words = [run.stream.replace("@", "-").replace(":", "-")]
    words += ["disjoint"] * (run.config.get("images") == "disjoint")
    words += [str(len(run.matrix)), SHORT.get(run.scenario, run.scenario)]
    return "-".join(words if "@" in run.stream else [*words, run.model])


def condensed(run: Run) -> dict[str, Any]:
    """One line of a file: what the tables and figures need of a run directory."""
    read = {name: read_json(run.folder / f"{name}.json") for name in ("summary", "config")}
    records = read_lines(run.folder / "records.jsonl")
    classes = all(len(record.get("classes") or {}) <= MOST_CLASSES for record in records)
    return {
        "folder": "/".join(run.folder.parts[-2:]),
        "config": read["config"] | {"folder": None},
        "environment": {key: run.environment.get(key) for key in ENVIRONMENT} | {"command": command(run)},
        "summary": rounded(there(read["summary"])),
        "records": rounded(brief(records, classes=classes)),
    }


def brief(records: Sequence[Mapping[str, Any]], *, classes: bool) -> list[dict[str, Any]]:
    """The records with what `OVER_TASKS` makes of them, and the accuracy per class if it is wanted."""
    found = {key: [r[key] for r in records if r.get(key) is not None] for key in OVER_TASKS}
    kept: list[dict[str, Any]] = [{"classes": r.get("classes")} if classes else {} for r in records]
    kept[0] |= {key: OVER_TASKS[key](values) for key, values in found.items() if values}
    return kept


def there(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary whose rows of tasks name only what they have."""
    rows = [{key: value for key, value in row.items() if value is not None} for row in summary["tasks"]]
    return {**summary, "tasks": rows}


def rounded(value: Any, *, upwards: bool = False) -> Any:
    """Numbers with six digits, bounds never below themselves.

    >>> rounded({"accuracy": 0.12345649, "bounds": {"kl": 0.1234561}, "claims": [{"value": 0.1234561}]})
    {'accuracy': 0.123456, 'bounds': {'kl': 0.123457}, 'claims': [{'value': 0.123457}]}
    """
    if isinstance(value, dict):
        return {key: rounded(v, upwards=upwards or key in ("bounds", "claims")) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v, upwards=upwards) for v in value]
    if isinstance(value, float):
        if upwards:
            return float(Decimal(value).quantize(Decimal(1).scaleb(-DIGITS), ROUND_CEILING))
        return round(value, DIGITS)
    return value


def command(run: Run) -> str:
    """The command that makes a run again, without the places of the machine that it was run on."""
    words = shlex.split(str(run.environment.get("command") or ""))
    if "run" in words:
        words = words[words.index("run") :]
        if "--out" in words:
            at = words.index("--out")
            words = words[:at] + words[at + 2 :]
        return shlex.join(["cop2l", *(word for word in words if not word.startswith("folder="))])
    given = {key: run.settings.get(key) for key in ("scenario", "method", "preset", "memory", "seed")}
    pairs = [f"{key}={value}" for key, value in given.items() if value is not None]
    return shlex.join(["cop2l", "run", str(run.config.get("name") or run.stream), *pairs])
