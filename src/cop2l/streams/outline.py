"""What own data looks like from outside: names, types and shapes, and nothing about the values."""

from pathlib import Path
from typing import Any, NamedTuple

from cop2l.streams.files import stored
from cop2l.streams.pictures import Pictures
from cop2l.streams.tables import WHOLE, Part, form

LABELS = ("label", "labels", "class", "target", "y", "species", "outcome", "diagnosis")
"""Names that a column of labels often has."""


class Outline(NamedTuple):
    """Own data: a line about each of its parts; of a table the label, if its name says so, and what can be chosen."""

    parts: list[str]
    is_table: bool = False
    label: str | None = None
    candidates: tuple[str, ...] = ()
    """Columns that may be the label: words or whole numbers."""
    columns: tuple[str, ...] = ()
    """The inputs, where they are not all other columns."""
    text: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def outline(path: Path) -> Outline:
    """The names, types and shapes of one file or folder."""
    train, test, names = stored(path)
    if not isinstance(train, Part):
        return of_table(train.schema)
    if isinstance(train.x, Pictures):
        return Outline([f"pictures of the class {name!r}" for name in names or ()])
    both = {"": train._asdict(), "_test": test._asdict() if test else {}}
    every = {name + end: v for end, part in both.items() for name, v in part.items() if v is not None}
    return Outline([f"{name}: {v.dtype} {v.shape}" for name, v in every.items()])


def of_table(schema: Any) -> Outline:
    """Which column is the label and which are inputs, as names and types suggest it."""
    forms = {field.name: form(field.type) for field in schema}
    named = [name for word in LABELS for name in forms if name.lower() == word]
    whole_numbers = [field.name for field in schema if str(field.type).startswith(("int", "uint", "bool"))]
    candidates = tuple(
        named or [name for name, kind in forms.items() if kind == "text" or name in whole_numbers]
    )
    label = named[0] if named else candidates[0] if len(candidates) == 1 else None
    inputs = {name: kind for name, kind in forms.items() if name != label}
    whole = [name for name, kind in inputs.items() if kind in WHOLE][:1]
    readable = whole or [name for name, kind in inputs.items() if kind in ("numbers", "text", "empty")]
    text = tuple(name for name in readable if inputs[name] == "text")
    return Outline(
        [f"{field.name!r}: {field.type!s:.60}" for field in schema],
        True,
        label,
        candidates,
        tuple(readable) if len(readable) < len(inputs) else (),
        text,
        tuple(name for name in inputs if name not in readable),
    )
