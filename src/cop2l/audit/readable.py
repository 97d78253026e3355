"""The kernel's verdict as a notebook shows it; what it says is the kernel's."""

from cop2l.certify import notebook
from cop2l.kernel.verdict import CONCLUSIONS, PARTS, Verdict
from cop2l.text import count

COLOURS = {"valid": notebook.ACCENT, "invalid": notebook.ALARM, "cannot tell": notebook.QUIET}
IN_SIGHT = ("invalid", "unverified", "claim")
"""What is read first; the rest is folded."""


class ReadableVerdict(Verdict):
    """A verdict with a short repr and a table for notebooks."""

    def __repr__(self) -> str:
        counts = (
            f"{len(found)} {name}" for name in ("invalid", "unverified") if (found := getattr(self, name))
        )
        return f"Verdict({', '.join([self.status, count(len(self.statements), 'statement'), *counts])})"

    def _repr_html_(self) -> str:
        parts = {
            name: notebook.folded_list(PARTS[name], getattr(self, name), folded=name not in IN_SIGHT)
            for name in PARTS
        }
        word, _, meaning = CONCLUSIONS[self.status].partition(": ")
        first = [parts.pop(name) for name in IN_SIGHT]
        said = notebook.paragraph(f"{meaning[0].upper()}{meaning[1:]}")
        return notebook.card(word.capitalize(), *first, said, *parts.values(), colour=COLOURS[self.status])
