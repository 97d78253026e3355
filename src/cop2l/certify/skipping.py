"""A pool of a linear head that scores only the rows that can matter: those that may be picked, or may have become right or wrong.

The rule. Let W be the weights, each class's bias among them, and x a row with a one behind it. From one iteration to the next the
difference of two logits of a row moves by at most w |x|, where w is the largest distance between two classes' changes of W. Added
up, the w are a path. A row that was looked at when the path was p, now p', has a margin (its own logit less the best other)
within (p' - p) |x| of what it was, and a loss at most that much larger. While its margin must keep its sign, and its loss is
below the k-th largest, it is skipped. Most others are, after a closer look: since all rows were scored W has moved by D, and with
x = t q + r and D = s p + e, where q and p are whole numbers of 8 bits,

    D x = s t (p q) + e (t q) + D r:

the first term is quick and exact, and |t q| times the largest distance between classes of e, and |r| times that of D, bound the
others. What is left is scored, in whole blocks as everywhere: it has the bits that it has among all rows.

Rounding. A computed logit, a sum of d + 1 products in any order, is within g |W_c| |x| of the true one, g = n u / (1 - n u),
n = d + 1, u = 2^-24; a difference of two logits, now and then, within 4 g |x| max |W_c|. Here it is 4 (d + 64) u, for what is
computed here, too. A log_softmax of C classes errs by less than (2 C + 16) u (1 + loss), if exp and log err by a few u; here it
is eight times that. Lengths are 1 % too long. All of this holds while no logit can overflow: else all rows are scored. So is
every row that is no number, or whose weighted loss may be too large for one; the smallest numbers err by less than 1e-44.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.certify.fast import Pool, exact_already, ours
from cop2l.kernel.learning import WIDTH, Examples, block_rows
from cop2l.models import Linear

LOGITS, BLOCKS = 2**18, 2
"""A pool of fewer logits (rows times classes), or of so few blocks, scores all of its rows."""
PATIENCE = 3
"""How often all rows are scored first: to lay them out takes as long as two scorings, and many tasks stop early."""
MEMORY = 2**30
"""Bytes that may be held beside the rows."""
TOGETHER = 2**13
"""Rows that are looked at more closely at a time."""
GUESS = 0.95
"""The k-th largest loss is likely to be at least so much of what it was."""
U, LARGEST = 2.0**-24, 127
HIGHEST = 1e30
"""While no logit can be as large, none is infinite, nor a difference of two."""


def pool_of(
    model: Any, parts: Sequence[Examples], outside: Tensor | None, weights: Sequence[float], k: int
) -> Pool:
    """A pool that skips rows, where the bound holds and it pays; else one that scores all of them."""
    like, rows = next(model.parameters()), sum(map(len, parts))
    if (
        type(model) is Linear and type(model.head) is nn.Linear and model.head.bias is not None and ours(model)
        and "scale" not in model._modules and outside is None
        and like.dtype == torch.get_default_dtype() == torch.float32 and exact_already(like) and like.shape[1] < 2**13
        and all(isinstance(p.x, Tensor) and (p.x.device, p.x.dtype) == (like.device, like.dtype) for p in parts)
        and rows * like.shape[0] > LOGITS and rows > max(BLOCKS * block_rows(parts[0].x), 8 * k)
        and rows * (like.shape[1] + 4 * like.shape[0]) <= MEMORY
        and quick_whole_products()
    ):  # fmt: skip
        return Skipping(model, parts, weights, k)
    return Pool(model, parts, outside, weights)


@cache
def quick_whole_products() -> bool:
    """Whether this processor multiplies whole numbers of 8 bits quickly, and without saturation."""
    most = torch.full((99, WIDTH), LARGEST, dtype=torch.int8)
    both = torch.cat([most[:3], -most[:3]])  # of either sign: the first factor may be shifted to be positive
    exact = torch._int_mm(both, most.t()) == both[:, :1].int() * (WIDTH * LARGEST)
    return torch.cpu._is_vnni_supported() and bool(exact.all())


def widest(rows: Tensor) -> float:
    """The largest distance between two of these rows, and a little more."""
    return 1.01 * float(torch.cdist(rows, rows).max() + 1e-5 * rows.norm(dim=1).max())


class Skipping(Pool):
    """The same errors and the same k largest losses; the losses of rows that were skipped are minus infinity."""

    def __init__(self, model: Any, parts: Sequence[Examples], weights: Sequence[float], k: int) -> None:
        super().__init__(model, parts, None, weights)
        self._head, self._k, self._path = model.head, k, 0.0
        self._wait = self._pause = PATIENCE
        self._extra = self._least = len(self)
        self._now = self._then = self._weights()
        self._norm = float(self._now.norm(dim=1).max())
        self._whole: Tensor | None = None

    def score(self, *, errors: bool) -> tuple[Tensor, np.ndarray]:
        """As `Pool.score`, but nothing is said of closed rows; both last until the next call."""
        self._wait -= 1
        if self._wait >= 0:
            return super().score(errors=errors)
        counted, before, self._now = len(self._parts[0]) if errors else 0, self._now, self._weights()
        self._path += widest(self._now - before)
        self._norm = max(self._norm, float(self._now.norm(dim=1).max()))
        with self._mode:
            if self._whole is None:
                self._lay_out()
            if self._extra >= len(self) // 2 or not self._norm * self._longest < HIGHEST:
                self._score_all()
            elif not self._score_few(counted):
                self._score_all()
                self._wait = self._pause = 2 * self._pause
                self._extra = len(self)
        return self._losses, self._wrong[:counted].numpy()

    def _weights(self) -> Tensor:
        return torch.cat([self._head.weight.detach(), self._head.bias.detach()[:, None]], 1).double()

    def _lay_out(self) -> None:
        """Rows as t q, and the lengths of x and of r."""
        (classes, width), rows = self._head.weight.shape, len(self)
        self._whole = torch.zeros(rows, width + -width % WIDTH, dtype=torch.int8)
        self._logits, self._wrong = torch.empty(rows, classes), torch.zeros(rows, dtype=torch.bool)
        self._until, self._base = torch.zeros(2, rows, dtype=torch.float64)
        self._scale, self._lost, self._length = torch.ones(3, rows)
        self._block = torch.zeros(self._size, *self._parts[0].x.shape[1:])
        for part, (start, end) in zip(self._parts, pairwise(self.starts), strict=True):
            self._closed[start + len(part) : end] = True
            for first in range(0, len(part), self._size):
                x = part.x[first : first + self._size].flatten(1)
                at, memory = slice(start + first, start + first + len(x)), self._block.flatten(1)[: len(x)]
                self._scale[at] = torch.abs(x, out=memory).amax(1).div_(LARGEST).clamp_(min=1e-30)
                torch.div(x, self._scale[at, None], out=memory).round_()
                self._whole[at, :width] = memory
                torch.addcmul(x, memory, self._scale[at, None], value=-1, out=memory)
                self._length[at] = torch.linalg.vector_norm(x, dim=1).hypot(torch.ones(1)).mul_(1.01)
                self._lost[at] = torch.linalg.vector_norm(memory, dim=1).mul_(1.01) + 1e-6 * self._length[at]
        self._longest = float(self._length.max())
        self._slope = self._length.double() * -self._weight.double()

    def _score_all(self) -> None:
        for chunk in self._computed():
            rows = slice(chunk.start, chunk.start + chunk.logits.shape[1])
            self._logits[rows] = chunk.logits.t()
            self._losses[rows] = self._note(rows, chunk.logits, chunk.own)
        self._losses.masked_fill_(self._closed, -torch.inf)
        self._then, self._extra, self._least, self._level = self._now, 0, len(self), self._kth()

    def _score_few(self, counted: int) -> bool:
        """Score the rows that can matter; False where they are too many."""
        self._losses.fill_(-torch.inf)
        level, seen = GUESS * self._level, 0
        for _ in range(2):  # with a guess, then with the k-th largest of what was scored, which can only grow
            self._look_closer(self._unsettled(counted, level))
            rows = self._unsettled(counted, level)
            seen += len(rows)
            if 4 * seen > len(self):
                return False
            self._score_rows(rows)
            level = self._kth()
        self._level, self._least = level, min(self._least, seen)
        self._extra += seen - self._least  # D has grown: when it has cost as much, all are scored again
        return True

    def _kth(self) -> float:
        return float(torch.topk(self._losses, self._k).values[-1])

    def _rounding(self) -> float:
        return 4 * (len(self._now[0]) + 64) * U * self._norm + 1e-30

    def _unsettled(self, counted: int, level: float) -> Tensor:
        """The rows, not scored yet, whose loss may reach the level, or which may be right or wrong."""
        far = self._path + self._rounding()
        rows = ~((self._base + far).mul_(self._slope) < min(level, 1e37) - 1e-44)
        rows[:counted] |= ~(self._until[:counted] > far)
        return torch.nonzero(rows & ~self._closed & (self._losses == -torch.inf))[:, 0]

    def _look_closer(self, rows: Tensor) -> None:
        """Note what products of whole numbers say of these rows."""
        assert self._whole is not None
        moved = self._now - self._then
        weight, shift = moved[:, :-1], moved[:, -1:].float()
        step = weight.abs().amax(1, True).div_(LARGEST).clamp_(min=1e-30)
        whole = (weight / step).round_()
        left = widest(weight - step * whole)
        by_lost, by_length = widest(moved) + left, left + self._rounding()
        factors, step = F.pad(whole, (0, -whole.shape[1] % WIDTH)).to(torch.int8), step.float()
        for some in torch.split(rows, TOGETHER) if len(rows) else ():
            logits = torch._int_mm(factors, self._whole.index_select(0, some).t()) * self._scale[some]
            torch.addcmul(self._logits.index_select(0, some).t(), logits, step, out=logits).add_(shift)
            slack = self._lost[some].mul_(by_lost).add_(self._length[some], alpha=by_length)
            self._note(some, logits, self._y[some] * len(some) + torch.arange(len(some)), slack)

    def _score_rows(self, rows: Tensor) -> None:
        """Score these rows, which ascend, in whole blocks; what stands behind the last of them is not read."""
        for some in torch.split(rows, self._size) if len(rows) else ():
            done = 0
            for part, (start, end) in zip(self._parts, pairwise(self.starts), strict=True):
                here = some[(some >= start) & (some < end)] - start
                torch.index_select(part.x, 0, here, out=self._block[done : done + len(here)])
                done += len(here)
            logits, own = self._model(self._block).t().contiguous(), self._y[some] * self._size
            self._losses[some] = self._note(some, logits, own + torch.arange(len(some)))

    def _note(self, rows: Any, logits: Tensor, own: Tensor, slack: Any = 0.0) -> Tensor:
        """The rows' losses by these logits; and from which path on a margin may change its sign, and how a loss may rise."""
        found = torch.log_softmax(logits, 0).view(-1).index_select(0, own)
        mine = logits.view(-1).index_select(0, own)
        logits.view(-1).index_fill_(0, own, -torch.inf)
        best = logits[:, : len(own)].amax(0)
        self._wrong[rows] = ~(mine > best)
        length, softmax = self._length[rows], 8 * (2 * len(logits) + 16) * U
        self._until[rows] = (((mine - best).abs() - slack) / length).double() + self._path
        self._base[rows] = (((slack - found) * (1 + softmax) + softmax) / length).double() - self._path
        return found * self._weight[rows]
