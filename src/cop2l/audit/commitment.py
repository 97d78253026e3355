"""The hash of a commitment."""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cop2l.certify.commitment import commitment_hash, read_commitment
from cop2l.errors import UserError


def hash_from(commitment: str | Path | Mapping[str, Any]) -> str:
    """The hash of a commitment that an auditor gives as a hash, a file or its content."""
    if isinstance(commitment, Mapping):
        return commitment_hash(commitment)
    text = str(commitment)
    if len(text) == 64 and not set(text) - set(string.hexdigits) and not Path(text).exists():
        return text.lower()
    if not Path(text).exists():
        raise UserError(
            f"{text} is neither the SHA-256 of a commitment nor its file; give the one you were handed."
        )
    return commitment_hash(read_commitment(text))
