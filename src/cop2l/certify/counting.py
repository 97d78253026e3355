"""Counting errors: integers, in one place, from one pass over a task's data."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.examples import sample
from cop2l.certify.history import History, Memory, certified_mask
from cop2l.certify.options import Options
from cop2l.certify.record import Counts
from cop2l.certify.scoring import LARGE_BLOCK, score
from cop2l.errors import UserError
from cop2l.randomness import marks
from cop2l.streams.fingerprints import Fingerprint

PASS_ROWS = 2 * LARGE_BLOCK  # whole blocks, of either size
Data = tuple[Any, Any] | Callable[[], Iterable[tuple[Any, Any]]]


def blocks_of(data: Data) -> Iterator[tuple[Any, Any]]:
    """Archived data as blocks of rows: arrays, memory maps, or a callable that yields (x, y) blocks."""
    if callable(data):
        yield from data()
        return
    x, y = data
    for start in range(0, max(len(x), len(y)), PASS_ROWS):
        yield x[start : start + PASS_ROWS], y[start : start + PASS_ROWS]


def misclassified_rows(
    model: nn.Module,
    data: Data,
    history: History,
    options: Options,
    outside: Tensor | None,
    *,
    fingerprinted: bool = True,
) -> tuple[np.ndarray, str]:
    """Which rows of the task the model misclassifies, and the data's fingerprint (if wanted), from one pass."""
    wrong = np.zeros(history.rows, bool)
    found = Fingerprint(history.rows)
    device = next(model.parameters()).device
    start = 0
    for x, y in blocks_of(data):
        x = x if isinstance(x, Tensor) else np.asarray(x)
        labels = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
        if len(x) != len(labels):
            raise UserError(
                f"The data given for task {history.task} has {len(x)} inputs but {len(labels)} labels."
            )
        if start + len(labels) > history.rows:
            raise UserError(
                f"The data given for task {history.task} has more than the {history.rows} examples it was learned from."
            )
        if fingerprinted:
            found.add(x, labels)
        labels = labels.to(device=device, dtype=torch.int64)
        part = sample(x, labels, history.task, options.seed)
        wrong[start : start + len(labels)] = score(model, part, outside)[1].cpu().numpy()
        start += len(labels)
    if start != history.rows:
        raise UserError(
            f"The data given for task {history.task} has {start} examples, but it was learned from {history.rows}."
        )
    return wrong, found.hexdigest()


def counts(
    history: History, options: Options, last: int, wrong: np.ndarray | None, compressed: int | None
) -> Counts:
    """The integers of a task's bounds after task `last`.

    `wrong` marks the misclassified rows of the whole sample, or is None if its data is gone. `compressed` = |c n R_t|
    counted on the buffer, for that case.
    """
    certified = certified_mask(history, options)
    n = int(certified.sum())
    selected = None
    if options.marked:
        limit = Memory(options).keeper.threshold(n, last)
        chosen = certified & (marks(options.seed, "mark", history.task, n=history.rows) < limit)
        selected = int(chosen.sum())
        if wrong is not None:
            compressed = int((chosen & (wrong | _mask(history.picked, history.rows))).sum())
    errors = missed = None
    if wrong is not None:
        outside_sets = certified & ~_mask(history.first, history.rows) & ~_mask(history.second, history.rows)
        errors = int((wrong & outside_sets).sum())
        missed = int((wrong & certified & ~_mask(history.picked, history.rows)).sum())
    return Counts(
        task=history.task,
        n=n,
        prior=history.rows - n,
        compression=len(history.first),
        evicted=len(history.second),
        evicted_last=int((history.left == last).sum()),
        errors=errors,
        picked=len(history.picked),
        missed=missed,
        iterations=history.iterations,
        selected=selected,
        compressed=compressed,
    )


def compressed_in_buffer(
    history: History, options: Options, last: int, buffer_rows: np.ndarray, buffer_wrong: np.ndarray
) -> int:
    """|c n R_t| from memory alone: picked examples whose mark the threshold selects, and errors on the buffer."""
    n = int(certified_mask(history, options).sum())
    limit = Memory(options).keeper.threshold(n, last)
    mark = marks(options.seed, "mark", history.task, n=history.rows)
    among_picked = int((mark[history.picked] < limit).sum())
    return among_picked + int((buffer_wrong & ~np.isin(buffer_rows, history.picked)).sum())


def _mask(rows: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[rows] = True
    return mask
