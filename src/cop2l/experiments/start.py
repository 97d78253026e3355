"""A configuration to start from, for own data."""

import json
from collections.abc import Iterable
from pathlib import Path

from cop2l.errors import UserError
from cop2l.experiments.grid import OWN
from cop2l.streams.outline import Outline, outline

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
    found = outline(Path(path))
    if found.is_table and len(found.parts) <= len(found.unread) + 1:
        raise UserError(
            f"{path} has no column of numbers, arrays, pictures or text beside {found.label!r}; add one."
        )
    return BEGINNING.format(
        name=Path(path).name, file=out, base=OWN, stream=quoted(str(path)), **listed(found)
    ) + (columns(found) + END)


def listed(found: Outline) -> dict[str, str]:
    """A comment about each part, up to some number."""
    more = len(found.parts) - SHOWN
    lines = [*found.parts[:SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return {
        "what": "Its columns" if found.is_table else "What it holds",
        "parts": "\n".join(f"#   {line}" for line in lines),
    }


def columns(found: Outline) -> str:
    """The columns of a table that are read; of arrays and pictures there is nothing to choose."""
    if not found.is_table:
        return ""
    label = f"label = {quoted(found.label or '')}    # chosen by its name and type: is it the one?"
    if found.label is None:
        label = (
            f'label = "COLUMN"         # which one is to be predicted? candidates: {texts(found.candidates)}'
        )
    inputs = '# columns = ["A", "B"]     # the inputs; without it: all the other columns'
    if found.columns:
        inputs = f"columns = {texts(found.columns)}    # the inputs; not read: {texts(found.unread)}"
    shown = TABLE.format(label=label, columns=inputs, text=texts(found.text or ["COLUMN"]))
    only_text = found.text and len(found.text) + 1 == len(found.parts)
    return shown.replace("# text =", "text =") if only_text else shown


def texts(names: Iterable[str]) -> str:
    """A list of texts as TOML has it."""
    return f"[{', '.join(map(quoted, names))}]"


def quoted(text: str) -> str:
    """A text as TOML has it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
