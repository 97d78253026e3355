"""Explanations from a file: why a number differs from the paper's, looked up by its row."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cop2l.errors import UserError

UNEXPLAINED = "unexplained"
KEYS = frozenset({"scenario", "dataset", "tasks", "method", "model", "metric", "features", "why"})


@dataclass(frozen=True)
class Explanations:
    """The content of explanations.toml."""

    differs: tuple[Mapping[str, Any], ...] = ()
    """Why numbers of the published tables differ; a key that an entry does not have matches every row."""
    order: tuple[Mapping[str, Any], ...] = ()
    """Why the order of the methods differs on another backbone."""
    surprises: tuple[Mapping[str, str], ...] = ()
    """The most surprising differences: `title` and `text`."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """A paragraph for a section, by the section's name."""

    def why(self, kind: str, **row: Any) -> str:
        """The sentence of the entry with most keys that matches a row; "unexplained" if none matches."""
        entries = self.differs if kind == "differs" else self.order
        matches = [e for e in entries if all(str(row.get(k)) == str(v) for k, v in e.items() if k != "why")]
        return str(max(matches, key=len)["why"]) if matches else UNEXPLAINED


def read(path: Path | None) -> Explanations:
    """Read the explanations in a file; none if there is no file."""
    if path is None or not path.is_file():
        return Explanations()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}; correct it.") from error
    for entry in [*content.get("differs", []), *content.get("order", [])]:
        if "why" not in entry or not set(entry) <= KEYS:
            raise UserError(
                f"An entry of {path} needs 'why' and may have {', '.join(sorted(KEYS - {'why'}))}."
            )
    return Explanations(
        tuple(content.get("differs", [])),
        tuple(content.get("order", [])),
        tuple(content.get("surprise", [])),
        content.get("notes", {}),
    )
