"""The runs of the search for settings, from the files of its stages. `benchmarks/search.py` makes the runs."""

import itertools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SETTINGS = Path(__file__).parent / "settings"
OURS: dict[str, Any] = {
    "buffer": "threshold", "stop": "preference", "kind": "preference", "grid": True, "max_iterations": 1024,
}  # fmt: skip
PAPERS: dict[str, Any] = {
    "buffer": "uniform", "stop": "kl", "kind": "kl", "grid": False, "max_iterations": None,
}  # fmt: skip
Job = dict[str, Any]
"""A run: stage, stream, seed and options; a record also has its numbers."""


class Try(NamedTuple):
    """A setting: options that replace the paper's, and factors on them."""

    options: dict[str, Any]
    times: dict[str, float]

    def __str__(self) -> str:
        if "paper" in self.options:
            return "paper"
        replaced = [f"{key}={value}" for key, value in self.options.items()]
        return ", ".join(replaced + [f"{key} x {value:g}" for key, value in self.times.items()]) or "ours"


def read(path: Path) -> dict[str, Any]:
    """Read a file of declarations, of a stage or of the decision."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def tries(stage: dict[str, Any]) -> Iterator[Try]:
    """Every try of a stage; a list of values makes a try for each of them."""
    for entry in stage["tries"]:
        options = {("", key): value for key, value in entry.items() if key != "times"}
        options |= {("times", key): value for key, value in entry.get("times", {}).items()}
        for values in itertools.product(*(v if isinstance(v, list) else [v] for v in options.values())):
            chosen = dict(zip(options, values, strict=True))
            yield Try(*({key: v for (kind, key), v in chosen.items() if kind == of} for of in ("", "times")))


def jobs(tried: Try, stage: dict[str, Any], declared: dict[str, Any]) -> Iterator[Job]:
    """The runs of a try on the streams of its stage, in the order of their declaration."""
    for name in (name for name in declared["streams"] if name in stage["streams"]):
        stream = declared["streams"][name]
        paper = stream["paper"]
        options = {**_common(tried, stage, paper), **{k: v for k, v in tried.options.items() if k != "paper"}}
        for key, factor in tried.times.items():
            options[key] = (
                max(round(paper[key] * factor), 1) if type(paper[key]) is int else paper[key] * factor
            )
        options |= {"memory": stream["memory"], "tasks": stream["tasks"], "delta": declared["delta"]}
        for seed in stage["seeds"]:
            yield {"stage": stage["stage"], "stream": name, "seed": seed, "options": options}


def _common(tried: Try, stage: dict[str, Any], paper: dict[str, Any]) -> dict[str, Any]:
    """The options that a try changes: the stage's, or the paper's for the stream; none for another method."""
    if "common" in stage:
        return {} if "method" in tried.options else stage["common"]
    return paper | (PAPERS if "paper" in tried.options else OURS)


def identity(job: Job) -> str:
    """The identity of a run within its stage; numbers count to 12 digits."""
    options = {k: float(f"{v:.12g}") if isinstance(v, float) else v for k, v in job["options"].items()}
    return json.dumps([job["stage"], job["stream"], job["seed"], options], sort_keys=True)


def recorded(path: Path) -> dict[str, Job]:
    """The records of the runs, by identity."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {identity(record): record for record in map(json.loads, lines)}
