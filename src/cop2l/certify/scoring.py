"""Scores that do not depend, bit for bit, on the other examples that are scored.

A matrix product's rounding depends on its shape and on memory alignment. So every forward pass has the same
number of rows (short ones are filled with zeros), and inner widths of linear layers are filled with zeros up to a
multiple of 16. That this suffices is a fact about the machine, not a theorem: `prove_exact` tests it on the model
itself, and refuses where it fails.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cop2l.certify.examples import Examples, row_major
from cop2l.errors import UserError

BLOCK = 256
"""Rows of a block; examples of few numbers come in larger ones, because a block of them is mostly book-keeping."""
FEW, LARGE_BLOCK = 512, 1024
CHUNK = 4096
"""Rows whose logits (nothing else) are held together."""
WIDTH = 16


class ExactnessError(UserError):
    """This machine, or this model on it, cannot score examples independently of each other."""


class _PaddedLinear(TorchFunctionMode):
    """Inside, every linear layer's inner width is a multiple of 16; the added zeros change no sum."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and len(args) > 1 and args[1].shape[-1] % WIDTH:
            missing = -args[1].shape[-1] % WIDTH
            args = (F.pad(args[0], (0, missing)), F.pad(args[1], (0, missing)), *args[2:])
        return func(*args, **kwargs)


@contextmanager
def scoring_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, padded linear layers where a width asks for it; all put back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            if any(p.dim() == 2 and p.shape[1] % WIDTH for p in model.parameters()):
                with _PaddedLinear():
                    yield
            else:
                yield
    finally:
        for module in training:
            module.training = True


def block_rows(x: Any) -> int:
    """How many rows a block of such examples has: a function of the shape of one example alone."""
    return LARGE_BLOCK if math.prod(x.shape[1:]) <= FEW else BLOCK


def input_blocks(model: nn.Module, x: Any) -> Iterator[Tensor]:
    """X in blocks of the same number of rows, where the model is; rows beyond the end of x are zeros."""
    place, size = next(model.parameters()), block_rows(x)
    plain = isinstance(x, Tensor) and row_major(x) is x  # then every block of rows is
    for start in range(0, len(x), size):
        rows = _tensor(x[start : start + size]).to(device=place.device, dtype=place.dtype)
        rows = rows if plain else row_major(rows)
        if len(rows) < size or rows.data_ptr() % 64:
            padded = rows.new_zeros((size, *rows.shape[1:]))
            padded[: len(rows)] = rows
            rows = padded
        yield rows


def kept_blocks(model: nn.Module, x: Any) -> list[Tensor] | None:
    """The same blocks as a list to be used again and again, if they are views of x but for the last; else None."""
    place = next(model.parameters())
    shared = (
        isinstance(x, Tensor) and (x.device, x.dtype) == (place.device, place.dtype) and row_major(x) is x
    )
    if not shared or x.data_ptr() % 64 or (x[:1].nbytes * block_rows(x)) % 64:
        return None
    return list(input_blocks(model, x))


def logits_in_blocks(model: nn.Module, x: Any) -> Iterator[tuple[int, Tensor]]:
    """(start, logits) for consecutive blocks of rows of x; call it inside `scoring_mode`."""
    start = 0
    for rows in input_blocks(model, x):
        yield start, model(rows)
        start += len(rows)


def _logits_in_chunks(model: nn.Module, blocks: Iterable[Tensor], n: int) -> Iterator[tuple[int, Tensor]]:
    """(start, logits) with classes along the first dimension, some blocks together: fewer and larger steps follow."""
    waiting: list[Tensor] = []
    first = end = 0
    for rows in blocks:
        logits = model(rows)
        waiting.append(logits.t())
        end += len(logits)
        if end - first == CHUNK or end >= n:
            yield first, torch.cat(waiting, 1)
            waiting, first = [], end


def head_mask(heads: list[tuple[int, ...]], classes: int, device: torch.device) -> Tensor:
    """Row t: which classes do *not* belong to task t's head (row 0 is unused: tasks count from 1)."""
    outside = torch.ones(len(heads) + 1, classes, dtype=torch.bool)
    for task, head in enumerate(heads, start=1):
        outside[task, list(head)] = False
    return outside.to(device)


