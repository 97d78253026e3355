"""The kernel's verdict as a notebook shows it; what it says is the kernel's."""

from dataclasses import fields, replace

from cop2l.certify import notebook
from cop2l.kernel.verdict import CONCLUSIONS, PARTS, Verdict

COLOURS = {"valid": notebook.ACCENT, "invalid": notebook.ALARM, "cannot tell": notebook.QUIET}
IN_SIGHT = ("faults", "doubts", "claim")
"""What is read first; the rest is folded."""


class ReadableVerdict(Verdict):
    """A verdict with a short repr and a table for notebooks."""

    @classmethod
    def of(cls, verdict: Verdict) -> "ReadableVerdict":
        """The same verdict."""
        return cls(**{field.name: getattr(verdict, field.name) for field in fields(verdict)})

    def __repr__(self) -> str:
        counts = (f"{len(found)} {name}" for name in ("faults", "doubts") if (found := getattr(self, name)))
        return f"Verdict({', '.join([self.status, f'{len(self.statements)} statements', *counts])})"

    def __str__(self) -> str:
        """What is wrong first."""
        wrong = [f"{PARTS['faults']}:", *(f"  - {fault}" for fault in self.faults)] if self.faults else []
        rest = Verdict.__str__(replace(self, faults=[]))
        return "\n".join([*wrong, *rest.splitlines()[:-1], CONCLUSIONS[self.status]])

    def _repr_html_(self) -> str:
        parts = {
            name: notebook.listed(PARTS[name], getattr(self, name), folded=name not in IN_SIGHT)
            for name in PARTS
        }
        word, _, meaning = CONCLUSIONS[self.status].partition(": ")
        first = [parts.pop(name) for name in IN_SIGHT]
        said = notebook.sentence(f"{meaning[0].upper()}{meaning[1:]}")
        return notebook.card(word.capitalize(), *first, said, *parts.values(), colour=COLOURS[self.status])
