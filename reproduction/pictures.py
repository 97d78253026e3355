"""The figures of the document: bounds task by task for every stream, and the analyses of the appendix."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cop2l.report.figures import draw
from cop2l.report.figures.figure import Figure, save
from cop2l.report.runs import Run
from reproduction.ablations import orders, varied
from reproduction.appendix import on_features
from reproduction.certificates import contenders
from reproduction.collect import file_name
from reproduction.markdown import picture
from reproduction.ours import Sample, Setup

DRAWN = ("kl", "preference", "combined", "holdout")
"""The kinds of bounds in the pictures; the tables have all of them."""


class Pictures:
    """Draws into a folder, and hands out the lines that show the pictures."""

    def __init__(self, folder: Path | None, beside: Path) -> None:
        self.folder, self.beside = folder, beside

    def show(self, name: str, figures: Sequence[Figure], words: str) -> str:
        """Save a picture and show it; nothing where no pictures are wanted."""
        if self.folder is None or not figures:
            return ""
        path = self.folder / f"{name}.svg"
        save(figures, path)
        return picture(path, self.beside, words)

    def bounds(self, found: Sequence[Sample], stream: Setup) -> str:
        """Bounds and test errors of all who certify something on a stream."""
        own = contenders(found, stream)
        runs = [drawn(run) for label, s in own.items() if "tenth" not in label for run in s.runs]
        return self._bounds("bounds", runs, f"Bounds and test errors: {stream.name}")

    def bounds_by_memory(self, found: Sequence[Sample], stream: Setup) -> str:
        """The paper's bound for every size of the memory."""
        own = [s for s in varied(found, {"memory"}, ("cop2l",)).get(stream, []) if s.method == "cop2l"]
        runs = [drawn(run, ("kl",)) for sample in own for run in sample.runs]
        words = f"The paper's bound for every size of the memory: {stream.name}"
        return self._bounds("memory-bounds", runs, words)

    def _bounds(self, name: str, runs: Sequence[Run], words: str) -> str:
        if not runs:
            return ""
        return self.show(f"{name}-{file_name(runs[0])}", draw("all-bounds", runs), words)

    def against_memory(self, name: str, own: Sequence[Sample]) -> str:
        """Accuracy and forgetting over the size of the memory."""
        runs = [run for sample in own for run in sample.runs]
        if len({run.config.get("memory") for run in runs}) < 2:
            return ""
        figures = [
            figure
            for metric in ("accuracy", "forgetting")
            for figure in draw("against", runs, key="memory", metric=metric)
        ]
        words = f"Accuracy and forgetting against the size of the memory: {own[0].stream.name}"
        return self.show(f"{name}-{file_name(runs[0])}", figures, words)

    def task_order(self, runs: Sequence[Run]) -> Iterator[str]:
        """Average cumulative accuracy over the orders, one picture per stream."""
        for stream, methods in sorted(orders(runs).items()):
            own = [run for group in methods.values() for run in group]
            figures = draw("progress", own, ("seed", "class_seed", "order_seed"))
            yield self.show(f"order-{file_name(own[0])}", figures, f"Over task orders: {stream.name}")

    def classes(self, found: Sequence[Sample]) -> Iterator[str]:
        """Accuracy of each class as tasks arrive, CoP2L against Replay."""
        for stream, runs in _on_features(found, ("cop2l", "replay")):
            if all(all(run.classes) for run in runs):
                words = f"Class by class: {stream.name}"
                yield self.show(f"classes-{file_name(runs[0])}", draw("classes", runs), words)

    def plasticity(self, found: Sequence[Sample]) -> Iterator[str]:
        """Plasticity against forgetting, six methods."""
        six = ("cop2l", "finetuning", "replay", "icarl", "gdumb", "der++")
        for stream, runs in _on_features(found, six):
            words = f"Plasticity against forgetting: {stream.name}"
            yield self.show(f"plasticity-{file_name(runs[0])}", draw("plasticity", runs), words)


def _on_features(found: Sequence[Sample], methods: Sequence[str]) -> Iterator[tuple[Setup, list[Run]]]:
    """The runs of some methods on every kind of features of CIFAR-10, class-incremental."""
    own: dict[Setup, list[Run]] = {}
    for sample in (sample for method in methods for sample in on_features(found, method)):
        own.setdefault(sample.stream, []).extend(sample.runs)
    yield from sorted(own.items())


def drawn(run: Run, kinds: Sequence[str] = DRAWN) -> Run:
    """A run with fewer kinds of bounds, so that a picture stays legible."""
    kept = [replace(t, bounds={k: v for k, v in t.bounds.items() if k in kinds}) for t in run.tasks]
    return replace(run, tasks=kept)