def masked(logits: Tensor, task: np.ndarray, outside: Tensor | None) -> Tensor:
    """Logits with every class outside the example's own head at minus infinity (task-incremental only).

    The whole head is computed first: computing a slice of it would change the other logits' bits.
    """
    if outside is None:
        return logits
    if task[0] == task[-1] and (task == task[0]).all():
        return logits.masked_fill(outside[int(task[0])], -torch.inf)
    heads = F.pad(torch.from_numpy(task), (0, len(logits) - len(task)))  # rows beyond the end: any head
    return logits.masked_fill(outside[heads.to(outside.device)], -torch.inf)


def score(
    model: nn.Module,
    examples: Examples,
    outside: Tensor | None = None,
    *,
    errors: bool = True,
    blocks: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The cross-entropy of every example, and (if `errors`) whether it is misclassified.

    `blocks` are the examples' `kept_blocks`, if the caller has them.

    An example is classified correctly only if its class has strictly the largest logit: a tie, or a NaN, is an error.
    Classes run along the first dimension, where a softmax over few classes is much quicker; whole blocks are computed,
    so that no example falls into a vector kernel's remainder.
    """
    n = len(examples.y)
    y = F.pad(examples.y, (0, -n % block_rows(examples.x)))
    losses = torch.empty(len(y), dtype=next(model.parameters()).dtype, device=y.device)
    wrong = torch.empty(len(y) if errors else 0, dtype=torch.bool, device=y.device)
    with scoring_mode(model):
        for start, raw in _logits_in_chunks(model, blocks or input_blocks(model, examples.x), n):
            part = slice(start, start + raw.shape[1])
            logits = (
                raw if outside is None else masked(raw.t(), examples.task[part], outside).t().contiguous()
            )
            losses[part] = _losses(logits, y[part])
            if errors:
                wrong[part] = misclassified(logits, y[part])
    return losses[:n], wrong[:n]


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy; classes run along the first dimension."""
    return -F.log_softmax(logits, 0).gather(0, y[None])[0]


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """True unless the true class's logit is strictly larger than every other; classes run along the first dimension."""
    return (logits < logits.gather(0, y[None])).sum(0) != len(logits) - 1


def predict(model: nn.Module, x: Any, task: int | None = None, outside: Tensor | None = None) -> Tensor:
    """The class with the largest logit, for every example, on the CPU."""
    found = torch.empty(len(x), dtype=torch.int64)
    with scoring_mode(model):
        for start, raw in logits_in_blocks(model, x):
            count = min(len(raw), len(x) - start)
            if task is not None:
                raw = masked(raw, np.full(count, task), outside)
            found[start : start + count] = raw[:count].argmax(1).cpu()
    return found


def prove_exact(model: nn.Module, examples: Examples, outside: Tensor | None = None) -> None:
    """Score some examples alone, in another order and in smaller company; refuse if a single bit changes."""
    n = min(len(examples), 2 * block_rows(examples.x) + 37)
    some = examples.take(np.linspace(0, len(examples) - 1, n).astype(np.int64))
    reference = score(model, some, outside)
    scattered = np.random.default_rng(0)
    orders = [scattered.permutation(n), scattered.permutation(n)[: max(1, n // 3)]]
    orders += [scattered.integers(n, size=1) for _ in range(4)]
    for order in orders:
        at = torch.from_numpy(order).to(some.y.device)
        for expected, got in zip(reference, score(model, some.take(order), outside), strict=True):
            _same_bits(expected[at], got)
    with scoring_mode(model):  # as many blocks of logits as are ever taken together
        raw = torch.cat([logits for _, logits in logits_in_blocks(model, some.x)])[:n]
        logits = masked(raw, some.task, outside).t()
        many = torch.arange(CHUNK, device=raw.device) % n
        _same_bits(reference[0][many], _losses(logits[:, many].contiguous(), some.y[many]))


def _same_bits(expected: Tensor, got: Tensor) -> None:
    differing = int(((expected != got) & ~(expected.isnan() & got.isnan())).sum())
    if differing:
        raise ExactnessError(
            f"On this machine the score of an example depends on the examples scored with it ({differing} of {len(got)} "
            "differ for this model), so no certificate can be issued; use another model, dtype or device."
        )


def _tensor(rows: Any) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    return torch.from_numpy(rows if rows.flags.writeable and rows.flags.c_contiguous else np.array(rows))
