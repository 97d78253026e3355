"""Which machine made a number, a letter for each, explained in one table; and which code."""

from collections import Counter
from collections.abc import Iterable, Sequence

from cop2l.report.groups import spread
from cop2l.report.runs import Run
from reproduction.markdown import table
from reproduction.ours import Sample, changes_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHANGED = {"icarl": "iCaRL", "lamaml": "La-MAML", "lfl": "LFL", "ewc": "EWC", "si": "SI"}
"""Baselines that have changed since their older runs were made."""


class Machines:
    """The machines of some runs, in the order of how many runs they made."""

    def __init__(self, runs: Iterable[Run]) -> None:
        counts: dict[tuple[str, ...], int] = {}
        for run in runs:
            counts[machine(run)] = counts.get(machine(run), 0) + 1
        ordered = sorted(counts, key=lambda m: (-counts[m], m))
        self.letters = {m: LETTERS[i % 26] * (i // 26 + 1) for i, m in enumerate(ordered)}
        self.counts = counts

    def cell(self, sample: Sample) -> str:
        """The machines of a sample and the mean seconds of a run."""
        letters = sorted({self.letters[machine(run)] for run in sample.runs})
        return f"{'+'.join(letters)}, {spread(run.seconds for run in sample.runs).mean:.1f} s"

    def table(self) -> str:
        """What each letter stands for."""
        rows = [
            (
                letter,
                device,
                f"{cpu}, {cores} cores",
                f"torch {torch}",
                str(self.counts[cpu, cores, device, torch]),
            )
            for (cpu, cores, device, torch), letter in self.letters.items()
        ]
        return table(("machine", "learns on", "processor", "with", "runs"), rows)


def machine(run: Run) -> tuple[str, str, str, str]:
    """Processor, cores, device and torch of a run; one thread each."""
    known = run.environment
    cpu, cores, device, torch = (str(known.get(k) or "unknown") for k in ("cpu", "cores", "device", "torch"))
    return cpu, cores, "one CPU core" if device == "cpu" else device, torch


def of_present_code(run: Run) -> bool:
    """Whether a run was made since results are fixed bit for bit: only then its configuration has the key `claim`."""
    return "claim" in run.config


def ages(runs: Sequence[Run]) -> str:
    """Which runs are of the present code, and which are older."""
    present = Counter(run.method for run in runs if of_present_code(run))
    older = Counter(run.method for run in runs if not of_present_code(run))
    methods = ", ".join(f"{count} of {method}" for method, count in sorted(present.items()))
    words = (
        f"**Which code.** Of the {len(runs)} runs behind this page, {present.total()} are of the present code"
        + (f" ({methods})" if methods else "")
        + f"; the other {older.total()} were made before its results were fixed bit for bit, so that their commands now give"
        " other last digits."
    )
    stale = [f"{name} ({older[method]})" for method, name in CHANGED.items() if older[method]]
    if stale:
        words += (
            " Methods that have changed since, so that their rows show what they were, with the number of their older runs:"
            f" {', '.join(stale)}."
        )
    if before := sum(("buffer", "threshold") in changes_of(run) for run in runs):
        words += (
            f" The {before} runs of `preset=paper buffer=threshold`, the baseline of the search, were recorded before that"
            " buffer filled its memory (bits 2); CoP2L's default, bits 3, is beside them."
        )
    return words
