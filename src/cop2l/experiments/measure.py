"""What a run measures after each task: accuracies, certificates, hold-out bounds, memory; and the summary."""

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
from cop2l.bounds import holdout_certificate
from cop2l.certify import advice
from cop2l.certify.bounding import log_delta
from cop2l.certify.certificate import Certificate
from cop2l.certify.counting import declared_draws
from cop2l.certify.families import claim_sentences
from cop2l.certify.holdout import issue_holdout
from cop2l.certify.repeats import copy_warnings, row_hashes, withheld_row_findings
from cop2l.experiments.config import Config
from cop2l.experiments.learners import (
    device,
    holdout_options,
    kind_of,
    names_of,
    recipe,
    settings_of,
)
from cop2l.experiments.records import COUNTS, Record, Summary, TaskRow, Withheld, as_json
from cop2l.kernel.samples import blocks_of
from cop2l.methods.protocol import Method
from cop2l.streams.task import Stream, Task
from cop2l.streams.withhold import withhold, withhold_groups
from cop2l.text import Names, refuted_tasks


def learn_kwargs(learner: Method, stream: Stream, t: int, config: Config) -> dict[str, Any]:
    """What a learner is told beside the examples of task t: its classes and, if it claims groups, the groups."""
    claimed = getattr(learner.options, "groups", ())
    groups = {"groups": withhold_groups(stream, t, config.holdout, config.seed)[0]} if claimed else {}
    return {"classes": stream.heads[t - 1], **groups}


def correct_rows(learner: Method, task: Task, scenario: str) -> np.ndarray:
    """For each example whether it is classified rightly; the task's number is told if task-incremental."""
    task_number = task.t if scenario == "task-incremental" else None
    hits: np.ndarray = learner.predict(task.x, task=task_number).numpy() == np.asarray(task.y)
    return hits


def evaluate(learner: Method, stream: Stream, learned: Task, records: Sequence[Record]) -> Record:
    """The record of the newest task: sizes, and test accuracy on every task seen and on every class of them."""
    rows = [
        TaskRow(task=t, n=n)
        for t, n in enumerate([*(record.tasks[-1].n for record in records), len(learned.y)], 1)
    ]
    accuracy: list[float] = []
    right, totals = np.zeros(stream.classes, np.int64), np.zeros(stream.classes, np.int64)
    for row, task in zip(rows, stream.test[: learner.tasks_seen], strict=True):
        good = correct_rows(learner, task, stream.scenario)
        accuracy.append(int(good.sum()) / len(good))
        row.test_error, row.test_n = int((~good).sum()) / len(good), len(good)
        if stream.test_groups:
            groups = stream.test_groups[row.task - 1]
            parts = {str(name): good[groups == name] for name in np.unique(groups)}
            row.test_groups = {name: int((~part).sum()) / len(part) for name, part in parts.items()}
        labels = np.asarray(task.y)
        right += np.bincount(labels[good], minlength=stream.classes)
        totals += np.bincount(labels, minlength=stream.classes)
    classes = {str(c): int(right[c]) / int(totals[c]) for c in np.flatnonzero(totals)}
    return Record(
        task=len(rows), accuracy=accuracy, classes=classes, tasks=rows, not_valid=list(stream.not_valid)
    )


def due_kind(learner: Method, stream: Stream, config: Config) -> str | None:
    """The kind of the certificate that is due after the newest task; None if none is."""
    return kind_of(config, learner) if config.anytime or learner.tasks_seen == len(stream) else None


def certify(
    learner: Any, stream: Stream, config: Config, records: list[Record], commitment: str | None = None
) -> Certificate | None:
    """The one certificate that is due after the newest task, if any; the last of the records repeats it.

    There is one after the last task or, `anytime`, one after each: either the method's own or the hold-out one, since delta is
    spent once. Bounds of other kinds are information.
    """
    kind = due_kind(learner, stream, config)
    if kind is None:
        return None
    held = withheld_examples(stream, learner.tasks_seen, config) if config.holdout else {}
    certificate: Certificate
    if kind == "holdout":
        certificate = by_holdout(learner, stream, config, held, records, commitment)
    else:
        certificate = learner.certify(learned_from(learner, stream, config))
        for row in records[-1].tasks if held else ():
            x, y, _ = held[row.task]
            good = correct_rows(learner, Task(x, y, row.task), stream.scenario)
            row.holdout = Withheld(n=len(y), errors=int((~good).sum()))
    records[-1] = with_certificate(records[-1], certificate)
    return certificate


def with_certificate(record: Record, certificate: Certificate) -> Record:
    """A record with the claims, counts and bounds of its certificate."""
    rows, kind = list[TaskRow](), certificate.kind
    for row, counted in zip(record.tasks, certificate.records, strict=True):
        bounds = {**certificate.claimed.get(row.task, {}), **certificate.information(row.task)}
        if kind == "holdout":
            held = Withheld(n=counted["rows"], errors=counted["errors"])
            rows.append(replace(row, bounds=bounds, holdout=held))
            continue
        if row.holdout:  # for information
            tail = log_delta(certificate.options, record.task)
            bounds["holdout"] = float(
                holdout_certificate(row.holdout.n, row.holdout.errors, record.task, tail)
            )
        rows.append(replace(row, bounds=bounds, **{count: counted[count] for count in COUNTS}))
    others: Any = [one for one in certificate.statements if one["family"] != "tasks"]
    return replace(record, kind=kind, claims=others, not_valid=list(certificate.not_valid), tasks=rows)


