"""Scores that do not depend, bit for bit, on the other examples that are scored.

A matrix product's rounding depends on its shape and on memory alignment. So every forward pass has the same
number of rows (the last one repeats some, or is filled with zeros), and inner widths of linear layers are filled with
zeros up to a multiple of 16. That this suffices is a fact about the machine, not a theorem: `prove_exact` tests it on the model
itself, and refuses where it fails.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
FEW, LARGE_BLOCK = 512, 8 * BLOCK
CHUNK = 2**17
"""How many logits (nothing else) are held together, if a block has not more."""
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


class ScoringMode:
    """Inside: evaluation mode, no gradients, padded linear layers where a width asks for it; then all is as before.

    It looks at the model once, and is entered again and again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules, self._training = list(model.modules()), list[nn.Module]()
        padded = any(p.dim() == 2 and p.shape[1] % WIDTH for p in model.parameters())
        self._layers: AbstractContextManager[Any] = _PaddedLinear() if padded else nullcontext()
        self._gradients = True

    def __enter__(self) -> None:
        self._training = [module for module in self._modules if module.training]
        for module in self._training:
            _switch(module, False)
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        self._layers.__enter__()

    def __exit__(self, *error: object) -> None:
        self._layers.__exit__(None, None, None)
        torch.set_grad_enabled(self._gradients)
        for module in self._training:
            _switch(module, True)


def _switch(module: nn.Module, training: bool) -> None:
    """Set its mode; past nn.Module's own look at what is assigned, which takes longer than a small product."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        object.__setattr__(module, "training", training)
    else:
        module.training = training


def block_rows(x: Any) -> int:
    """How many rows a block of such examples has: a function of the shape of one example alone."""
    return LARGE_BLOCK if math.prod(x.shape[1:]) <= FEW else BLOCK


def chunk_rows(classes: int, block: int) -> int:
    """How many rows are held together: whole blocks, at least one."""
    return max(1, CHUNK // classes // block) * block


def input_blocks(model: nn.Module, x: Any) -> Iterator[Tensor]:
    """X in blocks of the same number of rows, where the model is; rows beyond the end of x are zeros.

    A block lasts until the next one: those that cannot be views of x share their memory.
    """
    place, size = next(model.parameters()), block_rows(x)
    plain = isinstance(x, Tensor) and row_major(x) is x  # then every block of rows is
    room: Tensor | None = None
    for start in range(0, len(x), size):
        rows = _tensor(x[start : start + size]).to(device=place.device, dtype=place.dtype)
        rows = rows if plain else row_major(rows)
        if len(rows) < size or rows.data_ptr() % 64:
            room = rows.new_empty((size, *rows.shape[1:])) if room is None else room
            room[: len(rows)] = rows
            room[len(rows) :] = 0
            rows = room
        yield rows


def kept_blocks(model: nn.Module, x: Any) -> list[Tensor] | None:
    """X in blocks to be used again and again, if they can be views of it; else None.

    The last block ends with the last row, and so begins with rows of the block before it, unless x is too short.
    """
    place, size = next(model.parameters()), block_rows(x)
    shared = (
        isinstance(x, Tensor) and (x.device, x.dtype) == (place.device, place.dtype) and row_major(x) is x
    )
    if not shared:
        return None
    if len(x) < size:
        return list(input_blocks(model, x))
    starts = [*range(0, len(x) - size + 1, size), *([len(x) - size] if len(x) % size else [])]
    aligned = all((x.data_ptr() + start * x[:1].nbytes) % 64 == 0 for start in starts)
    return [x[start : start + size] for start in starts] if aligned else None


def logits_in_blocks(model: nn.Module, x: Any) -> Iterator[tuple[int, Tensor]]:
    """(start, logits) for consecutive blocks of rows of x; call it inside a `ScoringMode`."""
    start = 0
    for rows in input_blocks(model, x):
        yield start, model(rows)
        start += len(rows)


def head_mask(heads: list[tuple[int, ...]], classes: int, device: torch.device) -> Tensor:
    """Row t: which classes do *not* belong to task t's head (row 0 is unused: tasks count from 1)."""
    outside = torch.ones(len(heads) + 1, classes, dtype=torch.bool)
    for task, head in enumerate(heads, start=1):
        outside[task, list(head)] = False
    return outside.to(device)


