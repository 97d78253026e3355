"""Counts the integers of a certificate, as the learner does; the kernel counts again with code of its own."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, exact_arithmetic, score, threshold
from cop2l.kernel.learning import ReferenceLearner, Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import fingerprint, numbers
from cop2l.learner import advice
from cop2l.learner.repeats import count_copies
from cop2l.learner.scoring import input_blocks, scoring_mode
from cop2l.learner.validation import Data, not_learned_from, task_blocks
from cop2l.randomness import marks
from cop2l.streams.loading import GENERATED

if TYPE_CHECKING:
    from cop2l.learner.cop2l import CoP2L


def claim_columns(
    engine: ReferenceLearner, S: Examples, group_numbers: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The columns that the claims of a learner need of the task that it has just learned."""
    columns = {} if group_numbers is None else {"groups": group_numbers}
    if "classes" in engine.options.claim:
        columns["labels"] = S.y.cpu().numpy()
    if "forgetting" in engine.options.claim:
        columns["wrong"] = score(engine.model, S, engine.masked_classes)[1]
    return columns


def task_record(
    options: Options,
    last: int,
    task: int,
    sets: Sets,
    columns: Mapping[str, Any],
    has_data: bool = True,
) -> dict[str, Any]:
    """The integers of a task after task `last`, and of its parts as far as they are claimed.

    columns    which rows are `errors` (misclassified) and which are `repeated` (the model cannot tell them from another): these
               count as errors, and as lost; and what claims need: `labels`, numbers of `groups`, and which rows were `wrong`
               just after the task was learned
    has_data   False: only rows in the memory were scored, so that only those that marks select are counted
    """
    repeated = columns["repeated"]
    errors = columns["errors"] | repeated
    rows = len(errors)
    selected = np.flatnonzero(marks(options.seed, "mark", task, n=rows) < threshold(rows, last, options))
    compression = np.concatenate([sets.compression, sets.evicted])
    picked, compressed = (np.isin(np.arange(len(errors)), rows) for rows in (sets.picked, compression))

    def counts(events: np.ndarray, part: np.ndarray) -> dict[str, Any]:
        return {
            "n": int(part.sum()),
            "compression": int(part[sets.compression].sum()),
            "evicted": int(part[sets.evicted].sum()),
            "picked": int(part[sets.picked].sum()),
            "errors": int(np.count_nonzero(events[part & ~compressed])) if has_data else None,
            "errors_not_picked": int(np.count_nonzero(events[part & ~picked])) if has_data else None,
            "selected": int(part[selected].sum()) if options.uses_marks else None,
            "compressed": int((part & (events | picked))[selected].sum()) if options.uses_marks else None,
            "iterations": sets.iterations,
            "stopped": sets.stopped,
        }

    all_rows, parts = np.ones(len(errors), bool), list[dict[str, Any]]()
    if "classes" in options.claim:
        for label in np.unique(columns["labels"]).tolist():
            parts.append(
                {"family": "classes", "subject": label, **counts(errors, columns["labels"] == label)}
            )
    for number, name in enumerate(options.groups):
        parts.append({"family": "groups", "subject": name, **counts(errors, columns["groups"] == number)})
    if "forgetting" in options.claim and task < last:
        before = columns["wrong"] & ~repeated
        for name, events in (("lost", errors & ~before), ("gained", before & ~errors)):
            parts.append({"family": "forgetting", "subject": name, **counts(events, all_rows)})
    return {**counts(errors, all_rows), "parts": parts}


def records(learner: "CoP2L", data: Mapping[int, Data]) -> list[dict[str, Any]]:
    """The record of every task, from its data or from the memory alone."""
    state, last, result = learner.state, learner.tasks_seen, list[dict[str, Any]]()
    for task, (errors, repeated) in enumerate(zip(*_misclassified_rows(learner, data), strict=True), 1):
        columns = {"errors": errors, "repeated": repeated, **state.claim_columns[task - 1]}
        sets = learner.engine.sets[task - 1]
        counts = task_record(learner.options, last, task, sets, columns, task in data)
        head, data_hash = list(state.heads[task - 1]), state.fingerprints[task - 1]
        result.append({"task": task, "rows": len(errors), "head": head, "fingerprint": data_hash, **counts})
    return result


