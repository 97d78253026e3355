"""What a run measures after each task (accuracies, certificates, hold-out bounds, memory), and the summary."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cop2l import metrics
from cop2l.certificates.certificate import Certificate
from cop2l.certificates.families import claim_sentences
from cop2l.experiments.config import Config
from cop2l.experiments.learners import claimed_kind, device, preparing, settings_of
from cop2l.experiments.records import COUNTS, Record, Summary, TaskRow, Withheld, as_json
from cop2l.kernel.samples import blocks_of
from cop2l.methods.base import Method
from cop2l.streams.task import Stream, Task, take_rows
from cop2l.text import Names, refuted_tasks


def learned_part(stream: Stream, t: int, config: Config) -> tuple[Any, Any, dict[str, Any]]:
    """What the learner gets of task t: inputs, labels, and as keywords its classes and, if they are claimed, the groups.

    A hold-out withholds its rows itself. CoP2L does not get the rows of the first task that prepare inputs.
    """
    x, y, _ = stream[t - 1]
    groups = stream.groups[t - 1] if config.groups else None
    if t == 1 and (part := preparing(config)) is not None and part.drawn:
        rows = np.flatnonzero(~part.rows(len(y)))
        x, y, groups = take_rows(x, rows), y[rows], None if groups is None else groups[rows]
    return x, y, {"classes": stream.heads[t - 1]} | ({"groups": groups} if config.groups else {})


def correct_rows(learner: Method, task: Task, scenario: str) -> np.ndarray:
    """For each example, whether it is classified correctly."""
    task_number = task.t if scenario == "task-incremental" else None
    correct: np.ndarray = learner.predict(task.x, task=task_number).numpy() == np.asarray(task.y)
    return correct


def evaluate(learner: Method, stream: Stream, learned: int, records: Sequence[Record]) -> Record:
    """The record after the newest task, of which so many rows were learned: the test accuracy on every task and class."""
    rows = [
        TaskRow(task=t, n=n) for t, n in enumerate([*(record.tasks[-1].n for record in records), learned], 1)
    ]
    accuracy: list[float] = []
    hits, totals = np.zeros(stream.classes, np.int64), np.zeros(stream.classes, np.int64)
    for row, task in zip(rows, stream.test[: learner.tasks_seen], strict=True):
        correct = correct_rows(learner, task, stream.scenario)
        accuracy.append(int(correct.sum()) / len(correct))
        row.test_error, row.test_n = int((~correct).sum()) / len(correct), len(correct)
        if stream.test_groups:
            groups = stream.test_groups[row.task - 1]
            parts = {str(name): correct[groups == name] for name in np.unique(groups)}
            row.test_groups = {name: int((~part).sum()) / len(part) for name, part in parts.items()}
        labels = np.asarray(task.y)
        hits += np.bincount(labels[correct], minlength=stream.classes)
        totals += np.bincount(labels, minlength=stream.classes)
    classes = {str(c): int(hits[c]) / int(totals[c]) for c in np.flatnonzero(totals)}
    return Record(
        task=len(rows), accuracy=accuracy, classes=classes, tasks=rows, not_valid=list(stream.not_valid)
    )


def certify(learner: Any, stream: Stream, config: Config, records: list[Record]) -> Certificate | None:
    """The certificate that is due, if any, after the last task or, if `anytime`, after each; the last record gets its bounds."""
    if claimed_kind(learner) is None or not (config.anytime or learner.tasks_seen == len(stream)):
        return None
    certificate: Certificate = learner.certify(
        {t: partial(blocks_of_task, stream, t, config) for t in range(1, learner.tasks_seen + 1)}
    )
    records[-1] = with_certificate(records[-1], certificate)
    return certificate


def blocks_of_task(stream: Stream, t: int, config: Config) -> Iterator[tuple[Any, Any]]:
    """What the learner got of a task, read again in blocks: one task at a time is in memory."""
    x, y, _ = learned_part(stream, t, config)
    yield from blocks_of(x, y)


def with_certificate(record: Record, certificate: Certificate) -> Record:
    """A record with the claims, counts and bounds of its certificate."""
    rows, kind = list[TaskRow](), certificate.kind
    for row, counted in zip(record.tasks, certificate.records, strict=True):
        bounds = {**certificate.claimed.get(row.task, {}), **certificate.information(row.task)}
        if kind == "holdout":
            withheld = Withheld(n=counted["rows"], errors=counted["errors"])
            rows.append(replace(row, bounds=bounds, holdout=withheld))
            continue
        rows.append(replace(row, bounds=bounds, **{count: counted[count] for count in COUNTS}))
    claims: Any = [statement for statement in certificate.statements if statement["family"] != "tasks"]
    return replace(record, kind=kind, claims=claims, not_valid=list(certificate.not_valid), tasks=rows)


class Meter:
    """Seconds and peak memory since the meter was made."""

    def __init__(self, config: Config) -> None:
        self.device = device(config)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.reset_accumulated_memory_stats(self.device)
        with contextlib.suppress(
            OSError
        ):  # without it (not on Linux), the peak is that of the process so far
            Path("/proc/self/clear_refs").write_text("5")
        self.began = time.perf_counter()
        self.learn_seconds = 0.0

    def learned(self) -> None:
        """Note that the task is learned, and measuring begins."""
        self.learn_seconds = time.perf_counter() - self.began

    def read(self, record: Record, learner: Method) -> None:
        """Write seconds, bytes and the number of kept examples into a record."""
        record.seconds, record.learn_seconds = time.perf_counter() - self.began, self.learn_seconds
        record.peak_memory, record.memory_used = _peak_memory(), learner.memory_used
        if self.device.type == "cuda":
            record.peak_cuda_allocated = torch.cuda.max_memory_allocated(self.device)
            record.peak_cuda_reserved = torch.cuda.max_memory_reserved(self.device)
            # All bytes that were allocated since the meter was made, also those freed again.
            total = torch.cuda.memory_stats(self.device)["allocated_bytes.all.allocated"]
            record.total_cuda_allocated = int(total)


def _peak_memory() -> int | None:
    """Bytes; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def space(learner: Method, stream: Stream, config: Config) -> int:
    """Roughly the bytes that a run writes: state and certificates hold models, kept examples and products of random features."""
    model = sum(p.numel() * p.element_size() for p in learner.model.state_dict().values())
    example = np.prod(stream[0].x.shape[1:]) * 4
    products = 8 * settings_of(learner).get("random_features", 0) ** 2
    return int(3 * model + 2 * config.memory * example + 2 * products) + (16 << 20)


def summarise(config: Config, description: Mapping[str, Any], records: Sequence[Record]) -> Summary:
    """The summary, from the configuration, the description of the stream and the records alone."""
    matrix, last = [record.accuracy for record in records], records[-1]
    summary = Summary(
        accuracy=metrics.average_accuracy(matrix),
        forgetting=metrics.forgetting(matrix),
        plasticity=metrics.plasticity(matrix),
        seconds=sum(record.seconds for record in records),
        tasks=last.tasks,
        matrix=matrix,
        method=config.method,
        stream=config.stream,
        scenario=description["scenario"],
        model=config.model or "",
        seed=config.seed,
        memory=config.memory,
        delta=config.delta,
        kind=last.kind,
        claims=last.claims,
        not_valid=[*last.not_valid, *refuted_tasks(as_json(last)["tasks"], last.kind)],
        **Names.from_description(description).as_dict(),
    )
    return replace(summary, sentences=claim_sentences(as_json(summary)))
