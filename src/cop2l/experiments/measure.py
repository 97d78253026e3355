"""What a run measures after each task: accuracies, certificates, hold-out bounds, memory; and the summary."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l import metrics
from cop2l.bounds import anytime_log_delta, holdout_certificate
from cop2l.certify.counting import blocks_of
from cop2l.experiments.config import Config
from cop2l.experiments.learners import device
from cop2l.files import write_json
from cop2l.streams.task import Stream, Task
from cop2l.streams.withhold import withhold

COUNTS = ("n", "compression", "evicted", "errors", "picked", "missed", "iterations")


def split(task: Task, config: Config) -> tuple[Task, Task | None]:
    """The part to learn, and the part withheld (None if nothing is)."""
    return withhold(task, config.holdout, config.seed)


def correct(learner: Any, task: Task, scenario: str) -> np.ndarray:
    """For each example whether it is classified rightly; the task's number is told if task-incremental."""
    told = task.t if scenario == "task-incremental" else None
    hits: np.ndarray = learner.predict(task.x, task=told).numpy() == np.asarray(task.y)
    return hits


def rows(records: list[dict[str, Any]], learned: Task) -> list[dict[str, Any]]:
    """A row for every task seen, with its size; what does not apply to a method stays None."""
    sizes = [record["tasks"][-1]["n"] for record in records] + [len(learned.y)]
    return [{"task": t, **dict.fromkeys(COUNTS), "n": n, "bounds": {}} for t, n in enumerate(sizes, 1)]


def evaluate(learner: Any, stream: Stream, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Test accuracy on every task seen, and on every class of them; the rows get the test errors."""
    accuracy: list[float] = []
    right, seen = np.zeros(stream.classes, np.int64), np.zeros(stream.classes, np.int64)
    for row, task in zip(rows, stream.test[: learner.tasks_seen], strict=True):
        hits = correct(learner, task, stream.scenario)
        accuracy.append(int(hits.sum()) / len(hits))
        row["test_error"] = int((~hits).sum()) / len(hits)
        labels = np.asarray(task.y)
        right += np.bincount(labels[hits], minlength=stream.classes)
        seen += np.bincount(labels, minlength=stream.classes)
    classes = {str(c): int(right[c]) / int(seen[c]) for c in np.flatnonzero(seen)}
    return {"accuracy": accuracy, "classes": classes}


Write = Callable[[Path], None]


def certify(
    learner: Any, stream: Stream, config: Config, rows: list[dict[str, Any]]
) -> tuple[Write | None, str | None]:
    """Every bound after the newest task, added to the rows; how to write the certificate, and its claim."""
    seen = range(1, learner.tasks_seen + 1)
    certificate, claim = None, "holdout" if config.holdout else None
    if hasattr(learner, "certify"):
        certificate = learner.certify(data={t: archived(stream, t, config) for t in seen})
        claim = config.claim or certificate.claim
        for row, part in zip(rows, certificate.tasks, strict=True):
            row.update({count: getattr(part, count) for count in COUNTS})
            row["bounds"] = {kind: float(bound) for kind, bound in part.bounds.items()}
    held = [hold_out(learner, stream, t, config) for t in seen] if config.holdout else []
    for row, part in zip(rows, held, strict=False):
        row["bounds"]["holdout"] = part["bounds"]["holdout"]
        row["holdout"] = {"n": part["n"], "errors": part["errors"]}

    def write(folder: Path) -> None:
        if certificate is not None:
            certificate.save(folder)
        if held:
            folder.mkdir(parents=True, exist_ok=True)
            name = "certificate.json" if certificate is None else "holdout.json"
            write_json(folder / name, hold_out_record(learner, stream, config, held))

    return write if certificate is not None or held else None, claim


def archived(stream: Stream, t: int, config: Config) -> Callable[[], Iterator[tuple[Any, Any]]]:
    """What task t was learned from, read again when it is its turn: one task at a time is in memory."""

    def blocks() -> Iterator[tuple[Any, Any]]:
        learned, _ = split(stream[t - 1], config)
        yield from blocks_of((learned.x, learned.y))

    return blocks


def hold_out(learner: Any, stream: Stream, t: int, config: Config) -> dict[str, Any]:
    """The hold-out bound of task t, from the examples that were withheld."""
    _, part = split(stream[t - 1], config)
    assert part is not None
    log_delta = math.log(config.delta)
    if sharing(learner, stream, config) == "anytime":
        log_delta = anytime_log_delta(log_delta, learner.tasks_seen)
    errors = int((~correct(learner, part, stream.scenario)).sum()) if len(part.y) else 0
    bound = holdout_certificate(len(part.y), errors, learner.tasks_seen, log_delta)
    return {"task": t, "n": len(part.y), "errors": errors, "bounds": {"holdout": float(bound)}}


def sharing(learner: Any, stream: Stream, config: Config) -> str:
    """Fixed: the certificate after the last task, named in advance. Anytime: all of a stream hold together."""
    return "fixed" if learner.tasks_seen == len(stream) and not config.anytime else "anytime"


def hold_out_record(
    learner: Any, stream: Stream, config: Config, held: list[dict[str, Any]]
) -> dict[str, Any]:
    """What certificate.json says where the hold-out bound is the only one."""
    return {
        "kind": "holdout",
        "says": "With probability at least 1 - delta over the draw of the withheld examples, the risk of the"
        " learner on every task listed is at most its bound.",
        "method": config.method,
        "after": learner.tasks_seen,
        "delta": config.delta,
        "sharing": sharing(learner, stream, config),
        "share": config.holdout,
        "seed": config.seed,
        "stream": stream.description,
        "not_valid": list(stream.not_valid),
        "tasks": held,
    }


def finite(event: dict[str, Any]) -> dict[str, Any]:
    """An event as JSON takes it: what is not finite (the worst loss when nothing is left to pick) is None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in event.items()}


