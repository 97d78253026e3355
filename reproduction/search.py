"""The search for the settings of `hybrid`, from the lines that it wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cop2l.report.groups import Spread, spread
from reproduction.markdown import paragraphs, rate, table

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


def datasets(lines: Sequence[dict[str, Any]]) -> frozenset[str]:
    """The data sets whose training part took part in the choice."""
    return frozenset(line["stream"].partition("@")[0] for line in lines)


def section(lines: Sequence[dict[str, Any]]) -> str:
    """What was tried and what came out, on the validation part."""
    if not lines:
        return "No search was recorded."
    by_stream: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        own = by_stream.setdefault((f"{line['stream']}, {line['tasks']} tasks", line["model"]), {})
        own.setdefault(_options(line), []).append(line)
    intro = (
        f"{settings(lines)} settings were tried, in {len(lines)} runs, on {len(by_stream)} streams. They were compared"
        " on a validation part: a tenth of each training task, which was not learned; these runs did not read the test part."
        f" For each stream: the {SHOWN} settings with the smallest claimed bound (combined, else preference, else kl;"
        " mean over tasks; in parentheses the number of seeds), the most accurate one, and the paper's."
    )
    tables = []
    for (name, model), tried in sorted(by_stream.items()):
        ordered = sorted(tried.items(), key=lambda item: _claimed(item[1]))
        best = max(range(len(ordered)), key=lambda i: _accuracy(ordered[i][1]))
        shown = [*range(min(SHOWN, len(ordered))), *([best] if best >= SHOWN else [])]
        shown += [i for i, (options, _) in enumerate(ordered) if "preset=paper" in options and i not in shown]
        rows = [
            (str(i + 1), f"`{options}`", *(_mean(own, key) for key in ("acc", "forg", *BOUNDS)))
            for i, (options, own) in ((i, ordered[i]) for i in shown)
        ]
        header = ("rank", "options", "accuracy", "forgetting", *BOUNDS)
        tables.append(f"**{name}, {model}** ({len(tried)} settings)\n\n{table(header, rows)}")
    return paragraphs(intro, *tables)


def _options(line: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(line["opts"].items())) or "defaults"


def _claimed(lines: Sequence[dict[str, Any]]) -> float:
    """What a setting claims: the combined bound where memory holds witnesses, else the preference bound or kl."""
    kinds = (_spread(lines, kind) for kind in ("combined", "preference", "kl"))
    return next((value.mean for value in kinds if value), 1.0)


def _accuracy(lines: Sequence[dict[str, Any]]) -> float:
    value = _spread(lines, "acc")
    return value.mean if value else 0.0


def _spread(lines: Sequence[dict[str, Any]], key: str) -> Spread | None:
    values = [line[key] for line in lines if line.get(key) is not None]
    return spread(values) if len(values) == len(lines) else None


def _mean(lines: Sequence[dict[str, Any]], key: str) -> str:
    return rate(_spread(lines, key), upwards=key in BOUNDS)