def by_holdout(
    learner: Any,
    stream: Stream,
    config: Config,
    held: dict[int, tuple[Any, Any, Any]],
    records: Sequence[Record],
    commitment: str | None,
) -> Certificate:
    """The certificate of any method, from the examples that it never saw."""
    hashes = partial(row_hashes, parameter=next(learner.model.parameters()), seed=config.seed)
    learned = {t: hashes(withhold(stream[t - 1], config.holdout, config.seed)[0].x) for t in held}
    withheld = {t: hashes(x) for t, (x, *_) in held.items()}
    if not declared_draws({"stream": config.stream}, config.repeats):
        advice.warn_user(
            one for t, rows in withheld.items() for one in copy_warnings(t, rows, "withheld rows")
        )
    return issue_holdout(
        learner,
        held,
        holdout_options(config, len(stream)),
        method=config.method,
        settings=settings_of(learner),
        classes=stream.classes,
        heads=stream.heads,
        model=dict(learner.model.description),
        threads=config.threads,
        before={
            record.task: unpacked(record.wrong, len(held[record.task][1]))
            for record in records
            if record.wrong
        },
        learned=learned_from(learner, stream, config),
        repeats=config.repeats,
        data=recipe(config, stream.scenario, len(stream)) | names_of(stream),
        findings=[*withheld_row_findings(learned, withheld)],
        not_valid=stream.not_valid,
        commitment=commitment,
    )


def withheld_errors(learner: Method, stream: Stream, task: Task, config: Config) -> str | None:
    """Which withheld examples of the newest task are misclassified, if forgetting is claimed of a hold-out: packed bits."""
    _, held = withhold(task, config.holdout, config.seed)
    if held is None or "forgetting" not in config.claim or kind_of(config, learner) != "holdout":
        return None
    return np.packbits(~correct_rows(learner, held, stream.scenario)).tobytes().hex()


def unpacked(bits: str, rows: int) -> np.ndarray:
    """The mask that `wrong` has packed."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))[:rows].astype(bool)


def withheld_examples(stream: Stream, last: int, config: Config) -> dict[int, tuple[Any, Any, Any]]:
    """The examples of the first tasks that were withheld, with their groups."""
    found = {}
    for task in stream[:last]:
        _, part = withhold(task, config.holdout, config.seed)
        if part is not None:
            groups = withhold_groups(stream, task.t, config.holdout, config.seed)[1]
            found[task.t] = (part.x, part.y, groups)
    return found


def learned_from(learner: Method, stream: Stream, config: Config) -> dict[int, Any]:
    """What every task so far was learned from, read again when it is its turn: one task at a time is in memory."""

    def blocks(task: int) -> Iterator[tuple[Any, Any]]:
        learned, _ = withhold(stream[task - 1], config.holdout, config.seed)
        yield from blocks_of(learned.x, learned.y)

    return {task: partial(blocks, task) for task in range(1, learner.tasks_seen + 1)}


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

    def read(self, record: Record, learner: Method) -> None:
        """Put seconds, bytes, and how many examples the learner keeps into a record."""
        record.seconds, record.learn_seconds = time.perf_counter() - self.began, self.learn_seconds
        record.peak_memory, record.memory_used = _peak_memory(), learner.memory_used
        if self.device.type == "cuda":
            record.peak_cuda_allocated = torch.cuda.max_memory_allocated(self.device)
            record.peak_cuda_reserved = torch.cuda.max_memory_reserved(self.device)
            # The bytes of all allocations since the meter was made, whether freed or not.
            total = torch.cuda.memory_stats(self.device)["allocated_bytes.all.allocated"]
            record.total_cuda_allocated = int(total)


def _peak_memory() -> int | None:
    """Bytes; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def space(learner: Method, stream: Stream, config: Config) -> int:
    """About how many bytes a run writes: state and certificates hold models, kept examples and products of random features."""
    model = sum(p.numel() * p.element_size() for p in learner.model.state_dict().values())
    example = np.prod(stream[0].x.shape[1:]) * 4
    products = 8 * getattr(learner.options, "random_features", 0) ** 2
    return int(3 * model + 2 * config.memory * example + 2 * products) + (16 << 20)


def summarise(config: Config, data: Mapping[str, Any], records: Sequence[Record]) -> Summary:
    """The summary: a function of the records, so that a resumed run ends in the same one.

    `data` has the scenario, and the names of tasks and classes.
    """
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
        scenario=data["scenario"],
        model=config.model or "",
        seed=config.seed,
        memory=config.memory,
        delta=config.delta,
        kind=last.kind,
        claims=last.claims,
        not_valid=[*last.not_valid, *refuted_tasks(as_json(last)["tasks"], last.kind)],
        **Names.from_description(data).as_dict(),
    )
    return replace(summary, sentences=claim_sentences(as_json(summary)))
