"""The integers of a certificate, as the learner counts them; the kernel counts again in its own way."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from cop2l.certify import ranks
from cop2l.certify.inputs import labels
from cop2l.certify.scoring import ErrorCount, input_blocks, scoring_mode
from cop2l.certify.validation import Data, not_learned_from, task_blocks
from cop2l.errors import UserError
from cop2l.kernel.exact import Examples, certified_rows, exact_arithmetic, threshold
from cop2l.kernel.learning import Sets
from cop2l.kernel.options import Options
from cop2l.kernel.samples import fingerprint, numbers
from cop2l.randomness import marks
from cop2l.streams.loading import GENERATED

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L

Facts = Mapping[str, Any]
"""Of a task's rows, as far as claims need it: `labels`, numbers of `groups`, which were `wrong` after the task."""


def task_record(
    options: Options, last: int, task: int, sets: Sets, wrong: np.ndarray, facts: Facts, gone: bool = False
) -> dict[str, Any]:
    """The integers of a task after task `last`, and of its parts as far as they are claimed; `wrong` marks the errors.

    Where the data is `gone`, `wrong` is known of the memory alone, and only what is selected by marks is counted.
    """
    certified = certified_rows(len(wrong), task, options)
    below = marks(options.seed, "mark", task, n=len(wrong)) < threshold(int(certified.sum()), last, options)
    selected = np.flatnonzero(certified & below)
    picked, compressed = (np.isin(np.arange(len(wrong)), rows) for rows in (sets.picked, _both(sets)))

    def integers(errors: np.ndarray, part: np.ndarray) -> dict[str, Any]:
        sample = part & certified
        counts: dict[str, Any] = {
            "n": int(sample.sum()),
            "prior": int((part & ~certified).sum()),
            "compression": int(part[sets.compression].sum()),
            "evicted": int(part[sets.evicted].sum()),
            "picked": int(part[sets.picked].sum()),
            "errors": None if gone else int(np.count_nonzero(errors[sample & ~compressed])),
            "errors_not_picked": None if gone else int(np.count_nonzero(errors[sample & ~picked])),
            "selected": int(part[selected].sum()) if options.marked else None,
            "compressed": int((part & (errors | picked))[selected].sum()) if options.marked else None,
        }
        return counts | {"iterations": sets.iterations, "stopped": sets.stopped}

    all_rows, parts = np.ones(len(wrong), bool), list[dict[str, Any]]()
    if "classes" in options.claim:
        for label in np.unique(facts["labels"]).tolist():
            parts.append({"family": "classes", "subject": label, **integers(wrong, facts["labels"] == label)})
    for number, name in enumerate(options.groups):
        parts.append({"family": "groups", "subject": name, **integers(wrong, facts["groups"] == number)})
    if "forgetting" in options.claim and task < last:
        before = facts["wrong"]
        for name, event in (("lost", wrong & ~before), ("gained", before & ~wrong)):
            parts.append({"family": "forgetting", "subject": name, **integers(event, all_rows)})
    return {**integers(wrong, all_rows), "parts": parts}


def misclassified_rows(learner: "CoP2L", data: Mapping[int, Data]) -> list[np.ndarray]:
    """Which rows of each task the model misclassifies, from one pass over its data or from the memory alone."""
    engine, keys = learner.engine, dict[int, np.ndarray]()
    masks, shared = [np.zeros(rows, bool) for rows, _ in engine.sizes], engine.ranks
    if shared is not None:
        shared.check_agreement(learner, {"data": sorted(data)})
    with exact_arithmetic(learner.state.threads):
        model = learner.model, engine.masked_classes
        count = ErrorCount(*model) if shared is None else ranks.ErrorCount(shared, *model)
        for task, (wrong, held) in enumerate(zip(masks, engine.buffer, strict=True), 1):
            if task in data:
                keys[task] = _count_task(learner, task, data[task], wrong, count)
            elif learner.options.marked:
                count.add(held, wrong, held.row)
        count.finish()
        if shared is not None:
            shared.union(masks)
    if keys and not declared_draws(learner.state.data, learner.state.repeats):
        sets, options = engine.sets, learner.options
        used = {t: used_rows(len(numbers), t, options, sets[t - 1]) for t, numbers in keys.items()}
        for task, mask in repeated_rows(keys, used).items():
            masks[task - 1] |= mask
    return masks