def hide(logits: Tensor, task: np.ndarray, outside: Tensor | None) -> None:
    """Put every class outside the example's own head at minus infinity (task-incremental only).

    Classes run along the first dimension. The whole head is computed first: computing a slice of it would change the
    other logits' bits. Rows beyond the end of `task` are padding.
    """
    if outside is None:
        return
    if task[0] == task[-1] and (task == task[0]).all():
        logits.masked_fill_(outside[int(task[0])][:, None], -torch.inf)
    else:
        heads = F.pad(torch.from_numpy(task), (0, logits.shape[1] - len(task)), value=int(task[-1]))
        logits.masked_fill_(outside[heads.to(outside.device)].t(), -torch.inf)


@dataclass(frozen=True)
class _Chunk:
    """Consecutive blocks whose logits are held together: fewer and larger steps follow than for each block."""

    start: int
    logits: Tensor
    """Classes along the first dimension, where a softmax over few classes is much quicker."""
    room: Tensor
    """Memory of the same shape. It is used at every pass: fresh memory costs more than what is done in it."""
    own: Tensor
    """`entries` of the labels."""
    heads: np.ndarray
    """Tasks of the rows, where classes are hidden."""
    sign: Tensor
    losses: Tensor
    """The pool's own, of these rows."""


@dataclass(frozen=True)
class _Place:
    """Where the logits of a block go."""

    logits: Tensor
    direct: bool
    """Whether the model can write them there."""
    completes: _Chunk | None
    """The chunk of which this is the last block."""


class Pool:
    """Examples that are scored together, again and again: laid out once, each part in whole blocks of its own.

    Positions count rows of this layout: part i's rows begin at `starts[i]`, and what is left of its last block is
    padding, which is scored like everything else and means nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Examples],
        outside: Tensor | None = None,
        weights: Sequence[float] = (1.0,),
    ) -> None:
        self._model, self._parts, self._outside = model, parts, outside
        self._mode, self._takes_room = ScoringMode(model), False
        self._size = block_rows(parts[0].x)
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] - (-len(part) // self._size) * self._size)
        self._y = torch.cat([F.pad(part.y, (0, -len(part) % self._size)) for part in parts])
        self._sign = next(model.parameters()).new_empty(len(self._y))
        self._losses = torch.empty_like(self._sign)
        for (start, end), weight in zip(itertools.pairwise(self.starts), weights, strict=True):
            self._sign[start:end] = -weight
        self._blocks = [kept_blocks(model, part.x) for part in parts]
        self._places: list[_Place] = []

    def __len__(self) -> int:
        return len(self._y)

    def laid_out(self, columns: Sequence[np.ndarray], padding: Any) -> np.ndarray:
        """One array for each part, brought into the layout."""
        whole = np.full(len(self), padding, columns[0].dtype)
        for start, column in zip(self.starts, columns, strict=False):
            whole[start : start + len(column)] = column
        return whole

    def close(self, rows: np.ndarray) -> None:
        """From now on these rows score log p <= 0 instead of weight * (-log p) >= 0."""
        self._sign.index_fill_(0, torch.from_numpy(rows).to(self._sign.device), 1)

    def score(self, *, errors: bool = True) -> tuple[Tensor, np.ndarray]:
        """Every row's weight * cross-entropy, and (if `errors`) which of the first part's examples are misclassified.

        The first lasts until the next call.
        An example is classified correctly only if its class has strictly the largest logit: a tie, or a NaN, is an
        error. Whole blocks are computed, so that no example falls into a vector kernel's remainder.
        """
        counted = len(self._parts[0]) if errors else 0
        wrong = np.empty(counted, bool)
        with self._mode:
            for chunk in self._chunks():
                found = log_probability(chunk.logits, chunk.own, chunk.room)
                torch.mul(found, chunk.sign, out=chunk.losses)
                if chunk.start < counted:
                    right = classified(chunk.logits, chunk.own[: counted - chunk.start])
                    np.logical_not(right.cpu().numpy(), out=wrong[chunk.start : chunk.start + right.shape[0]])
        return self._losses, wrong

    def _chunks(self) -> Iterator[_Chunk]:
        block = 0
        for part, kept in zip(self._parts, self._blocks, strict=True):
            for rows in kept or input_blocks(self._model, part.x):
                if self._places and self._places[block].direct:
                    logits = self._model(rows, room=self._places[block].logits)
                else:
                    logits = self._model(rows)
                if not self._places:
                    self._places = self._planned(logits)
                place = self._places[block]
                if logits.data_ptr() != place.logits.data_ptr():
                    # all rows, or those that the block before it did not have
                    place.logits.copy_(logits[len(rows) - len(place.logits) :])
                if place.completes:
                    hide(place.completes.logits, place.completes.heads, self._outside)
                    yield place.completes
                block += 1

    def _planned(self, like: Tensor) -> list[_Place]:
        """For every block, where its logits go."""
        classes, size = like.shape[1], self._size
        most = chunk_rows(classes, size)
        joined = self._outside is None  # otherwise each part hides other classes
        spans = [(0, len(self))] if joined else list(itertools.pairwise(self.starts))
        rooms = like.new_zeros(2, classes * min(most, len(self)))
        places: list[_Place] = []
        for (begin, end), part in zip(spans, self._parts, strict=False):
            for start in range(begin, end, most):
                rows = min(most, end - start)
                logits, room = (flat[: classes * rows].view(classes, rows) for flat in rooms)
                own = entries(self._y[start : start + rows])
                heads = part.task[start - begin : start - begin + rows]
                sign, losses = (column[start : start + rows] for column in (self._sign, self._losses))
                chunk = _Chunk(start, logits, room, own, heads, sign, losses)
                for block in range(start, start + rows, size):
                    first, last = self._covered(block)
                    here = logits[:, max(0, first - start) : last - start].t()
                    is_last = block + size == start + rows
                    direct = self._takes_room and first >= start
                    places.append(_Place(here, direct, chunk if is_last else None))
        return places

    def _covered(self, start: int) -> tuple[int, int]:
        """First and last row of the block that begins here in the layout; a part's last one may begin before it."""
        for begin, part, kept in zip(self.starts, self._parts, self._blocks, strict=False):
            end = begin + len(part)
            if kept and len(part) > self._size and end - self._size < start < end:
                return end - self._size, end
        return start, start + self._size


