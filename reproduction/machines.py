"""Which machine made a number: a letter for each, explained in one table."""

from collections.abc import Iterable

from cop2l.report.groups import spread
from cop2l.report.runs import Run
from reproduction.markdown import table
from reproduction.ours import Sample

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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
