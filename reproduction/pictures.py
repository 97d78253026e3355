"""The figures of the document."""

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

DRAWN = ("kl", "preference", "holdout")
"""The kinds of bounds in the figures; the tables have all of them."""


class Pictures:
    """Saves figures in a folder, and returns the Markdown that shows them."""

    def __init__(self, folder: Path | None, document_folder: Path) -> None:
        self.folder, self.document_folder = folder, document_folder

    def show(self, name: str, figures: Sequence[Figure], description: str) -> str:
        """Save figures as one picture and show it; empty if there is no folder."""
        if self.folder is None or not figures:
            return ""
        path = self.folder / f"{name}.svg"
        save(figures, path)
        return picture(path, self.document_folder, description)

    def bounds(self, samples: Sequence[Sample], stream: Setup) -> str:
        """Bounds and test errors of the certificates on a stream."""
        by_label = contenders(samples, stream)
        runs = [with_kinds(run) for label, s in by_label.items() if "tenth" not in label for run in s.runs]
        return self._bounds("bounds", runs, f"Bounds and test errors: {stream.name}")

    def bounds_by_memory(self, samples: Sequence[Sample], stream: Setup) -> str:
        """The paper's bound for every size of the memory."""
        chosen = varied(samples, {"memory"}, ("cop2l",)).get(stream, [])
        runs = [with_kinds(run, ("kl",)) for sample in chosen for run in sample.runs]
        description = f"The paper's bound for every size of the memory: {stream.name}"
        return self._bounds("memory-bounds", runs, description)

    def _bounds(self, name: str, runs: Sequence[Run], description: str) -> str:
        if not runs:
            return ""
        return self.show(f"{name}-{file_name(runs[0])}", draw("all-bounds", runs), description)

    def against_memory(self, name: str, samples: Sequence[Sample]) -> str:
        """Accuracy and forgetting against the size of the memory."""
        runs = [run for sample in samples for run in sample.runs]
        if len({run.config.get("memory") for run in runs}) < 2:
            return ""
        figures = [
            figure
            for metric in ("accuracy", "forgetting")
            for figure in draw("against", runs, key="memory", metric=metric)
        ]
        description = f"Accuracy and forgetting against the size of the memory: {samples[0].stream.name}"
        return self.show(f"{name}-{file_name(runs[0])}", figures, description)

    def task_order(self, runs: Sequence[Run]) -> Iterator[str]:
        """Average accuracy over the orders, one picture per stream."""
        for stream, methods in sorted(orders(runs).items()):
            all_orders = [run for group in methods.values() for run in group]
            figures = draw("progress", all_orders, ("seed", "class_seed", "order_seed"))
            yield self.show(f"order-{file_name(all_orders[0])}", figures, f"Over task orders: {stream.name}")

    def classes(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Accuracy of each class after each task, CoP2L and Replay."""
        for stream, runs in _on_features(samples, ("cop2l", "replay")):
            if all(all(run.classes) for run in runs):
                description = f"Class by class: {stream.name}"
                yield self.show(f"classes-{file_name(runs[0])}", draw("classes", runs), description)

    def plasticity(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Plasticity against forgetting of six methods."""
        methods = ("cop2l", "finetuning", "replay", "icarl", "gdumb", "der++")
        for stream, runs in _on_features(samples, methods):
            description = f"Plasticity against forgetting: {stream.name}"
            yield self.show(f"plasticity-{file_name(runs[0])}", draw("plasticity", runs), description)


def _on_features(samples: Sequence[Sample], methods: Sequence[str]) -> Iterator[tuple[Setup, list[Run]]]:
    """The runs of methods on every kind of features of CIFAR-10, class-incremental."""
    by_stream: dict[Setup, list[Run]] = {}
    for sample in (sample for method in methods for sample in on_features(samples, method)):
        by_stream.setdefault(sample.stream, []).extend(sample.runs)
    yield from sorted(by_stream.items())


def with_kinds(run: Run, kinds: Sequence[str] = DRAWN) -> Run:
    """The run with these kinds of bounds only, to keep a figure legible."""
    tasks = [replace(t, bounds={k: v for k, v in t.bounds.items() if k in kinds}) for t in run.tasks]
    return replace(run, tasks=tasks)
