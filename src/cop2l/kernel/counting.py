"""The integers of a certificate, counted again from sets and errors."""

from functools import partial
from typing import Any

import numpy as np

from cop2l.kernel.exact import Rows, certified_rows, threshold
from cop2l.kernel.form import Content
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options, require
from cop2l.randomness import marks

Facts = dict[str, Any]
"""What is known of a task's rows, as far as claims need it: `labels`, numbers of `groups`, which were `wrong` after the task."""


def counts(options: Options, last: int, task: int, sets: Sets, event: Rows, among: Any = True, gone: bool = False) -> Content:
    """The integers of the bounds of a task, or of the rows `among` it, after task `last`.

    `event` marks the rows that are misclassified (or lost). If the data is gone, only rows of the buffer are known. Every row
    that is `selected` and was never picked is in it: the threshold of `selected` does not depend on the picks, and is not above
    that of the buffer. That is enough for |c n R_t|, and nothing else is counted.
    """
    rows, certified = len(event), certified_rows(len(event), task, options)
    selected = certified & (marks(options.seed, "mark", task, n=rows) < threshold(int(certified.sum()), last, options))
    first, second, picked = np.zeros((3, rows), bool)
    first[sets.compression] = second[sets.evicted] = picked[sets.picked] = True
    found = {
        "n": certified, "prior": ~certified, "compression": first, "evicted": second, "picked": picked,
        "errors": None if gone else event & certified & ~first & ~second,
        "errors_not_picked": None if gone else event & certified & ~picked,
        "selected": selected if options.marked else None,
        "compressed": selected & (event | picked) if options.marked else None,
    }  # fmt: skip
    integers = {name: None if mask is None else int((mask & among).sum()) for name, mask in found.items()}
    return {**integers, "iterations": sets.iterations, "stopped": sets.stopped}


def counts_and_parts(
    options: Options, last: int, task: int, sets: Sets, wrong: Rows, facts: Facts, gone: bool = False
) -> Content:
    """All integers of a task: its own, those of every class and group, and of what was lost and gained, as far as claimed."""
    count, found = partial(counts, options, last, task, sets, gone=gone), list[tuple[str, Any, Content]]()
    if "classes" in options.claim:
        found += [("classes", int(label), count(wrong, facts["labels"] == label)) for label in np.unique(facts["labels"])]
    found += [("groups", name, count(wrong, facts["groups"] == number)) for number, name in enumerate(options.groups)]
    if "forgetting" in options.claim and task < last:
        before = facts["wrong"]
        found += [("forgetting", "lost", count(wrong & ~before)), ("forgetting", "gained", count(~wrong & before))]
    return {**count(wrong), "parts": [{"family": family, "subject": subject, **part} for family, subject, part in found]}


def group_numbers(groups: Any, options: Options, rows: int) -> np.ndarray | None:
    """The number of each example's group, counted in the declared names; None if no groups are declared."""
    if not options.groups:
        return None
    known = {name: number for number, name in enumerate(options.groups)}
    found = np.array([known.get(str(name), -1) for name in ([] if groups is None else groups)], np.int64)
    require(len(found) == rows, f"Groups must be given for each of the {rows} examples; there are {len(found)}.")
    require((found >= 0).all(), "An example has a group that is not declared.")
    return found


def used_rows(options: Options, task: int, rows: int, sets: Sets) -> np.ndarray:
    """A mask of the rows of a task that were learned from."""
    mask = ~certified_rows(rows, task, options)
    mask[np.concatenate([sets.picked, sets.compression, sets.evicted])] = True
    return mask
