"""Scores, in less time: the bits are those of `cop2l.kernel.exact.score`.

What is gained: inputs are laid out in blocks once and for all.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.kernel.exact import (
    LARGE_BLOCK,
    WIDTH,
    Examples,
    PaddedLinear,
    block_rows,
    join,
    model_input,
    pad_rows,
    tensor,
)
from cop2l.kernel.models import MODELS
from cop2l.kernel.options import Options

COPIED = 2**28
"""Bytes of a task that are copied once, where its memory does not begin as torch's own does; more are copied block by block."""
Top = tuple[float, int, np.ndarray]
"""The largest weighted loss, the number of errors, and the positions of the k largest losses."""


@contextmanager
def scoring_mode(model: nn.Module) -> Iterator[None]:
    """Inside: evaluation mode, no gradients, padded linear layers where a width asks for it; then all is as before."""
    training = [module for module in model.modules() if module.training]
    narrow = not is_builtin_model(model) or any(
        p.dim() == 2 and p.shape[1] % WIDTH for p in model.parameters()
    )
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), PaddedLinear() if narrow else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True


def is_builtin_model(model: nn.Module) -> bool:
    """Whether it is one of cop2l's models as built: it never changes its input, and its parameters show every product's width."""
    return type(model) in MODELS.values() and all(
        type(module).__module__.startswith(("cop2l.kernel.", "torch.nn.modules."))
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not getattr(module, "inplace", False)
        for module in model.modules()
    )


def row_major(x: Tensor) -> bool:
    """Whether x has the plain memory layout: kernels may round another one (channels last) differently."""
    return x.stride() == torch.empty(x.shape, dtype=x.dtype, device="meta").stride()


def input_blocks(model: nn.Module, x: Any, size: int | None = None) -> Iterator[Any]:
    """X in blocks of the same number of rows, where the model is; rows beyond the end are zeros. A block lasts until the next.

    A model of the user's own, which may write into its input, gets copies.
    """
    size, trusted, scratch = size or block_rows(x), is_builtin_model(model), None
    for start in range(0, len(x), size):
        rows = model_input(model, tensor(x[start : start + size]))
        if not (trusted and len(rows) == size) or rows.data_ptr() % 64 or not row_major(rows):
            if scratch is None:
                scratch = rows.new_empty((size, *rows.shape[1:]))
            rows = pad_rows(rows, size, scratch)
        yield rows if trusted else rows.detach()  # it may reshape what it is given


def kept_blocks(model: nn.Module, x: Any) -> list[Tensor] | None:
    """X in blocks to be used again and again, if they can be views of it or of one copy; else None."""
    like, size = next(model.parameters()), block_rows(x)
    if not isinstance(x, Tensor) or (x.device, x.dtype) != (like.device, like.dtype):
        return None
    if not row_major(x) or not is_builtin_model(model):
        return None
    whole = range(0, len(x) - size + 1, size)
    if any((x.data_ptr() + start * x[:1].nbytes) % 64 for start in whole):
        if x.nbytes > COPIED:
            return None
        x = x.clone()
    last = [block.clone() for block in input_blocks(model, x[len(whole) * size :])]
    return [*(x[start : start + size] for start in whole), *last]


