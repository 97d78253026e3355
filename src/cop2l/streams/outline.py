"""What own data looks like from outside: names, types and shapes, and nothing about the values."""

from pathlib import Path
from typing import Any, NamedTuple

from cop2l.streams.files import stored
from cop2l.streams.pictures import Pictures
from cop2l.streams.tables import Part, form

LABELS = ("label", "labels", "class", "target", "y")
"""Names that a column of labels often has."""


class Outline(NamedTuple):
    """Own data: a line about each of its parts; for tables, the columns that are read, and those that cannot be."""

    parts: list[str]
    label: str | None = None
    columns: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


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
    texts = [name for name, kind in forms.items() if kind == "text"]
    named = [name for word in LABELS for name in forms if name.lower() == word]
    label = next(iter(named), texts[0] if len(texts) == 1 else next(reversed(forms), "label"))
    inputs = {name: kind for name, kind in forms.items() if name != label}
    whole = [name for name, kind in inputs.items() if kind in ("arrays", "pictures")][:1]
    columns = tuple(whole or [name for name, kind in inputs.items() if kind == "numbers"])
    text = tuple(name for name, kind in inputs.items() if kind == "text" and not whole)
    parts = [f"{field.name!r}: {field.type!s:.60}" for field in schema]
    return Outline(parts, label, columns, text, tuple(name for name in inputs if name not in columns))
