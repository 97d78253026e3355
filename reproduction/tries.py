"""The tries of the search for settings: what a stage's file says, run by run. `benchmarks/search.py` makes the runs."""

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
"""A run: stage, stream, seed and options; once it was made, also what came of it."""


class Try(NamedTuple):
    """A setting: what replaces the paper's options, and what multiplies them."""

    options: dict[str, Any]
    times: dict[str, float]

    def __str__(self) -> str:
        if "paper" in self.options:
            return "paper"
        replaced = [f"{key}={value}" for key, value in self.options.items()]
        return ", ".join(replaced + [f"{key} x {value:g}" for key, value in self.times.items()]) or "ours"


def read(path: Path) -> dict[str, Any]:
    """A file of declarations, a stage or the decision."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def tries(stage: dict[str, Any]) -> Iterator[Try]:
    """Every try of a stage; where a value is a list, one for each of them."""
    for given in stage["tries"]:
        whole = {("", key): value for key, value in given.items() if key != "times"}
        whole |= {("times", key): value for key, value in given.get("times", {}).items()}
        for values in itertools.product(*(v if isinstance(v, list) else [v] for v in whole.values())):
            chosen = dict(zip(whole, values, strict=True))
            yield Try(*({key: v for (kind, key), v in chosen.items() if kind == of} for of in ("", "times")))


def jobs(tried: Try, stage: dict[str, Any], declared: dict[str, Any]) -> Iterator[Job]:
    """The runs of a try, on the stage's streams in the order of their declaration."""
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
    """What a try's options replace: the stage's own, or the paper's for the stream; nothing for another method."""
    if "common" in stage:
        return {} if "method" in tried.options else stage["common"]
    return paper | (PAPERS if "paper" in tried.options else OURS)


def identity(job: Job) -> str:
    """What makes two runs the same; numbers to 12 digits. Every stage makes its own: its machine may be another."""
    options = {k: float(f"{v:.12g}") if isinstance(v, float) else v for k, v in job["options"].items()}
    return json.dumps([job["stage"], job["stream"], job["seed"], options], sort_keys=True)


def recorded(path: Path) -> dict[str, Job]:
    """The runs that were made, by identity."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {identity(made): made for made in map(json.loads, lines)}
