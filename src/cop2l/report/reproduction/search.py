"""The search for the settings of `certified`, from the lines that it wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cop2l.report.groups import Spread, spread
from cop2l.report.reproduction.markdown import paragraphs, rate, table

BOUNDS = ("combined", "preference", "holdout", "kl-tight", "kl")
SHOWN = 6
"""So many settings of each stream, the ones with the least claim first."""


def read(path: Path | None) -> list[dict[str, Any]]:
    """The lines of a search that ended well; none if there is no file."""
    if path is None or not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if "error" not in line]


def settings(lines: Sequence[dict[str, Any]]) -> int:
    """How many different settings were tried."""
    return len({_options(line) for line in lines})


def section(lines: Sequence[dict[str, Any]]) -> str:
    """What was tried and what came out, on the validation part."""
    if not lines:
        return "No search was recorded."
    by_stream: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        own = by_stream.setdefault((line["name"], line["model"]), {})
        own.setdefault(_options(line), []).append(line)
    intro = (
        f"{settings(lines)} settings were tried, in {len(lines)} runs, on {len(by_stream)} streams. They were chosen"
        " on a validation part: a tenth of each training task, which was not learned; the test part was not read."
        f" For each stream, the {SHOWN} settings with the smallest claimed bound (mean over tasks; in parentheses"
        " the number of seeds)."
    )
    tables = []
    for (name, model), tried in sorted(by_stream.items()):
        ordered = sorted(tried.items(), key=lambda item: _claimed(item[1]))
        rows = [
            (f"`{options}`", _mean(own, "acc"), _mean(own, "forg"), *(_mean(own, kind) for kind in BOUNDS))
            for options, own in ordered[:SHOWN]
        ]
        header = ("options", "accuracy", "forgetting", *BOUNDS)
        tables.append(f"**{name}, {model}** ({len(tried)} settings)\n\n{table(header, rows)}")
    return paragraphs(intro, *tables)


def _options(line: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(line["opts"].items())) or "defaults"


def _claimed(lines: Sequence[dict[str, Any]]) -> float:
    value = _spread(lines, str(lines[0]["opts"].get("claim", "preference")))
    value = value or _spread(lines, "preference") or _spread(lines, "kl")
    return value.mean if value else 1.0


def _spread(lines: Sequence[dict[str, Any]], key: str) -> Spread | None:
    values = [line[key] for line in lines if line.get(key) is not None]
    return spread(values) if len(values) == len(lines) else None


def _mean(lines: Sequence[dict[str, Any]], key: str) -> str:
    return rate(_spread(lines, key), upwards=key in BOUNDS)
