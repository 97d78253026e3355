"""The verdict in a notebook."""

from cop2l.certify import notebook
from cop2l.kernel.verdict import CONCLUSIONS, PARTS, Verdict
from cop2l.text import count

COLOURS = {"valid": notebook.ACCENT, "invalid": notebook.ALARM, "cannot tell": notebook.QUIET}
UNFOLDED = ("invalid", "unverified", "claim")
"""The parts that a notebook shows first; the others are folded."""


class ReadableVerdict(Verdict):
    """A verdict with a short repr and a table for notebooks."""

    def __repr__(self) -> str:
        numbers = {name: len(getattr(self, name)) for name in ("invalid", "unverified")}
        counts = (f"{number} {name}" for name, number in numbers.items() if number)
        return f"Verdict({', '.join([self.status, count(len(self.statements), 'statement'), *counts])})"

    def _repr_html_(self) -> str:
        parts = {
            name: notebook.folded_list(PARTS[name], getattr(self, name), folded=name not in UNFOLDED)
            for name in PARTS
        }
        title, _, meaning = CONCLUSIONS[self.status].partition(": ")
        unfolded = [parts.pop(name) for name in UNFOLDED]
        conclusion = notebook.paragraph(f"{meaning[0].upper()}{meaning[1:]}")
        return notebook.card(
            title.capitalize(), *unfolded, conclusion, *parts.values(), colour=COLOURS[self.status]
        )