def _misclassified_rows(
    learner: "CoP2L", data: Mapping[int, Data]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Which rows of each task the model misclassifies, and which it cannot tell from another row.

    They are found in one pass over a task's data, or from the memory alone; there no repeats are looked for.
    """
    engine, sets, options = learner.engine, learner.engine.sets, learner.options
    errors, repeated = ([np.zeros(rows, bool) for rows in engine.sizes] for _ in range(2))
    keys = dict[int, np.ndarray]()
    with exact_arithmetic(learner.state.threads):
        for task, (mask, buffer) in enumerate(zip(errors, engine.buffer, strict=True), 1):
            if task in data:
                keys[task] = _count_task(learner, task, data[task], mask)
            elif options.uses_marks:
                mask[buffer.row] = score(learner.model, buffer, engine.masked_classes)[1]
    if not declared_draws(learner.state.data, learner.state.repeats):
        used = {task: used_rows(len(rows), sets[task - 1]) for task, rows in keys.items()}
        for task, mask in repeated_rows(keys, used).items():
            repeated[task - 1] = mask
    return errors, repeated


def _count_task(learner: "CoP2L", task: int, data: Data, errors: np.ndarray) -> np.ndarray:
    """Mark the errors of a task, whose data must be what it was learned from; the answer numbers of its rows."""
    model, state, keys, start = learner.model, learner.state, [np.empty(0, np.uint64)], 0
    draws = declared_draws(state.data, state.repeats)

    def counted_blocks() -> Iterator[tuple[Any, Any]]:
        nonlocal start
        buffer, head = learner.engine.buffer[task - 1].x, state.heads[task - 1]
        for x, y in task_blocks(data, task, len(errors), buffer, head, state.columns):
            tasks = np.full(len(y), task)  # also in place of rows and marks, which do not count
            part = Examples(x, y.to(next(model.parameters()).device), tasks, tasks, tasks)
            errors[start : start + len(y)] = score(model, part, learner.engine.masked_classes)[1]
            start += len(y)
            if not draws:
                keys.append(answer_numbers(model, part.x))
            yield x, y

    groups = state.claim_columns[task - 1].get("groups")
    if fingerprint(len(errors), counted_blocks(), groups) != state.fingerprints[task - 1]:
        raise not_learned_from(task)
    return np.concatenate(keys)


def group_numbers(groups: Any, options: Options, rows: int) -> np.ndarray | None:
    """The number of each example's group, in the order of the declared names; None if no groups are declared.

    The checker has a function of its own: it does not count with the issuer's code.
    """
    if not options.groups:
        return None
    order = {name: number for number, name in enumerate(options.groups)}
    names = [] if groups is None else [str(name) for name in groups]
    if len(names) != rows:
        raise UserError(f"Groups must be given for each of the {rows} examples; there are {len(names)}.")
    if set(names) - set(order):
        raise UserError(f"An example has a group that is not declared; declared are {', '.join(order):.200}.")
    return np.array([order[name] for name in names], np.int64)


# ---- rows that repeat


def declared_draws(data: Mapping[str, Any] | None, repeats: bool = False) -> bool:
    """Whether equal rows are independent draws: those of a generated stream are, and those that were declared to be."""
    return repeats or (data or {}).get("stream") in GENERATED


def tasks_with_uncounted_copies(learner: "CoP2L", data: Mapping[int, Data]) -> list[int]:
    """The tasks whose copies do not count as errors, with a warning: without data, or with a bound of kind kl."""
    if declared_draws(learner.state.data, learner.state.repeats):
        return []
    counted = data if learner.options.kind != "kl" else ()
    hashes = enumerate(learner.state.hashes, 1)
    tasks = [task for task, rows in hashes if task not in counted and count_copies(rows)]
    advice.warn_user(
        f"Rows of task {task} repeat another, and its bound is 100 %: they count as errors where its data is given, in"
        " bounds of other kinds than kl."
        for task in tasks
    )
    return tasks


def answer_numbers(model: nn.Module, x: Any) -> np.ndarray:
    """A number for each row: equal where the logits are, bit for bit, and otherwise with probability about 2^-64."""
    with scoring_mode(model):
        blocks = [row_numbers(model(rows).double()) for rows in input_blocks(model, x)]
    return np.concatenate([*blocks, np.empty(0, np.uint64)])[: len(x)]


def row_numbers(block: Any) -> np.ndarray:
    """A number for each row of a block: a random linear function of its bits; -0 is 0."""
    rows = (numbers(block) + 0).reshape(len(block), -1)
    rows = rows.view(np.uint32 if rows.shape[1] * rows.itemsize % 4 == 0 else np.uint8)
    return np.asarray(rows @ np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64))


def repeated_rows(
    keys: Mapping[int, np.ndarray],
    used: Mapping[int, np.ndarray],
    learned_keys: Mapping[int, np.ndarray] | None = None,
) -> dict[int, np.ndarray]:
    """Which rows of each task the model cannot tell from another one: these count as errors.

    keys           the answer number of every row of each task
    used           which rows were learned from; of equal rows in a task one is no repeat, such a row if there is one
    learned_keys   answer numbers of further rows of the task, which were learned from
    """
    learned = {task: (learned_keys or {}).get(task, rows[:0]) for task, rows in keys.items()}
    tasks = [np.unique(np.concatenate([rows, learned[task]])) for task, rows in keys.items()]
    values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *tasks]), return_counts=True)
    shared, masks = values[counts > 1], dict[int, np.ndarray]()
    for task, rows in keys.items():
        mask, earlier = np.isin(rows, shared), set(learned[task].tolist())
        for row in np.argsort(~used[task], kind="stable").tolist():
            mask[row] |= rows[row].item() in earlier
            earlier.add(rows[row].item())
        masks[task] = mask
    return masks


def used_rows(rows: int, sets: Sets) -> np.ndarray:
    """Which rows of a task were learned from; the checker has a function of its own, as for `group_numbers`."""
    mask = np.zeros(rows, bool)
    mask[np.concatenate([sets.picked, sets.compression, sets.evicted])] = True
    return mask
