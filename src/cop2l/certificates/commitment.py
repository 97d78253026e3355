"""The commitment: a small text, with one hash, of everything that must be chosen before the data is seen."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cop2l.errors import UserError
from cop2l.files import json_digest
from cop2l.kernel.form import canonical_json, read_json
from cop2l.kernel.options import Options

if TYPE_CHECKING:
    from torch import nn

FORMAT, VERSION = "cop2l-commitment", 3


def commitment(module: "nn.Module", options: Options, **fields: Any) -> dict[str, Any]:
    """The content of a commitment: whatever would make a certificate invalid if it were chosen after looking at the data.

    fields   method; settings, the options of a method other than CoP2L; scenario; classes; the description of the model; data:
             how it will be split; theta_0: the hash of the initial parameters, None for a hold-out certificate, which depends
             on none; threads
    """
    from cop2l.kernel.exact import BITS

    precision = str(next(module.parameters()).dtype).removeprefix("torch.")
    content = {"format": FORMAT, "version": VERSION, **fields, "options": options.as_dict()}
    return {**content, "precision": precision, "bits": BITS}


def commitment_hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical text of a commitment; hand it to the auditor."""
    return json_digest(content)


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The keys in which two tables differ: options by their bare names, keys of other tables within as table.key.

    >>> differing_keys({"seed": 0, "options": {"lr": 0.1}, "data": {"n": 5}}, {"seed": 0, "options": {"lr": 0.2}, "data": {}})
    ['data.n', 'lr']
    """
    names: list[str] = []
    for key in sorted({*first, *second}):
        a, b = first.get(key), second.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += [name if key == "options" else f"{key}.{name}" for name in differing_keys(a, b)]
        elif canonical_json(a) != canonical_json(b):
            names.append(key)
    return names


def read_commitment(path: str | Path) -> dict[str, Any]:
    if not Path(path).exists():
        raise UserError(f"There is no commitment {path}; give the file that cop2l commit wrote.")
    try:
        content = read_json(Path(path))
        commitment_hash(content)  # refuses 1e999
    except ValueError:
        content = None
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise UserError(
            f"{path} is not a commitment of version {VERSION}; give the file that cop2l commit wrote."
        )
    return content