def score(model: nn.Module, examples: Examples, outside: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The cross-entropy of every example, and whether it is misclassified."""
    losses, wrong = Pool(model, [examples], outside).score()
    return losses[: len(examples)], torch.from_numpy(wrong).to(losses.device)


def entries(y: Tensor) -> Tensor:
    """Where, in a flat matrix of logits with classes along the first dimension, each row's own class is."""
    return y * len(y) + torch.arange(len(y), device=y.device)


def log_probability(logits: Tensor, own: Tensor, room: Tensor | None = None) -> Tensor:
    """The logarithm of each row's probability of its own class."""
    return torch.log_softmax(logits, 0, out=room).view(-1).index_select(0, own)


def classified(logits: Tensor, own: Tensor) -> Tensor:
    """True where the own class's logit is strictly larger than every other, for so many rows; the logits are used up."""
    flat = logits.view(-1)
    mine = flat.index_select(0, own)
    flat.index_fill_(0, own, -torch.inf)
    return mine > logits[:, : own.shape[0]].amax(0)


def predict(model: nn.Module, x: Any, task: int | None = None, outside: Tensor | None = None) -> Tensor:
    """The class with the largest logit, for every example, on the CPU."""
    found = torch.empty(len(x), dtype=torch.int64)
    with ScoringMode(model):
        for start, raw in logits_in_blocks(model, x):
            count = min(len(raw), len(x) - start)
            logits = raw[:count].clone()
            if task is not None:
                hide(logits.t(), np.full(count, task), outside)
            found[start : start + count] = logits.argmax(1).cpu()
    return found


def prove_exact(model: nn.Module, examples: Examples, outside: Tensor | None = None) -> None:
    """Score some examples alone, in another order and in smaller company; refuse if a single bit changes."""
    n = min(len(examples), block_rows(examples.x) + 37)
    some = examples.take(np.linspace(0, len(examples) - 1, n).astype(np.int64))
    reference = score(model, some, outside)
    scattered = np.random.default_rng(0)
    orders = [scattered.permutation(n), scattered.permutation(n)[: max(1, n // 3)]]
    orders += [scattered.integers(n, size=1) for _ in range(4)]
    for order in orders:
        at = torch.from_numpy(order).to(some.y.device)
        for expected, got in zip(reference, score(model, some.take(order), outside), strict=True):
            _same_bits(expected[at], got)
    with ScoringMode(model):  # as many blocks of logits as are ever taken together
        raw = torch.cat([logits.clone() for _, logits in logits_in_blocks(model, some.x)])[:n]
        logits = raw.t().clone(memory_format=torch.contiguous_format)
        hide(logits, some.task, outside)
        many = torch.arange(chunk_rows(len(logits), block_rows(some.x)), device=raw.device) % n
        own = entries(some.y[many])
        _same_bits(reference[0][many], -log_probability(logits.index_select(1, many), own))


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
