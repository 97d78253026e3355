"""The machines and the code that made the runs."""

from collections import Counter
from collections.abc import Iterable, Sequence

from cop2l.report.groups import spread
from cop2l.report.runs import Run
from reproduction.markdown import table
from reproduction.ours import Sample, changes_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHANGED = {"icarl": "iCaRL", "lamaml": "La-MAML", "lfl": "LFL", "ewc": "EWC", "si": "SI"}
"""Baselines that have changed since their older runs."""


class Machines:
    """A letter for each machine; the machine with most runs comes first."""

    def __init__(self, runs: Iterable[Run]) -> None:
        counts: dict[tuple[str, ...], int] = {}
        for run in runs:
            counts[machine(run)] = counts.get(machine(run), 0) + 1
        ordered = sorted(counts, key=lambda m: (-counts[m], m))
        self.letters = {m: LETTERS[i % 26] * (i // 26 + 1) for i, m in enumerate(ordered)}
        self.counts = counts

    def cell(self, sample: Sample) -> str:
        """The machines of a sample, and the mean seconds of a run."""
        return f"{self.letters_of([sample])}, {spread(run.seconds for run in sample.runs).mean:.1f} s"

    def letters_of(self, samples: Iterable[Sample]) -> str:
        """The letters of the machines of samples."""
        return "+".join(sorted({self.letters[machine(run)] for sample in samples for run in sample.runs}))

    def table(self) -> str:
        """The machine of each letter."""
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
    """Processor, cores, device and torch version of a run."""
    keys = ("cpu", "cores", "device", "torch")
    cpu, cores, device, torch = (str(run.environment.get(key) or "unknown") for key in keys)
    return cpu, cores, "one CPU core" if device == "cpu" else device, torch


def is_present_code(run: Run) -> bool:
    """Whether a run is as new as the rule that results are fixed bit for bit: only then it has the key `claim`."""
    return "claim" in run.config


def ages(runs: Sequence[Run]) -> str:
    """How many runs were made by the present code, and which methods have changed since the older ones."""
    older = Counter(run.method for run in runs if not is_present_code(run))
    sentences = [
        f"**Which code.** This page has {len(runs)} runs; {len(runs) - older.total()} were made by the present code.",
        f"The other {older.total()} are older than bit-for-bit results, so their commands now give other last digits.",
    ]
    if changed := [f"{name} ({older[method]})" for method, name in CHANGED.items() if older[method]]:
        sentences.append(
            f"Methods that have changed since, with the number of their older runs: {', '.join(changed)}."
        )
    if before := sum(("buffer", "threshold") in changes_of(run) for run in runs):
        sentences.append(
            f"The {before} runs of `preset=paper buffer=threshold` are older than the change that fills the memory of that"
            " buffer (bits 2)."
        )
    return " ".join(sentences)
