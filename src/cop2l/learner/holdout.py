"""The hold-out certificate: it certifies any method by examples that the method never learned from."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.certificates.bounding import statements as all_statements
from cop2l.certificates.bounding import void_statements
from cop2l.certificates.certificate import Certificate, content_of
from cop2l.errors import UserError
from cop2l.files import file_digest
from cop2l.kernel.exact import exact_arithmetic, machine
from cop2l.kernel.form import HOLDOUT_FILES
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint, numbers
from cop2l.learner import counting
from cop2l.learner.repeats import MOST_REASONS

Samples = Mapping[int, tuple[Any, ...]]
"""For each task (x, y), or (x, y, groups)."""


@dataclass(frozen=True)
class HoldoutCertificate(Certificate):
    """A certificate whose evidence is the saved learner."""

    learner: Any = None

    def save(self, folder: str | Path) -> None:
        """Write the learner, then the text."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / HOLDOUT_FILES[0]
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            self.learner.save(scratch)
            files = list(Path(scratch).glob("*.safetensors"))
            if len(files) != 1:
                raise UserError(
                    "A hold-out certificate needs a method that saves itself in one safetensors file."
                )
            files[0].replace(target)
        self._write(folder, {target.name: file_digest(target)})


def issue_holdout(
    learner: Any,
    withheld: Samples,
    options: Options,
    *,
    heads: Sequence[Sequence[int]],
    threads: int,
    before: Mapping[int, np.ndarray] | None = None,
    findings: Sequence[tuple[set[int], str]] = (),
    not_valid: Sequence[str] = (),
    repeats: bool = False,
    learned: Mapping[int, Callable[[], Iterable[tuple[Any, Any]]]] | None = None,
    **fields: Any,
) -> HoldoutCertificate:
    """The certificate of a learner from the withheld examples of every task that it has learned.

    With probability at least 1 - delta over the draw of the withheld examples, the error rate on every task t is at most its
    bound, for all t at once: theorem `holdout` of docs/theory.md.

    before     which withheld rows of each task were misclassified just after it was learned; needed if forgetting is claimed
    findings   the result of `withheld_row_findings`
    repeats    whether equal rows are draws; otherwise a withheld example that the model cannot tell from another is an error
    learned    functions that yield blocks (x, y) of the examples that each task learned from
    fields     further fields of the certificate: method, settings, classes, the description of the model, data, commitment
    """
    last, records = learner.tasks_seen, []
    draws = counting.declared_draws(fields.get("data"), repeats)
    all_repeated = {} if draws else _repeated_rows(learner.model, withheld, learned or {}, last, threads)
    for task in range(1, last + 1):
        x, y, *groups = (*withheld[task], None)
        if not len(y):
            raise UserError(f"Nothing is withheld of task {task}; choose a larger holdout share.")
        predicted = learner.predict(x, task=task if learner.scenario == "task-incremental" else None)
        group_numbers = counting.group_numbers(groups[0], options, len(y))
        columns = {
            "errors": numbers(predicted) != numbers(y),
            "repeated": all_repeated.get(task, np.zeros(len(y), bool)),
            "labels": numbers(y),
            "groups": group_numbers,
            "wrong": (before or {}).get(task),
        }
        counts = counting.task_record(options, last, task, Sets(), columns)
        data_hash = fingerprint(len(y), blocks_of(x, np.asarray(y)), group_numbers)
        head = sorted(int(c) for c in heads[task - 1])
        records.append({"task": task, "rows": len(y), "head": head, "fingerprint": data_hash, **counts})
    void = {number for tasks, _ in findings for number in tasks}
    statements = void_statements(all_statements(options, records), void, means=bool(findings))
    content = content_of(
        options,
        statements,
        records,
        scenario=learner.scenario,
        machine=machine(learner.model),
        threads=threads,
        not_valid=[*not_valid, *(reason for _, reason in findings)][:MOST_REASONS],
        **fields,
    )
    return HoldoutCertificate(content, options, learner=learner)


def _repeated_rows(
    model: Any, withheld: Samples, learned: Mapping[int, Any], last: int, threads: int
) -> dict[int, np.ndarray]:
    """Which withheld examples of each task the model cannot tell from another one, withheld or learned."""
    answer_numbers, tasks = partial(counting.answer_numbers, model), range(1, last + 1)
    with exact_arithmetic(threads):
        keys = {t: answer_numbers(withheld[t][0]) for t in tasks}
        learned_keys = {
            t: np.concatenate([answer_numbers(x) for x, _ in learned[t]()]) for t in tasks if t in learned
        }
    used = {t: np.zeros(len(rows), bool) for t, rows in keys.items()}
    return counting.repeated_rows(keys, used, learned_keys)
