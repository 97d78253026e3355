"""Counts the integers of a certificate again, from sets and errors."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from cop2l.kernel.exact import Rows, threshold
from cop2l.kernel.form import Content
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options, require
from cop2l.randomness import marks

NO_REPEATS = repeat(np.False_)
Recount = tuple[list[int], list[Content]]
"""The number of repeated rows of each task, and the records in which these count as errors."""
Facts = dict[str, Any]
"""Facts about the rows of a task that claims need: `labels`, numbers of `groups`, and `wrong`: the errors after that task."""


def counts(
    options: Options, last: int, task: int, sets: Sets, event: Rows, among: Any = True, data_gone: bool = False
) -> Content:
    """The counts of a task after task `last`, over all its rows or over those `among` them.

    `event` is the mask of the rows that are misclassified (or lost). `data_gone`: the task's data was missing at certifying, so
    the event is counted on the selected rows alone. Each of them is either in the buffer or picked, because the selection
    threshold is never above the buffer's.
    """
    rows = len(event)
    selected = marks(options.seed, "mark", task, n=rows) < threshold(rows, last, options)
    compression, evicted, picked = np.zeros((3, rows), bool)
    compression[sets.compression] = evicted[sets.evicted] = picked[sets.picked] = True
    masks = {
        "n": np.ones(rows, bool), "compression": compression, "evicted": evicted, "picked": picked,
        "errors": None if data_gone else event & ~compression & ~evicted,
        "errors_not_picked": None if data_gone else event & ~picked,
        "selected": selected if options.uses_marks else None,
        "compressed": selected & (event | picked) if options.uses_marks else None,
    }  # fmt: skip
    integers = {name: None if mask is None else int((mask & among).sum()) for name, mask in masks.items()}
    return {**integers, "iterations": sets.iterations, "stopped": sets.stopped}


def counts_and_parts(
    options: Options, last: int, task: int, sets: Sets, errors: Rows, repeated: Any, facts: Facts, data_gone: bool = False
) -> Content:
    """All counts of a task and its claimed parts (classes, groups, lost and gained); repeats count as errors, and as lost."""
    errors = errors | repeated
    count, parts = partial(counts, options, last, task, sets, data_gone=data_gone), list[tuple[str, Any, Content]]()
    if "classes" in options.claim:
        parts += [("classes", int(label), count(errors, facts["labels"] == label)) for label in np.unique(facts["labels"])]
    parts += [("groups", name, count(errors, facts["groups"] == number)) for number, name in enumerate(options.groups)]
    if "forgetting" in options.claim and task < last:
        before = facts["wrong"] & ~repeated
        parts += [("forgetting", "lost", count(errors & ~before)), ("forgetting", "gained", count(~errors & before))]
    return {**count(errors), "parts": [{"family": family, "subject": subject, **part} for family, subject, part in parts]}


def group_numbers(groups: Any, options: Options, rows: int) -> np.ndarray | None:
    """The position of each example's group among the declared groups; None if none are declared."""
    if not options.groups:
        return None
    declared = {name: number for number, name in enumerate(options.groups)}
    numbers = np.array([declared.get(str(name), -1) for name in ([] if groups is None else groups)], np.int64)
    require(len(numbers) == rows, f"Groups must be given for each of the {rows} examples; there are {len(numbers)}.")
    require((numbers >= 0).all(), "An example has a group that is not declared.")
    return numbers


def used_rows(rows: int, sets: Sets) -> np.ndarray:
    """The mask of the rows of a task that the model was trained on."""
    mask = np.zeros(rows, bool)
    mask[np.concatenate([sets.picked, sets.compression, sets.evicted])] = True
    return mask


def count_records(
    content: Content, sets: Sequence[Sets], errors: Sequence[Rows], repeated: Iterable[Any], facts: Sequence[Facts]
) -> list[Content]:
    """The records of a certificate, with the counts of these errors and repeated rows in place of the stated ones."""
    options, last, records = content["options"], len(content["records"]), []
    for record, of_task, wrong_rows, repeated_rows, of_rows in zip(
        content["records"], sets, errors, repeated, facts, strict=False
    ):
        task, data_gone = record["task"], record["errors"] is None
        records.append(record | counts_and_parts(options, last, task, of_task, wrong_rows, repeated_rows, of_rows, data_gone))
    return records


def recount(
    content: Content, sets: Sequence[Sets], errors: Sequence[Rows], repeated: Sequence[Rows], facts: Sequence[Facts]
) -> Recount:
    """Count again what a certificate states; its counts must be those of the errors, or of errors and repeated rows."""
    stated_records, plain = content["records"], count_records(content, sets, errors, NO_REPEATS, facts)
    full = count_records(content, sets, errors, repeated, facts)
    for record, *possible in zip(stated_records, plain, full, strict=True):
        sentence = f"The counts of task {record['task']} after task {len(plain)} are not those that the data gives."
        require(record in possible, sentence)
    return [int(mask.sum()) for mask in repeated], full
