"""A configuration to start from, for own data."""

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
# Lines that begin with # change nothing; 'cop2l list keys' explains every key.

base = "{base}"             # the default settings; examples that certify nothing decide the scale of the inputs
stream = {stream}    # as seen from the folder where the command is run

# scenario = "class-incremental"  # or "task-incremental"; with domains: "domain-incremental"
# tasks = 2                # without it: as many equal tasks as there can be with two classes each
# memory = 2000            # examples that may be kept from past tasks
# scale = "none"           # inputs as they are; or a shift and a factor known beforehand: [127.5, 0.0078125]
# model = "mlp"            # "cnn" for pictures, "linear" for features; see: cop2l list models
# seed = 0

# {what}:
{parts}

[data]
"""
TABLE = """\
{label}
{columns}
# text = {text}    # free text, hashed to 1024 numbers (text_size); without it, a column of words is a category
# domain = "COLUMN"        # the domains are then the tasks
# group = "COLUMN"         # for certificates that speak of groups
"""
END = """\
# classes = ["A", "B"]     # all labels in order, or how many: fixed in advance, not found in the data
# test_share = 0.2         # split off for testing, where there is no test part

# [methods.cop2l]
# preset = "hybrid"        # also picks from the certified examples where that pays
# lr = 0.001               # the learning rate
"""
SHOWN = 40
LABELS = ("label", "labels", "class", "target", "y", "species", "outcome", "diagnosis")
"""Names that a column of labels often has."""


def write(path: str | Path, out: str | Path) -> None:
    """Write a configuration for own data; a file that is there stays as it is."""
    if Path(out).suffix != ".toml":
        raise UserError(f"A configuration is a TOML file; name it {Path(out).stem}.toml rather than {out}.")
    text = configuration(path, out)
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{out} is there already; remove it, or name another file with --out.") from None


def configuration(path: str | Path, out: str | Path) -> str:
    """The text of a configuration for own data, from its names, types and shapes alone."""
    train, test, names = read_columns(Path(path))
    chosen = ""
    if not isinstance(train, Part):
        parts = [f"{field.name!r}: {field.type!s:.60}" for field in train.schema]
        chosen = columns(train.schema, path)
    elif isinstance(train.x, Pictures):
        parts = [f"pictures of the class {name!r}" for name in names or ()]
    else:
        both = {"": train._asdict(), "_test": test._asdict() if test else {}}
        every = {name + end: v for end, part in both.items() for name, v in part.items() if v is not None}
        parts = [f"{name}: {v.dtype} {v.shape}" for name, v in every.items()]
    more = len(parts) - SHOWN
    lines = [*parts[:SHOWN], *([f"and {more} more"] if more > 0 else [])]
    beginning = BEGINNING.format(
        name=Path(path).name,
        file=out,
        base=OWN,
        stream=quoted(str(path)),
        what="Its columns" if chosen else "What it holds",
        parts="\n".join(f"#   {line}" for line in lines),
    )
    return beginning + chosen + END


def columns(schema: Any, path: str | Path) -> str:
    """Which column of a table is the label and which are inputs, as names and types suggest it."""
    forms = {field.name: value_form(field.type) for field in schema}
    named = [name for word in LABELS for name in forms if name.lower() == word]
    whole_numbers = [field.name for field in schema if str(field.type).startswith(("int", "uint", "bool"))]
    candidates = named or [name for name, kind in forms.items() if kind == "text" or name in whole_numbers]
    found = candidates[0] if named or len(candidates) == 1 else None
    inputs = {name: kind for name, kind in forms.items() if name != found}
    whole = [name for name, kind in inputs.items() if kind in SINGLE_INPUTS][:1]
    read = whole or [name for name, kind in inputs.items() if kind in ("numbers", "text", "empty")]
    unread = [name for name in inputs if name not in read]
    if len(forms) <= len(unread) + 1:
        raise UserError(
            f"{path} has no column of numbers, arrays, pictures or text beside {found!r}; add one."
        )
    label = f"label = {quoted(found or '')}    # chosen by its name and type: is it the one?"
    if found is None:
        label = f'label = "COLUMN"         # which one is to be predicted? candidates: {texts(candidates)}'
    listed = '# columns = ["A", "B"]     # the inputs; without it: all the other columns'
    if unread:
        listed = f"columns = {texts(read)}    # the inputs; not read: {texts(unread)}"
    text = [name for name in read if inputs[name] == "text"]
    shown = TABLE.format(label=label, columns=listed, text=texts(text or ["COLUMN"]))
    return shown.replace("# text =", "text =") if text and len(text) + 1 == len(forms) else shown


def texts(names: Iterable[str]) -> str:
    """A list of texts as TOML has it."""
    return f"[{', '.join(map(quoted, names))}]"


def quoted(text: str) -> str:
    """A text as TOML has it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
