"""Scores examples with the bits of `cop2l.kernel.exact.score`, in less time: inputs are divided into blocks only once."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
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
"""The most bytes of a task whose blocks are kept; more are padded anew in each scoring."""
CHUNK = 8
"""The number of blocks whose logits are compared at once."""
Top = tuple[float, int, np.ndarray]
"""The largest weighted loss, the number of errors, and the positions of the k largest losses."""


@contextmanager
def scoring_mode(model: nn.Module) -> Iterator[None]:
    """Inside: evaluation mode, no gradients, and padded linear layers if a width of the model needs them."""
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
    """Whether it is an unchanged model of cop2l: it never writes into its input, and its parameters show all widths of layers."""
    return type(model) in MODELS.values() and all(
        type(module).__module__.startswith(("cop2l.kernel.", "torch.nn.modules."))
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not getattr(module, "inplace", False)
        for module in model.modules()
    )


def row_major(x: Tensor) -> bool:
    """Whether x has the plain memory layout. Kernels may round other layouts (channels last) differently."""
    return x.stride() == torch.empty(x.shape, dtype=x.dtype, device="meta").stride()


def input_blocks(model: nn.Module, x: Any, size: int | None = None) -> Iterator[Any]:
    """The inputs in blocks of `size` rows on the model's device, padded with zeros. A block lasts until the next one.

    A model of the user's own gets copies, because it may write into its input.
    """
    size, is_builtin, memory = size or block_rows(x), is_builtin_model(model), None
    for start in range(0, len(x), size):
        rows = model_input(model, tensor(x[start : start + size]))
        if not (is_builtin and len(rows) == size) or rows.data_ptr() % 64 or not row_major(rows):
            if memory is None:
                memory = rows.new_empty((size, *rows.shape[1:]))
            rows = pad_rows(rows, size, memory)
        yield rows if is_builtin else rows.detach()  # the model may reshape its input


def kept_blocks(model: nn.Module, x: Any) -> list[Tensor] | None:
    """The inputs in blocks that can be scored repeatedly, without copies where x has that form; None if x is too large."""
    if not isinstance(x, Tensor) or x.nbytes > COPIED or not is_builtin_model(model):
        return None
    storage = x.untyped_storage().data_ptr()
    blocks = input_blocks(model, x)
    return [rows if rows.untyped_storage().data_ptr() == storage else rows.clone() for rows in blocks]


class Pool:
    """Examples that are scored together repeatedly; each part fills blocks of its own, the last one with padding."""

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Examples],
        masked_classes: Tensor | None,
        weights: Sequence[float],
    ) -> None:
        self._model, self._parts, self._size = model, parts, block_rows(parts[0].x)
        self._blocks = [kept_blocks(model, part.x) for part in parts]
        parameter = next(model.parameters())
        labels = [torch.split(part.y, CHUNK * self._size) for part in parts]
        self._label_index = [
            y * (-(-len(y) // self._size) * self._size) + torch.arange(len(y), device=y.device)
            for y in itertools.chain(*labels)
            if len(y)
        ]
        """For each chunk the positions of the logits of its labels in the flat matrix of all its logits."""
        self._weight = torch.cat(
            [parameter.new_full((len(part),), -w) for part, w in zip(parts, weights, strict=True)]
        )
        self._losses, self._masked = torch.empty_like(self._weight), None
        if masked_classes is not None:
            task = torch.from_numpy(np.concatenate([part.task for part in parts]))
            self._masked = masked_classes[task.to(masked_classes.device)]

    def score(self) -> tuple[Tensor, np.ndarray]:
        """The weight * cross-entropy of every row, and which examples of the first part are misclassified.

        The losses last until the next call.
        """
        end, errors = 0, [torch.empty(0, dtype=torch.bool, device=self._losses.device)]
        with scoring_mode(self._model):
            blocks = (
                rows
                for part, kept in zip(self._parts, self._blocks, strict=True)
                for rows in kept or input_blocks(self._model, part.x)
            )
            for label_index in self._label_index:
                start, end, number = end, end + len(label_index), -(-len(label_index) // self._size)
                # copies, as a model may return the same memory again; classes along the first dimension, where a softmax over
                # few of them is much faster
                parts = [self._model(rows).t().clone() for rows in itertools.islice(blocks, number)]
                logits = torch.cat(parts, 1)
                if self._masked is not None:
                    logits[:, : end - start].masked_fill_(self._masked[start:end].t(), -torch.inf)
                log_likelihood = torch.log_softmax(logits, 0).view(-1).index_select(0, label_index)
                torch.mul(log_likelihood, self._weight[start:end], out=self._losses[start:end])
                if end <= len(self._parts[0]):
                    flat = logits.view(-1)
                    label_logits = flat.index_select(0, label_index)
                    flat.index_fill_(0, label_index, -torch.inf)
                    errors.append(~(label_logits > logits.amax(0)[: end - start]))
        return self._losses, torch.cat(errors).cpu().numpy()


def top_block(losses: np.ndarray, is_open: np.ndarray, mark: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """The largest loss of the open rows, and the positions of the k largest, in falling order, ties by the smaller mark."""
    rows = np.flatnonzero(is_open)
    losses = losses[rows]
    worst = float(losses.max(initial=-math.inf))
    if len(rows) > k:  # the k largest, and ties with the last of them
        in_block = losses >= np.partition(losses, -k)[-k]
        rows, losses = rows[in_block], losses[in_block]
    return worst, rows[np.lexsort((mark[rows], -losses))[:k]]


class Candidates(Pool):
    """The pool of mP2L: the examples that can still be picked. Positions count S first, then B."""

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
        super().__init__(model, parts, masked_classes, weights)
        self._k, self._mark = options.k, np.concatenate([part.mark for part in parts])
        self._open = np.concatenate([mask, np.ones(len(self._mark) - len(S), bool)])

    def top(self) -> Top:
        """Score the pool: the largest weighted loss, the number of errors in S, and the block of the k largest losses."""
        losses, misclassified = self.score()
        errors = int(np.count_nonzero(misclassified & self._open[: len(misclassified)]))
        worst, block = top_block(losses.cpu().numpy(), self._open, self._mark, self._k)
        return worst, errors, block

    def close(self, block: np.ndarray) -> None:
        """Take a picked block out of the pool."""
        self._open[block] = False

    def losses_at(self, block: np.ndarray) -> np.ndarray:
        """The weighted losses of a block in the last scoring."""
        return self._losses[torch.from_numpy(block).to(self._losses.device)].cpu().numpy()


def outputs(
    model: nn.Module, x: Any, task: int | None = None, masked_classes: Tensor | None = None
) -> Iterator[Tensor]:
    """The logits, block by block, on the CPU; those outside the head of the task are minus infinity.

    A few examples are not padded to a whole block: predictions need fewer rows, and only errors are counted in whole blocks.
    """
    remaining = len(x)
    with scoring_mode(model):
        for rows in input_blocks(model, x, min(remaining, block_rows(x))):
            logits = model(rows)[:remaining]
            remaining -= len(rows)
            if task is not None and masked_classes is not None:
                logits = logits.masked_fill(masked_classes[task], -torch.inf)
            yield logits.cpu()


def misclassified(model: nn.Module, part: Examples, masked_classes: Tensor | None) -> np.ndarray:
    """Which examples are misclassified, with the bits of the kernel."""
    return Pool(model, [part], masked_classes, [1.0]).score()[1]


class ErrorCount:
    """Finds the misclassified examples of several tasks; small tasks share a forward pass."""

    def __init__(self, model: nn.Module, masked_classes: Tensor | None) -> None:
        self._model, self._masked_classes = model, masked_classes
        self._waiting: list[tuple[Examples, np.ndarray, Any]] = []
        self._rows = 0

    def add(self, part: Examples, mask: np.ndarray, rows: Any) -> None:
        """Mark which of these examples are misclassified in `mask`, at `rows`; not before `finish`."""
        self._waiting.append((part, mask, rows))
        self._rows += len(part)
        if self._rows >= LARGE_BLOCK:
            self.finish()

    def finish(self) -> None:
        """Score the examples that are waiting."""
        waiting, self._waiting, self._rows = [entry for entry in self._waiting if len(entry[0])], [], 0
        parts, start = [part for part, *_ in waiting], 0
        if len(parts) > 1:
            parts = [replace(part, x=model_input(self._model, tensor(part.x[:]))) for part in parts]
        joined = parts[0] if len(parts) == 1 else join(parts)  # a single part may be a memory map
        errors = np.empty(0, bool)
        if joined is not None:
            errors = misclassified(self._model, joined, self._masked_classes)
        for part, mask, rows in waiting:
            mask[rows] = errors[start : start + len(part)]
            start += len(part)
