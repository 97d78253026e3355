"""Whether what was chosen is what was committed to before the data was seen."""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cop2l.certify.commitment import commitment_hash, committed_by, differing, read
from cop2l.errors import UserError
from cop2l.kernel.verdict import Verdict

CHOSEN = "method, options, seed, delta, kind, claim, number of tasks, scenario, first classes, model, initial parameters and cut"


def check_commitment(
    notes: Verdict, certificate: Mapping[str, Any], given: str | Path | Mapping[str, Any] | None
) -> bool:
    """Whether a certificate keeps a commitment, given as its hash, its file or its content."""
    named = certificate["commitment"]
    if given is None:
        if named:
            notes.word.append(
                f"The commitment that the certificate names ({named}) was made before the data was seen: "
                "if you were handed it then, give it with --commitment."
            )
        return False
    wanted, content = _wanted(given)
    kept = committed_by(certificate)
    if named not in (None, wanted):
        notes.fault(f"The certificate names another commitment, {named}, than {wanted}.")
    if commitment_hash(kept) != wanted:
        names = f" in {', '.join(differing(kept, content)[:10])}" if content else ""
        notes.fault(f"The certificate is not what was committed to ({wanted[:12]}...): it differs{names}.")
        return False
    notes.checked.append(f"What is chosen before the first task was committed to: {CHOSEN} ({wanted}).")
    number = certificate["options"].siblings
    others = (
        f"at most {number} commitments, this one among them, were"
        if number > 1
        else "no other commitment was"
    )
    notes.word.append(f"Assumed: {others} made for this data.")
    alone = certificate["scenario"] == "task-incremental" and not (certificate["data"] or {}).get("stream")
    if alone:
        notes.word.append(
            "The classes of each task, which no commitment names, were declared before any data was seen."
        )
    return True


def _wanted(given: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The hash, and the content if there is more than the hash."""
    if isinstance(given, Mapping):
        return commitment_hash(given), dict(given)
    text = str(given)
    if len(text) == 64 and not set(text) - set(string.hexdigits) and not Path(text).exists():
        return text.lower(), None
    if not Path(text).exists():
        raise UserError(
            f"{text} is neither the SHA-256 of a commitment nor its file; give the one you were handed."
        )
    content = read(text)
    return commitment_hash(content), content
