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
from cop2l.bounds import holdout_certificate
from cop2l.certificates.bounding import log_delta
from cop2l.certificates.certificate import Certificate
from cop2l.certificates.families import claim_sentences
from cop2l.experiments.config import Config
from cop2l.experiments.learners import claimed_kind, device, names_of, recipe, settings_of
from cop2l.experiments.options import holdout_options
from cop2l.experiments.records import COUNTS, Record, Summary, TaskRow, Withheld, as_json
from cop2l.kernel.samples import blocks_of
from cop2l.learner import advice
from cop2l.learner.counting import declared_draws
from cop2l.learner.holdout import issue_holdout
from cop2l.learner.repeats import copy_warnings, row_hashes, withheld_row_findings
from cop2l.methods.base import Method
from cop2l.streams.task import Stream, Task
from cop2l.streams.withhold import withhold, withhold_groups
from cop2l.text import Names, refuted_tasks


def learn_kwargs(learner: Method, stream: Stream, t: int, config: Config) -> dict[str, Any]:
    """The classes of task t and, if the learner claims groups, the groups: arguments of `learn` beside the examples."""
    kwargs: dict[str, Any] = {"classes": stream.heads[t - 1]}
    if getattr(learner.options, "groups", ()):
        kwargs["groups"] = withhold_groups(stream, t, config.holdout, config.seed)[0]
    return kwargs


def correct_rows(learner: Method, task: Task, scenario: str) -> np.ndarray:
    """For each example, whether it is classified correctly."""
    task_number = task.t if scenario == "task-incremental" else None
    correct: np.ndarray = learner.predict(task.x, task=task_number).numpy() == np.asarray(task.y)
    return correct


def evaluate(learner: Method, stream: Stream, learned: Task, records: Sequence[Record]) -> Record:
    """The record after the newest task: sizes, and the test accuracy on every task and class so far."""
    rows = [
        TaskRow(task=t, n=n)
        for t, n in enumerate([*(record.tasks[-1].n for record in records), len(learned.y)], 1)
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


def due_kind(learner: Method, stream: Stream, config: Config) -> str | None:
    """The kind of the certificate that is due after the newest task, if any."""
    return claimed_kind(config, learner) if config.anytime or learner.tasks_seen == len(stream) else None


def certify(
    learner: Any, stream: Stream, config: Config, records: list[Record], commitment: str | None = None
) -> Certificate | None:
    """The certificate that is due after the newest task, if any; its bounds are added to the last record.

    One is due after the last task or, if `anytime`, after each. It is the method's own or the hold-out one, never both, since
    delta is spent once.
    """
    kind = due_kind(learner, stream, config)
    if kind is None:
        return None
    withheld = withheld_examples(stream, learner.tasks_seen, config) if config.holdout else {}
    certificate: Certificate
    if kind == "holdout":
        certificate = by_holdout(learner, stream, config, withheld, records, commitment)
    else:
        certificate = learner.certify(learned_from(learner, stream, config))
        for row in records[-1].tasks if withheld else ():
            x, y, _ = withheld[row.task]
            correct = correct_rows(learner, Task(x, y, row.task), stream.scenario)
            row.holdout = Withheld(n=len(y), errors=int((~correct).sum()))
    records[-1] = with_certificate(records[-1], certificate)
    return certificate


def with_certificate(record: Record, certificate: Certificate) -> Record:
    """A record with the claims, counts and bounds of its certificate."""
    rows, kind = list[TaskRow](), certificate.kind
    for row, counted in zip(record.tasks, certificate.records, strict=True):
        bounds = {**certificate.claimed.get(row.task, {}), **certificate.information(row.task)}
        if kind == "holdout":
            withheld = Withheld(n=counted["rows"], errors=counted["errors"])
            rows.append(replace(row, bounds=bounds, holdout=withheld))
            continue
        if row.holdout:  # for information
            tail = log_delta(certificate.options, record.task)
            bounds["holdout"] = float(
                holdout_certificate(row.holdout.n, row.holdout.errors, record.task, tail)
            )
        rows.append(replace(row, bounds=bounds, **{count: counted[count] for count in COUNTS}))
    claims: Any = [statement for statement in certificate.statements if statement["family"] != "tasks"]
    return replace(record, kind=kind, claims=claims, not_valid=list(certificate.not_valid), tasks=rows)


def by_holdout(
    learner: Any,
    stream: Stream,
    config: Config,
    withheld: dict[int, tuple[Any, Any, Any]],
    records: Sequence[Record],
    commitment: str | None,
) -> Certificate:
    """The certificate of any method, from the withheld examples."""
    hashes = partial(row_hashes, parameter=next(learner.model.parameters()), seed=config.seed)
    learned = {t: hashes(withhold(stream[t - 1], config.holdout, config.seed)[0].x) for t in withheld}
    certifying = {t: hashes(x) for t, (x, *_) in withheld.items()}
    if not declared_draws({"stream": config.stream}, config.repeats):
        for t, rows in certifying.items():
            advice.warn_user(copy_warnings(t, rows, "withheld rows"))
    return issue_holdout(
        learner,
        withheld,
        holdout_options(config, len(stream)),
        method=config.method,
        settings=settings_of(learner),
        classes=stream.classes,
        heads=stream.heads,
        model=dict(learner.model.description),
        threads=config.threads,
        before={
            record.task: unpacked(record.withheld_errors, len(withheld[record.task][1]))
            for record in records
            if record.withheld_errors
        },
        learned=learned_from(learner, stream, config),
        repeats=config.repeats,
        data=recipe(config, stream.scenario, len(stream)) | names_of(stream),
        findings=[*withheld_row_findings(learned, certifying)],
        not_valid=stream.not_valid,
        commitment=commitment,
    )


def withheld_errors(learner: Method, stream: Stream, task: Task, config: Config) -> str | None:
    """The misclassified withheld examples of the newest task as packed bits, if a hold-out claims forgetting."""
    _, withheld = withhold(task, config.holdout, config.seed)
    if withheld is None or "forgetting" not in config.claim or claimed_kind(config, learner) != "holdout":
        return None
    return np.packbits(~correct_rows(learner, withheld, stream.scenario)).tobytes().hex()


def unpacked(bits: str, rows: int) -> np.ndarray:
    """The mask that `withheld_errors` packed."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))[:rows].astype(bool)


def withheld_examples(stream: Stream, last: int, config: Config) -> dict[int, tuple[Any, Any, Any]]:
    """The withheld examples of the first tasks, with their groups."""
    examples = {}
    for task in stream[:last]:
        _, part = withhold(task, config.holdout, config.seed)
        if part is not None:
            groups = withhold_groups(stream, task.t, config.holdout, config.seed)[1]
            examples[task.t] = (part.x, part.y, groups)
    return examples


def learned_from(learner: Method, stream: Stream, config: Config) -> dict[int, Any]:
    """The examples that each task was learned from, read again on demand: one task at a time is in memory."""

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
    products = 8 * getattr(learner.options, "random_features", 0) ** 2
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
