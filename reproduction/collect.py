"""Small files of collected runs, without weights: written from run directories, and read as runs."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from statistics import fmean
from typing import Any

from cop2l.experiments.records import Count, Record, Summary, decode_record
from cop2l.files import read_json, read_lines, write_text
from cop2l.learner.presets import PRESETS
from cop2l.report.runs import Run, RunSet, find_runs

ENVIRONMENT = ("cop2l", "python", "torch", "cuda", "cpu", "cores", "threads", "device")
OVER_TASKS: dict[str, Callable[[list[float]], float]] = {
    "peak_memory": max,
    "peak_cuda_allocated": max,
    "peak_cuda_reserved": max,
    "total_cuda_allocated": fmean,
    "memory_used": max,
}
"""Fields of the records that are aggregated over tasks; the first record of a line has the result."""
SHORT = {"class-incremental": "ci", "task-incremental": "ti", "domain-incremental": "di"}
MOST_CLASSES = 10
"""Streams with more classes keep no accuracy per class, to keep the files small."""
DIGITS = 6


@dataclass(kw_only=True)
class CollectedRecord(Record):
    """A line of records.jsonl with what older runs recorded as well."""

    numbers_stored: Count | None = None
    """The count of numbers kept beside the examples; the first record of a line has it."""


def read_runs(paths: Sequence[Path]) -> RunSet:
    """The runs of files of collected runs, of folders with such files, and of run directories."""
    files = [file for path in paths for file in collected_files(path)]
    folders = [path for path in paths if not collected_files(path)]
    run_set = find_runs(folders) if folders else RunSet(())
    lines = [(line, file) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    runs = [run for line in lines if (run := collected_run(*line))]
    return replace(run_set, runs=(*run_set.runs, *runs))


def collected_files(path: Path) -> list[Path]:
    """The files of collected runs at a path; `records.jsonl` of a run directory is none."""
    return [path] if path.is_file() else sorted(path.glob("*-*.jsonl"))


def collected_run(line: str, file: Path) -> Run | None:
    """The run of a line; None for a preset that is no longer part of cop2l."""
    content = json.loads(line, object_hook=_without_prior)
    if content.get("config", {}).get("options", {}).get("preset", "paper") not in PRESETS:
        return None
    summary = decode_record(Summary, content["summary"], file)
    records: list[Record] = [
        decode_record(CollectedRecord, {"task": s, "accuracy": row, "tasks": [], **record}, file)
        for s, (row, record) in enumerate(zip(summary.matrix, content["records"], strict=True), 1)
    ]
    tables = {name: content[name] for name in ("config", "environment")}
    return Run(folder=Path(content["folder"]), records=records, **tables, **vars(summary))


def _without_prior(values: dict[str, Any]) -> dict[str, Any]:
    """An object of a line without `prior`, which older runs of CoP2L have, and which is 0 in those that are read."""
    return {key: value for key, value in values.items() if key != "prior"}


def collect(runs: Iterable[Run], folder: Path) -> list[Path]:
    """Add runs to the files of a folder, two per stream; a run replaces an older line with its hash."""
    lines_by_file: dict[Path, dict[str, str]] = {}
    for run in runs:
        line = condensed(run)
        key = str(run.config.get("hash", run.folder))
        who = "cop2l" if run.method == "cop2l" else "others"
        lines_by_file.setdefault(folder / f"{file_name(run)}-{who}.jsonl", {})[key] = json.dumps(
            line, sort_keys=True, separators=(",", ":")
        )
    for path, lines in lines_by_file.items():
        older = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        merged = {str(json.loads(line)["config"].get("hash")): line for line in older} | lines
        write_text(path, "".join(f"{merged[key]}\n" for key in sorted(merged)))
    return sorted(lines_by_file)


def file_name(run: Run) -> str:
    """The stream, its split, and the model if the stream has no features."""
    parts = [run.stream.replace("@", "-").replace(":", "-")]
    parts += ["disjoint"] * (run.config.get("images") == "disjoint")
    parts += [str(len(run.matrix)), SHORT.get(run.scenario, run.scenario)]
    return "-".join(parts if "@" in run.stream else [*parts, run.model])


def condensed(run: Run) -> dict[str, Any]:
    """The line of a run: all that tables and figures need."""
    content = {name: read_json(run.folder / f"{name}.json") for name in ("summary", "config")}
    records = read_lines(run.folder / "records.jsonl")
    classes = all(len(record.get("classes") or {}) <= MOST_CLASSES for record in records)
    return {
        "folder": "/".join(run.folder.parts[-2:]),
        "config": content["config"] | {"folder": None},
        "environment": {key: run.environment.get(key) for key in ENVIRONMENT} | {"command": command(run)},
        "summary": rounded(without_empty_fields(content["summary"])),
        "records": rounded(condense_records(records, classes=classes)),
    }


def condense_records(records: Sequence[Mapping[str, Any]], *, classes: bool) -> list[dict[str, Any]]:
    """The records with the fields of `OVER_TASKS`, and with the accuracy per class if `classes`."""
    fields = {key: [r[key] for r in records if r.get(key) is not None] for key in OVER_TASKS}
    condensed_records: list[dict[str, Any]] = [
        {"classes": r.get("classes")} if classes else {} for r in records
    ]
    condensed_records[0] |= {key: OVER_TASKS[key](values) for key, values in fields.items() if values}
    return condensed_records


def without_empty_fields(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without the fields of tasks that are None."""
    rows = [{key: value for key, value in row.items() if value is not None} for row in summary["tasks"]]
    return {**summary, "tasks": rows}


def rounded(value: Any, *, upwards: bool = False) -> Any:
    """Numbers rounded to six digits, bounds upwards.

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
    """The command that makes a run again, without paths of its machine."""
    arguments = shlex.split(str(run.environment.get("command") or ""))
    if "run" in arguments:
        arguments = arguments[arguments.index("run") :]
        if "--out" in arguments:
            at = arguments.index("--out")
            arguments = arguments[:at] + arguments[at + 2 :]
        return shlex.join(
            ["cop2l", *(argument for argument in arguments if not argument.startswith("folder="))]
        )
    settings = {key: run.settings.get(key) for key in ("scenario", "method", "preset", "memory", "seed")}
    pairs = [f"{key}={value}" for key, value in settings.items() if value is not None]
    return shlex.join(["cop2l", "run", str(run.config.get("name") or run.stream), *pairs])
