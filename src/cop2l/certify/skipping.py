"""A pool of a linear head that scores only the rows that can matter: those that may be picked, or may have become right or wrong.

The rule. Let W be the weights, each class's bias among them, and x a row with a one behind it. From one iteration to the next the
difference of two logits of a row moves by at most w |x|, where w is the largest distance between two classes' changes of W. Added
up, the w are a path. A row that was looked at when the path was p, and now is p', has a margin (its own logit less the best other)
within (p' - p) |x| of what it was then, and a loss at most that much larger. While its margin must keep its sign, and its loss is
below the k-th largest, it is skipped. Most others are, after a closer look: since all rows were scored W has moved by D, and with
x = t q + r and D = s p + e, where q and p are whole numbers of 8 bits,

    D x = s t (p q) + e (t q) + D r:

the first term is quick and exact, and |t q| times the largest distance between classes of e, and |r| times that of D, bound the
others. What is left is scored, in whole blocks as everywhere: it has the bits that it has among all rows.

Rounding. A computed logit, a sum of d + 1 products in any order, is within g |W_c| |x| of the true one, g = n u / (1 - n u),
n = d + 1, u = 2^-24; a difference of two logits, now and then, within 4 g |x| max |W_c|. Here it is 4 (d + 64) u, for what is
computed here, too. A log_softmax of C classes errs by less than (2 C + 16) u (1 + loss), if exp and log err by a few u; here it
is eight times that. Lengths are 1 % too long. What is no number, or too large for one, is never below or sure, and so is scored.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.fast import Pool, exact_already, ours
from cop2l.kernel.learning import Examples
from cop2l.models import Linear

ROWS = 6000
"""Of a pool, from which on some are skipped."""
PATIENCE = 4
"""How often all rows are scored first: to lay them out takes as long as two scorings, and many tasks stop early."""
MEMORY = 2**30
"""Bytes that may be held beside the rows."""
TOGETHER = 2**13
"""Rows that are looked at more closely at a time."""
GUESS = 0.95
"""The k-th largest loss is likely to be at least so much of what it was."""
U, LARGEST = 2.0**-24, 127


def pool_of(
    model: nn.Module, parts: Sequence[Examples], outside: Tensor | None, weights: Sequence[float], k: int
) -> Pool:
    """A pool that skips rows where that is exact and pays; else one that scores all."""
    like, rows = next(model.parameters()), sum(map(len, parts))
    if (
        type(model) is Linear and ours(model) and "scale" not in model._modules and outside is None
        and like.dtype == torch.float32 and exact_already(like) and like.shape[1] < 2**13
        and all(isinstance(p.x, Tensor) and (p.x.device, p.x.dtype) == (like.device, like.dtype) for p in parts)
        and rows > max(ROWS, 8 * k) and rows * (like.shape[1] + 4 * like.shape[0]) <= MEMORY
        and quick_whole_products()
    ):  # fmt: skip
        return Skipping(model, parts, weights, k)
    return Pool(model, parts, outside, weights)


@cache
def quick_whole_products() -> bool:
    """Whether this processor multiplies whole numbers of 8 bits quickly, and without saturation."""
    most = torch.full((64, 64), LARGEST, dtype=torch.int8)
    return torch.cpu._is_vnni_supported() and bool((torch._int_mm(most, -most) == -64 * LARGEST**2).all())


def widest(rows: Tensor) -> float:
    """The largest distance between two of these rows, and a little more."""
    return 1.01 * float(torch.cdist(rows, rows).max() + 1e-6 * rows.norm(dim=1).max())


class Skipping(Pool):
    """The same errors and the same k largest losses; those of rows that were skipped are minus infinity."""

    _now: Tensor
    _wrong: np.ndarray

    def __init__(self, model: nn.Module, parts: Sequence[Examples], weights: Sequence[float], k: int) -> None:
        super().__init__(model, parts, None, weights)
        self._head: Any = model.head
        self._k, self._path, self._norm, self._wait, self._laid_out = k, 0.0, 0.0, PATIENCE, False
        self._next = PATIENCE

    def score(self, *, errors: bool) -> tuple[Tensor, np.ndarray]:
        """As `Pool.score`, except that of closed rows nothing is said; both last until the next call."""
        self._wait -= 1
        if self._wait >= 0:
            return super().score(errors=errors)
        counted = len(self._parts[0]) if errors else 0
        with self._mode:
            if not self._laid_out:
                self._lay_out()
            before, self._now = self._now, self._weights()
            self._path += widest(self._now - before)
            self._norm = max(self._norm, float(self._now.norm(dim=1).max()))
            if self._extra >= len(self) // 2:
                self._score_all()
            elif not self._skipped(counted):
                self._score_all()
                self._next = self._wait = 2 * self._next
                self._extra = len(self)
        return self._losses, self._wrong[:counted]

    def _weights(self) -> Tensor:
        return torch.cat([self._head.weight, self._head.bias[:, None]], 1).double()

    def _lay_out(self) -> None:
        """Rows as t q, and the lengths of x and of r."""
        self._laid_out = True
        (classes, width), rows, like = self._head.weight.shape, len(self), self._parts[0].x
        self._now, self._wrong, self._extra = self._weights(), np.zeros(rows, bool), rows
        self._whole, self._logits = torch.zeros(rows, width, dtype=torch.int8), torch.empty(rows, classes)
        self._until, self._base = torch.zeros(2, rows, dtype=torch.float64)
        self._scale, self._lost, self._length = torch.ones(3, rows)
        self._block = torch.zeros(self._size, *like.shape[1:])
        for start, part in zip(self.starts, self._parts, strict=False):
            for first in range(0, len(part), self._size):
                x = part.x[first : first + self._size].flatten(1)
                at, memory = slice(start + first, start + first + len(x)), self._block.flatten(1)[: len(x)]
                self._scale[at] = torch.abs(x, out=memory).amax(1).div_(LARGEST).clamp_(min=1e-30)
                scale = self._scale[at, None]
                self._whole[at] = torch.div(x, scale, out=memory).round_()
                torch.addcmul(x, memory, scale, value=-1, out=memory)
                self._length[at] = torch.linalg.vector_norm(x, dim=1).hypot(torch.ones(1)).mul_(1.01)
                self._lost[at] = torch.linalg.vector_norm(memory, dim=1).mul_(1.01) + 1e-6 * self._length[at]
        self._slope = self._length * -self._weight

    def _score_all(self) -> None:
        for chunk in self._computed():
            rows = slice(chunk.start, chunk.start + chunk.logits.shape[1])
            self._logits[rows] = chunk.logits.t()
            self._losses[rows] = self._note(rows, chunk.logits, chunk.own)
        self._losses.masked_fill_(self._closed, -torch.inf)
        self._then, self._extra, self._least, self._level = self._now, 0, len(self), self._kth()

    def _kth(self) -> float:
        return float(torch.topk(self._losses, self._k).values[-1])

    def _skipped(self, counted: int) -> bool:
        """Score the rows that can matter; False where they are too many for that."""
        self._losses.fill_(-torch.inf)
        level, seen = GUESS * self._level, 0
        for _ in range(2):  # with a guess, and with the k-th largest of what was scored: it can only grow
            self._look_closer(self._open(counted, level))
            rows = self._open(counted, level)
            seen += len(rows)
            if 4 * seen > len(self):
                return False
            self._look(rows)
            level = self._kth()
        self._level, self._least = level, min(self._least, seen)
        self._extra += (
            seen - self._least
        )  # where this adds up to the price of scoring all, D has become large
        return True

    def _open(self, counted: int, level: float) -> Tensor:
        """The rows, not scored yet, whose loss may reach the level, or which may be right or wrong."""
        far = self._path + 4 * (self._head.in_features + 64) * U * self._norm + 1e-30
        rows = ~((self._base + far).mul_(self._slope) < level)
        rows[:counted] |= ~(self._until[:counted] > far)
        return (rows & ~self._closed & (self._losses == -torch.inf)).nonzero()[:, 0]

    def _look_closer(self, rows: Tensor) -> None:
        """Note what products of whole numbers say of these rows."""
        moved = self._now - self._then
        step = moved[:, :-1].abs().amax(1, True).div_(LARGEST).clamp_(min=1e-30)
        whole = (moved[:, :-1] / step).round_()
        left = widest(moved[:, :-1] - step * whole)
        by_lost, by_length = widest(moved) + left, left + 4 * (whole.shape[1] + 64) * U * self._norm
        factors, step, shift = whole.to(torch.int8), step.float(), moved[:, -1:].float()
        for some in torch.split(rows, TOGETHER) if len(rows) else ():
            products = torch._int_mm(factors, self._whole.index_select(0, some).t())
            logits = torch.mul(products, self._scale[some])
            torch.addcmul(self._logits.index_select(0, some).t(), logits, step, out=logits).add_(shift)
            slack = self._lost[some].mul_(by_lost).add_(self._length[some], alpha=by_length)
            self._note(some, logits, self._y[some] * len(some) + torch.arange(len(some)), slack)

    def _look(self, rows: Tensor) -> None:
        """Score these rows, in ascending order, in whole blocks; what stands behind the last of them is not used."""
        for some in torch.split(rows, self._size) if len(rows) else ():
            done = 0
            for start, part in zip(self.starts, self._parts, strict=False):
                here = some[(some >= start) & (some < start + len(part))] - start
                torch.index_select(part.x, 0, here, out=self._block[done : done + len(here)])
                done += len(here)
            logits = self._model(self._block).t().contiguous()
            self._losses[some] = self._note(
                some, logits, self._y[some] * self._size + torch.arange(len(some))
            )

    def _note(self, rows: Any, logits: Tensor, own: Tensor, slack: Any = 0.0) -> Tensor:
        """The rows' losses by these logits; and from which path on their margin may change its sign, and how their loss may rise."""
        found = torch.log_softmax(logits, 0).view(-1).index_select(0, own)
        mine = logits.view(-1).index_select(0, own)
        logits.view(-1).index_fill_(0, own, -torch.inf)
        best = logits[:, : len(own)].amax(0)
        self._wrong[rows if isinstance(rows, slice) else rows.numpy()] = ~(mine > best).numpy()
        length, softmax = self._length[rows], 8 * (2 * len(logits) + 16) * U
        self._until[rows] = (((mine - best).abs() - slack) / length).double() + self._path
        self._base[rows] = (((slack - found) * (1 + softmax) + softmax) / length).double() - self._path
        return found * self._weight[rows]
