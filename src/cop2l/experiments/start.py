"""The configuration that `cop2l init` writes for own data."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cop2l.errors import UserError
from cop2l.experiments.grid import OWN
from cop2l.streams.files import read_columns
from cop2l.streams.pictures import Pictures
from cop2l.streams.tables import SINGLE_INPUTS, Part, value_form

BEGINNING = """\
# A run on {name}; start it with: cop2l run {file}
# Lines that begin with # are comments; 'cop2l list keys' explains every key.

base = "{base}"             # the default settings; the scale of the inputs is that of the learned examples
stream = {stream}    # a path from the folder where you run the command

# scenario = "class-incremental"  # or "task-incremental"; with domains: "domain-incremental"
# tasks = 2                # the classes in this many tasks; without it: one task
# memory = 2000            # how many examples of past tasks may be kept
# scale = "none"           # no scaling; or a shift and a factor that you know in advance: [127.5, 0.0078125]
# model = "mlp"            # "cnn" for pictures, "linear" for features; see: cop2l list models
# seed = 0

# {what}:
{parts}

[data]
"""
TABLE = """\
{label}
{columns}
# text = {text}    # free text, hashed to 1024 numbers (text_size); without this line, a column of texts is a category
# domain = "COLUMN"        # each domain is a task
# group = "COLUMN"         # for claims about groups
"""
END = """\
# classes = ["A", "B"]     # all labels in order, or their number: fixed in advance, not read from the data
# test_share = 0.2         # the share for testing, if the data has no test part

# [methods.weighted-replay]
# lr = 0.001               # the learning rate
"""
SHOWN = 40
LABELS = ("label", "labels", "class", "target", "y", "species", "outcome", "diagnosis")
"""Frequent names of a column of labels."""


def write(path: str | Path, out: str | Path) -> None:
    """Write a configuration for own data into a new file."""
    if Path(out).suffix != ".toml":
        raise UserError(f"A configuration is a TOML file; name it {Path(out).stem}.toml rather than {out}.")
    text = configuration(path, out)
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{out} exists already; remove it, or name another file with --out.") from None


def configuration(path: str | Path, out: str | Path) -> str:
    """The configuration for own data, from its names, types and shapes alone."""
    train, test, names = read_columns(Path(path))
    table = ""
    if not isinstance(train, Part):
        parts = [f"{field.name!r}: {field.type!s:.60}" for field in train.schema]
        table = columns(train.schema, path)
    elif isinstance(train.x, Pictures):
        parts = [f"pictures of the class {name!r}" for name in names or ()]
    else:
        halves = {"": train._asdict(), "_test": test._asdict() if test else {}}
        arrays = {name + end: v for end, half in halves.items() for name, v in half.items() if v is not None}
        parts = [f"{name}: {array.dtype} {array.shape}" for name, array in arrays.items()]
    lines = parts[:SHOWN] + [f"and {len(parts) - SHOWN} more"] * (len(parts) > SHOWN)
    beginning = BEGINNING.format(
        name=Path(path).name,
        file=out,
        base=OWN,
        stream=quoted(str(path)),
        what="Its columns" if table else "Its content",
        parts="\n".join(f"#   {line}" for line in lines),
    )
    return beginning + table + END


def columns(schema: Any, path: str | Path) -> str:
    """The lines about the columns of a table; the label is guessed from names and types."""
    forms = {field.name: value_form(field.type) for field in schema}
    likely_labels = [name for label in LABELS for name in forms if name.lower() == label]
    whole_numbers = [field.name for field in schema if str(field.type).startswith(("int", "uint", "bool"))]
    candidates = likely_labels or [
        name for name, kind in forms.items() if kind == "text" or name in whole_numbers
    ]
    target = candidates[0] if likely_labels or len(candidates) == 1 else None
    inputs = {name: kind for name, kind in forms.items() if name != target}
    single = [name for name, kind in inputs.items() if kind in SINGLE_INPUTS][:1]
    read = single or [name for name, kind in inputs.items() if kind in ("numbers", "text", "empty")]
    unread = [name for name in inputs if name not in read]
    if len(forms) <= len(unread) + 1:
        raise UserError(
            f"{path} has no column of numbers, arrays, pictures or text beside {target!r}; add one."
        )
    label = f"label = {quoted(target or '')}    # guessed from its name and type; check it"
    if target is None:
        label = f'label = "COLUMN"         # name the column to predict; candidates: {texts(candidates)}'
    line = '# columns = ["A", "B"]     # the inputs; without it: all other columns'
    if unread:
        line = f"columns = {texts(read)}    # the inputs; not read: {texts(unread)}"
    text = [name for name in read if inputs[name] == "text"]
    lines = TABLE.format(label=label, columns=line, text=texts(text or ["COLUMN"]))
    return lines.replace("# text =", "text =") if text and len(text) + 1 == len(forms) else lines


def texts(names: Iterable[str]) -> str:
    """A list of texts in TOML."""
    return f"[{', '.join(map(quoted, names))}]"


def quoted(text: str) -> str:
    """A text in TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