class Pool:
    """Examples that are scored together, again and again: laid out once, each part in whole blocks of its own.

    Positions count rows of this layout: part i's rows begin at `starts[i]`, and what is left of its last block is padding,
    which is scored like everything else and never picked.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Examples],
        masked_classes: Tensor | None,
        weights: Sequence[float],
    ) -> None:
        self._model, self._parts, self._size = model, parts, block_rows(parts[0].x)
        like, size = next(model.parameters()), self._size
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] - (-len(part) // size) * size)
        y = torch.cat([F.pad(part.y, (0, -len(part) % size)) for part in parts])
        self._own = y * size + torch.arange(len(y), device=y.device) % size
        """Where, in the flat matrix of a block's logits, each row's own class is."""
        self._weight = torch.empty(len(y), dtype=like.dtype, device=like.device)
        for (start, end), weight in zip(itertools.pairwise(self.starts), weights, strict=True):
            self._weight[start:end] = -weight
        self._losses, self._closed = torch.empty_like(self._weight), torch.zeros_like(y, dtype=torch.bool)
        self._blocks = [kept_blocks(model, part.x) for part in parts]
        self._outside = None
        if masked_classes is not None:
            task = torch.from_numpy(self.laid_out([part.task for part in parts], 0)).to(masked_classes.device)
            self._outside = masked_classes.index_fill(0, task.new_zeros(1), False)[task]

    def __len__(self) -> int:
        return len(self._own)

    def laid_out(self, columns: Sequence[np.ndarray], padding: Any) -> np.ndarray:
        """One array for each part, brought into the layout."""
        whole = np.full(len(self), padding, columns[0].dtype)
        for start, column in zip(self.starts, columns, strict=False):
            whole[start : start + len(column)] = column
        return whole

    def close(self, rows: np.ndarray) -> None:
        """From now on the loss of these rows is minus infinity."""
        self._closed.index_fill_(0, torch.from_numpy(rows).to(self._closed.device), True)

    def losses_at(self, rows: np.ndarray) -> np.ndarray:
        """What these rows had in the last scoring."""
        return self._losses[torch.from_numpy(rows).to(self._losses.device)].cpu().numpy()

    def score(self) -> tuple[Tensor, np.ndarray]:
        """Every row's weight * cross-entropy, and which of the first part's examples are misclassified.

        The first lasts until the next call.
        """
        start, wrong = 0, [torch.empty(0, dtype=torch.bool, device=self._closed.device)]
        with scoring_mode(self._model):
            for part, kept in zip(self._parts, self._blocks, strict=True):
                for rows in kept or input_blocks(self._model, part.x):
                    end = start + self._size
                    # classes along the first dimension, where a softmax over few of them is much quicker
                    logits, own = self._model(rows).t().contiguous(), self._own[start:end]
                    if self._outside is not None:
                        logits.masked_fill_(self._outside[start:end].t(), -torch.inf)
                    flat = logits.view(-1)
                    found = torch.log_softmax(logits, 0).view(-1).index_select(0, own)
                    torch.mul(found, self._weight[start:end], out=self._losses[start:end])
                    if start < self.starts[1]:
                        mine = flat.index_select(0, own)
                        flat.index_fill_(0, own, -torch.inf)
                        wrong.append(~(mine > logits.amax(0)))
                    start = end
        found_wrong = torch.cat(wrong).cpu().numpy()[: len(self._parts[0])]
        return self._losses.masked_fill_(self._closed, -torch.inf), found_wrong


def top_block(losses: Tensor, rest: np.ndarray, mark: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """The largest loss, and the positions of the k largest: largest first, ties by the smaller mark. Closed rows are -inf."""
    largest = torch.topk(losses, min(k + 1, len(losses)))
    found = largest.values.tolist()
    if (
        len(found) > k
        and found[-1] > -math.inf
        and all(one > other for one, other in itertools.pairwise(found))
    ):
        return found[0], largest.indices[:k].cpu().numpy()  # as nearly always: no ties
    at = np.flatnonzero(rest)
    values = losses.cpu().numpy()[at]
    worst = float(values.max(initial=-math.inf))
    if len(at) > k:
        largest_k = values >= np.partition(values, -k)[-k]  # and all that are level with the last of them
        at, values = at[largest_k], values[largest_k]
    return worst, at[np.lexsort((mark[at], -values))[:k]]


class Candidates:
    """The pool of mP2L: what can still be picked. Positions count S first, then B."""

    def __init__(
        self,
        model: nn.Module,
        S: Examples,
        B: Examples | None,
        mask: np.ndarray,
        masked_classes: Tensor | None,
        options: Options,
    ) -> None:
        parts = [S] if B is None else [S, B]
        weights = [1.0, options.pick_omega or options.omega][: len(parts)]
        self._pool, self._n, self._k = Pool(model, parts, masked_classes, weights), len(S), options.k
        self._mark = self._pool.laid_out([part.mark for part in parts], 0)
        self._rest = self._pool.laid_out([mask, *(np.ones(len(part), bool) for part in parts[1:])], False)
        self._pool.close(np.flatnonzero(~self._rest))

    def top(self) -> Top:
        """Score the pool: the largest weighted loss, the number of errors in S, and the block on top."""
        losses, wrong = self._pool.score()
        worst, picked = top_block(losses, self._rest, self._mark, self._k)
        errors = int(np.count_nonzero(wrong & self._rest[: len(wrong)]))
        return worst, errors, np.where(picked < self._n, picked, picked - self._pool.starts[1] + self._n)

    def close(self, block: np.ndarray) -> None:
        """These are picked, and never again."""
        rows = self._laid_out(block)
        self._rest[rows] = False
        self._pool.close(rows)

    def losses_at(self, block: np.ndarray) -> np.ndarray:
        """What these had in the last scoring."""
        return self._pool.losses_at(self._laid_out(block))

    def _laid_out(self, block: np.ndarray) -> np.ndarray:
        return np.where(block < self._n, block, block - self._n + self._pool.starts[1])


def outputs(
    model: nn.Module, x: Any, task: int | None = None, masked_classes: Tensor | None = None
) -> Iterator[Tensor]:
    """The logits, block by block, on the CPU; those outside the head of the task are minus infinity.

    Fewer examples than a block has go through the model in a block of their own size: errors are counted in whole blocks.
    """
    left = len(x)
    with scoring_mode(model):
        for rows in input_blocks(model, x, min(left, block_rows(x))):
            logits = model(rows)[:left]
            left -= len(rows)
            if task is not None and masked_classes is not None:
                logits = logits.masked_fill(masked_classes[task], -torch.inf)
            yield logits.cpu()


def misclassified(model: nn.Module, part: Examples, masked_classes: Tensor | None) -> np.ndarray:
    """Which examples are misclassified, as the kernel counts them."""
    return Pool(model, [part], masked_classes, [1.0]).score()[1]


class ErrorCount:
    """Which examples of many tasks are misclassified: small tasks share a forward pass."""

    def __init__(self, model: nn.Module, masked_classes: Tensor | None) -> None:
        self._model, self._outside = model, masked_classes
        self._waiting: list[tuple[Examples, np.ndarray, Any]] = []
        self._rows = 0

    def add(self, part: Examples, wrong: np.ndarray, rows: Any) -> None:
        """In the end `wrong` says at these rows which of the examples are misclassified."""
        self._waiting.append((part, wrong, rows))
        self._rows += len(part)
        if self._rows >= LARGE_BLOCK:
            self.finish()

    def finish(self) -> None:
        """Score what is waiting."""
        waiting, self._waiting, self._rows = [one for one in self._waiting if len(one[0])], [], 0
        parts, start = [part for part, *_ in waiting], 0
        if len(parts) > 1:
            parts = [replace(part, x=model_input(self._model, tensor(part.x[:]))) for part in parts]
        joined = parts[0] if len(parts) == 1 else join(parts)  # a single part may be a memory map
        errors = np.empty(0, bool) if joined is None else misclassified(self._model, joined, self._outside)
        for part, wrong, rows in waiting:
            wrong[rows] = errors[start : start + len(part)]
            start += len(part)
