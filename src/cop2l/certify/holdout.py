"""The hold-out certificate: what any method can carry, from examples that it never learned from."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cop2l.certify import counting
from cop2l.certify.bounding import statements as all_statements
from cop2l.certify.bounding import void_statements
from cop2l.certify.certificate import Certificate, content_of
from cop2l.certify.repeats import MOST_REASONS
from cop2l.errors import UserError
from cop2l.files import file_digest
from cop2l.kernel.exact import exact_arithmetic, machine
from cop2l.kernel.form import HOLDOUT_FILES
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import blocks_of, fingerprint, numbers

Samples = Mapping[int, tuple[Any, ...]]
"""For each task (x, y), or (x, y, groups)."""


@dataclass(frozen=True)
class HoldoutCertificate(Certificate):
    """A certificate whose evidence is the learner itself, as it was saved at that time."""

    learner: Any = None

    def save(self, folder: str | Path) -> None:
        """Write the learner and, last, the text."""
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
    method: str,
    settings: Mapping[str, Any],
    classes: int,
    heads: Sequence[Sequence[int]],
    model: Mapping[str, Any],
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
    bound, for all t at once: theorem `holdout` of docs/theory.md. `before` says which withheld rows of each task were
    misclassified just after it was learned: needed if forgetting is claimed. `doubts` are what `withheld_row_findings` found.
    `learned` gives blocks (x, y) of what each task was learned from: a withheld example that the model cannot tell from another
    counts as an error, unless rows may repeat. `fields` are further fields of the certificate.
    """
    last, records = learner.tasks_seen, []
    draws = counting.declared_draws(fields.get("data"), repeats)
    same = {} if draws else _repeated(learner.model, withheld, learned or {}, last, threads)
    for task in range(1, last + 1):
        x, y, *groups = (*withheld[task], None)
        if not len(y):
            raise UserError(f"Nothing is withheld of task {task}; choose a larger holdout share.")
        task_number = task if learner.scenario == "task-incremental" else None
        wrong, column = (
            numbers(learner.predict(x, task=task_number)) != numbers(y),
            counting.group_numbers(groups[0], options, len(y)),
        )
        facts = {"labels": numbers(y), "groups": column, "wrong": (before or {}).get(task)}
        wrong |= same.get(task, False)
        counted = counting.task_record(options, last, task, Sets(), wrong, facts)
        found = fingerprint(len(y), blocks_of(x, np.asarray(y)), column)
        head = sorted(int(c) for c in heads[task - 1])
        records.append({"task": task, "rows": len(y), "head": head, "fingerprint": found, **counted})
    void = {number for tasks, _ in findings for number in tasks}
    statements = void_statements(all_statements(options, records), void, means=bool(findings))
    content = content_of(
        method,
        options,
        statements,
        records,
        settings=dict(settings),
        scenario=learner.scenario,
        classes=classes,
        model=dict(model),
        machine=machine(learner.model),
        threads=threads,
        not_valid=[*not_valid, *(reason for _, reason in findings)][:MOST_REASONS],
        **fields,
    )
    return HoldoutCertificate(content, options, learner=learner)


def _repeated(
    model: Any, withheld: Samples, learned: Mapping[int, Any], last: int, threads: int
) -> dict[int, np.ndarray]:
    """Which withheld examples of each task the model cannot tell from another one, withheld or learned."""
    number, tasks = partial(counting.answer_numbers, model), range(1, last + 1)
    with exact_arithmetic(threads):
        keys = {t: number(withheld[t][0]) for t in tasks}
        others = {t: np.concatenate([number(x) for x, _ in learned[t]()]) for t in tasks if t in learned}
    return counting.repeated_rows(keys, {t: np.zeros(len(own), bool) for t, own in keys.items()}, others)