def _count_task(learner: "CoP2L", task: int, data: Data, wrong: np.ndarray, count: ErrorCount) -> np.ndarray:
    """Have the rows of a task counted; its data must be what it was learned from. A number for each answer."""
    model, state, keys, start = learner.model, learner.state, [np.empty(0, np.uint64)], 0

    def counted() -> Iterator[tuple[Any, Any]]:
        nonlocal start
        like, head = learner.engine.buffer[task - 1].x, state.heads[task - 1]
        for x, y in task_blocks(data, task, len(wrong), like, head, state.columns):
            at = np.full(len(y), task)
            part = Examples(
                x, labels(y).to(next(model.parameters()).device), at, at, at
            )  # rows and marks do not count
            count.add(part, wrong, slice(start, start + len(y)))
            start += len(y)
            if not declared_draws(state.data, state.repeats):
                keys.append(answer_numbers(model, part.x))
            yield x, y

    if (
        fingerprint(len(wrong), counted(), state.facts[task - 1].get("groups"))
        != state.fingerprints[task - 1]
    ):
        raise not_learned_from(task)
    return np.concatenate(keys)


def _both(sets: Sets) -> np.ndarray:
    return np.concatenate([sets.compression, sets.evicted])


def group_numbers(groups: Any, options: Options, rows: int) -> np.ndarray | None:
    """The number of each example's group, in the order of the declared names; None if no groups are declared."""
    if not options.groups:
        return None
    order = {name: number for number, name in enumerate(options.groups)}
    given = [] if groups is None else [str(name) for name in groups]
    if len(given) != rows:
        raise UserError(f"Groups must be given for each of the {rows} examples; there are {len(given)}.")
    if set(given) - set(order):
        raise UserError(f"An example has a group that is not declared; declared are {', '.join(order):.200}.")
    return np.array([order[name] for name in given], np.int64)


# ---- rows that repeat


def declared_draws(data: Mapping[str, Any] | None, repeats: bool = False) -> bool:
    """Whether rows that repeat are independent draws of discrete data, as a generated stream is or its user declares."""
    return repeats or (data or {}).get("stream") in GENERATED


def answer_numbers(model: nn.Module, x: Any) -> np.ndarray:
    """A number for each row, equal where the logits are, bit for bit; for others with probability about 2^-64."""
    with scoring_mode(model):
        found = [row_numbers(model(rows).double()) for rows in input_blocks(model, x)]
    return np.concatenate([*found, np.empty(0, np.uint64)])[: len(x)]


def row_numbers(block: Any) -> np.ndarray:
    """A number for each row of a block: a random linear function of its bits; -0 is 0."""
    rows = (numbers(block) + 0).reshape(len(block), -1)
    rows = rows.view(np.uint32 if rows.shape[1] * rows.itemsize % 4 == 0 else np.uint8)
    return np.asarray(rows @ np.random.default_rng(0).integers(2**63, size=rows.shape[1], dtype=np.uint64))


def repeated_rows(
    found: Mapping[int, np.ndarray],
    used: Mapping[int, np.ndarray],
    others: Mapping[int, np.ndarray] | None = None,
) -> dict[int, np.ndarray]:
    """Which rows of each task the model cannot tell from another one, by their numbers: these count as errors.

    found    the numbers of the rows of each task
    used     which of them were learned from: one of a set of equal rows is no repeat, such a row if there is one
    others   numbers of further rows of the task that were learned from
    """
    whole = {t: np.concatenate([own, (others or {}).get(t, own[:0])]) for t, own in found.items()}
    tasks = np.concatenate([np.unique(own) for own in whole.values()])
    values, counts = np.unique(tasks, return_counts=True)
    elsewhere, masks = values[counts > 1], dict[int, np.ndarray]()
    for t, own in found.items():
        mask, known = np.isin(own, elsewhere), set((others or {}).get(t, own[:0]).tolist())
        for row in np.argsort(~used[t], kind="stable").tolist():
            mask[row] |= own[row].item() in known
            known.add(own[row].item())
        masks[t] = mask
    return masks


def used_rows(rows: int, task: int, options: Options, sets: Sets) -> np.ndarray:
    """Which rows of a task were learned from."""
    mask = ~certified_rows(rows, task, options)
    mask[np.concatenate([sets.picked, _both(sets)])] = True
    return mask