def trace(learner: Any) -> list[dict[str, Any]]:
    """The iterations of the newest task, where a method records them."""
    return [finite(step) for step in getattr(learner, "trace", [])]


class Meter:
    """Seconds and peak memory since the meter was made."""

    def __init__(self, config: Config) -> None:
        self.device = device(config)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.reset_accumulated_memory_stats(self.device)
        with contextlib.suppress(OSError):  # elsewhere than on Linux it is the peak of the process so far
            Path("/proc/self/clear_refs").write_text("5")
        self.began = time.perf_counter()
        self.learn_seconds = 0.0

    def learned(self) -> None:
        """The task is learned; what follows is measuring."""
        self.learn_seconds = time.perf_counter() - self.began

    def reading(self, learner: Any) -> dict[str, Any]:
        """Seconds, bytes, and how many examples, and numbers beside them, the learner keeps."""
        cuda = self.device.type == "cuda"
        return {
            "seconds": time.perf_counter() - self.began,
            "learn_seconds": self.learn_seconds,
            "peak_memory": _peak_memory(),
            "peak_cuda_allocated": torch.cuda.max_memory_allocated(self.device) if cuda else None,
            "peak_cuda_reserved": torch.cuda.max_memory_reserved(self.device) if cuda else None,
            "total_cuda_allocated": _total_allocated(self.device) if cuda else None,
            "memory_used": learner.memory_used,
            "numbers_stored": getattr(learner, "numbers_stored", None),
        }


def _peak_memory() -> int | None:
    """Bytes; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _total_allocated(where: torch.device) -> int:
    """The bytes of all allocations since the meter was made, whether freed or not."""
    return int(torch.cuda.memory_stats(where)["allocated_bytes.all.allocated"])


def space(learner: Any, stream: Stream, config: Config) -> int:
    """About how many bytes a run writes: state and certificates hold models and kept examples."""
    model = sum(p.numel() * p.element_size() for p in learner.model.state_dict().values())
    example = np.prod(stream[0].x.shape[1:]) * 4
    return int(3 * model + 2 * config.memory * example) + (16 << 20)


def summarise(config: Config, stream: Stream, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of summary.json: a function of the records, so that a resumed run ends in the same one."""
    matrix = [record["accuracy"] for record in records]
    return {
        "accuracy": metrics.average_accuracy(matrix),
        "forgetting": metrics.forgetting(matrix),
        "plasticity": metrics.plasticity(matrix),
        "seconds": sum(record["seconds"] for record in records),
        "tasks": records[-1]["tasks"],
        "matrix": matrix,
        "method": config.method,
        "stream": config.stream,
        "scenario": stream.scenario,
        "model": config.model,
        "seed": config.seed,
        "memory": config.memory,
        "delta": config.delta,
        "claim": records[-1]["claim"],
        "not_valid": list(stream.not_valid),
    }
