"""What own data looks like from outside: names, types and shapes, and nothing about the values."""

from pathlib import Path
from typing import Any, NamedTuple

from cop2l.errors import UserError
from cop2l.streams import files
from cop2l.streams.pictures import class_folders

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
    if not path.exists():
        raise UserError(f"There is no file or folder {path}; give the path of your data.")
    if (path.is_file() and path.suffix == ".npz") or (path / "x.npy").is_file():
        train, test = files._npz(path) if path.is_file() else files._npy(path)
        both = {"": train._asdict(), "_test": test._asdict() if test else {}}
        every = {name + end: v for end, part in both.items() for name, v in part.items() if v is not None}
        return Outline([f"{name}: {v.dtype} {v.shape}" for name, v in every.items()])
    if path.is_file() and path.suffix in files.TABLES:
        return of_table(schema(path))
    if path.is_file():
        raise files.unknown_kind(path)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        split = path / "train"
        return of_table(files._arrow(split if split.is_dir() else path).schema)
    if tables := files._tables(path):
        return of_table(schema(tables[0][0]))
    names = class_folders(path / "train" if (path / "train").is_dir() else path)
    if not names:
        raise UserError(
            f"There is no data in {path} that is known; give one subfolder of pictures per class."
        )
    return Outline([f"pictures of the class {name!r}" for name in names])


def schema(file: Path) -> Any:
    """The names and types of a table's columns."""
    return files.table([file]).schema


def of_table(found: Any) -> Outline:
    """Which column is the label and which are inputs, as names and types suggest it."""
    forms = {field.name: form(field.type) for field in found}
    texts = [name for name, kind in forms.items() if kind == "text"]
    named = [name for word in LABELS for name in forms if name.lower() == word]
    label = next(iter(named), texts[0] if len(texts) == 1 else next(reversed(forms), "label"))
    inputs = {name: kind for name, kind in forms.items() if name != label}
    whole = [name for name, kind in inputs.items() if kind == "arrays"][:1]
    columns = tuple(whole or [name for name, kind in inputs.items() if kind == "numbers"])
    text = tuple(name for name, kind in inputs.items() if kind == "text" and not whole)
    parts = [f"{field.name!r}: {field.type!s:.60}" for field in found]
    return Outline(parts, label, columns, text, tuple(name for name in inputs if name not in columns))


def form(kind: Any) -> str:
    """What the values of a column are: numbers, arrays (pictures are some), text, or something else."""
    from pyarrow import types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "numbers"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return "text"
    picture = types.is_struct(kind) and "bytes" in {field.name for field in kind}
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    binary = types.is_binary(kind) or types.is_large_binary(kind)
    return "arrays" if picture or listed or binary or hasattr(kind, "storage_type") else "other"
