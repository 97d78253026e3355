"""Runs mP2L on a CUDA device: its work is recorded once as CUDA graphs, and each graph is replayed with one call.

mP2L trains a small model on few examples thousands of times. Without graphs, launching kernels takes nearly all the time. Graphs
need fixed memory: for the pool, the training set, and tables of the rows of each mini-batch. The device finds the block of the
largest losses and adds it to the training set itself, so that it never waits for the host. The host requests some iterations
ahead, throws away those after the stop, and restores theta from copies. Every product has the shapes of `ReferenceLearner` and
every sum its order, so that the bits are the same.
"""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.cuda_steps import Steps, record, streams
from cop2l.certify.scoring import Top, is_builtin_model, scoring_mode
from cop2l.kernel.exact import LARGE_BLOCK, Examples, block_rows

if TYPE_CHECKING:
    from cop2l.certify.fast import FastLearner

AHEAD = 3
"""How many iterations are requested before the host reads the oldest result."""
PLACES = AHEAD + 2
"""The number of places for results: of the requested iterations, the oldest included, and of the kept one."""
ROUNDED = LARGE_BLOCK
"""The number of rows of a pool is a multiple of this, so that it fills blocks of either size."""
SPARE = 1.25
"""A recorded pool is used again if it has at most this many times the rows needed: recording again takes longer."""


def can_record(engine: "FastLearner", parts: Sequence[Examples | None]) -> bool:
    """Whether this learner can be recorded: float32 on CUDA, a model of cop2l, an optimiser without a step count."""
    parameter, samples = next(engine.model.parameters()), [part for part in parts if part is not None]
    if (
        parameter.device.type != "cuda"
        or parameter.dtype != torch.float32
        or engine.options.optimiser == "adam"
    ):
        return False
    if not is_builtin_model(engine.model) or not all(
        isinstance(part.x, Tensor) and part.x.is_cuda for part in samples
    ):
        return False
    free: int = torch.cuda.mem_get_info(parameter.device)[0]
    needed: int = 4 * parameter.element_size() * sum(part.x.numel() for part in samples)
    return needed < free


class Results:
    """Theta and the report of the newest iterations, each in its own place, which one call fills."""

    def __init__(self, model: nn.Module, steps: Steps, picked: int) -> None:
        self._state, cuda = list(model.state_dict().values()), steps.device.type == "cuda"
        self.report = torch.zeros(2 + picked, dtype=torch.float64, device=steps.device)
        self.theta = [[torch.empty_like(value) for value in self._state] for _ in range(PLACES)]
        self._reports = torch.zeros(PLACES, 2 + picked, dtype=torch.float64, pin_memory=cuda)
        self.reports = self._reports.numpy()
        made: Any = torch.cuda.Event
        self.done = [made() for _ in range(PLACES)] if cuda else []
        self.fill = [record(steps.device, steps.memory, partial(self._fill, at)) for at in range(PLACES)]

    def _fill(self, at: int) -> None:
        torch._foreach_copy_(self.theta[at], self._state)
        self._reports[at].copy_(self.report, non_blocking=True)

    def start(self) -> None:
        """Copy once on this stream, so that the host's memory is not given to others before the stream is done."""
        self._reports[0].copy_(self.report, non_blocking=True)

    def put_back(self, at: int) -> None:
        """Put the theta of a place back into the model."""
        torch._foreach_copy_(self._state, self.theta[at])


class Scores:
    """A pool in fixed memory. One call scores it, reports, and moves the block of the largest losses into the training set."""

    def __init__(self, model: nn.Module, steps: Steps, rows: int, masked: bool, picked: int) -> None:
        self.steps, self._model, self.results, self._k = steps, model, Results(model, steps, picked), picked
        device, kind = steps.device, steps.x.dtype
        self._block = block_rows(steps.x)
        self._x = torch.zeros((rows, *steps.x.shape[1:]), dtype=kind, device=device)
        self._y, self._own, self._later = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._weight, self._trained = (torch.zeros(rows, dtype=kind, device=device) for _ in range(2))
        self._closed, self._uncounted = (torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(2))
        self._logits = torch.zeros((steps.classes, rows), dtype=kind, device=device)
        self._hidden = torch.zeros((rows, steps.classes), dtype=torch.bool, device=device) if masked else None
        self._hidden_columns = torch.zeros_like(self._logits, dtype=torch.bool) if masked else None
        self.replay = record(device, steps.memory, self._score)

    def __len__(self) -> int:
        return len(self._y)

    def load(
        self,
        parts: Sequence[Examples],
        starts: Sequence[int],
        weights: Sequence[tuple[float, float]],
        candidates: np.ndarray,
        masked_classes: Tensor | None,
    ) -> None:
        """Load another pool: its parts begin at the rows `starts`, and each has one weight in picking and one in training."""
        mark, opened = np.zeros(len(self), np.uint64), np.zeros(len(self), bool)
        for value in (self._x, self._y, self._weight, self._trained):
            value.zero_()
        for start, part, (weight, trained) in zip(starts, parts, weights, strict=True):
            end = start + len(part)
            self._x[start:end] = part.x
            self._y[start:end] = part.y
            self._weight[start:end] = -weight
            self._trained[start:end] = trained
            mark[start:end] = part.mark
            opened[start:end] = candidates if start == 0 else True
            if masked_classes is not None and self._hidden is not None and self._hidden_columns is not None:
                self._hidden[start:end] = masked_classes[
                    torch.from_numpy(part.task).to(masked_classes.device)
                ]
                self._hidden_columns[:, start:end] = self._hidden[start:end].t()
        self._closed.copy_(self._pinned(~opened), non_blocking=True)
        at = torch.arange(len(self), device=self._y.device)
        torch.ge(at, len(parts[0]), out=self._uncounted)
        torch.add(self._y * len(self), at, out=self._own)
        later = np.empty(len(mark), np.int64)
        later[np.argsort(mark, kind="stable")] = np.arange(len(mark))[::-1]
        self._later.copy_(self._pinned(later), non_blocking=True)

    def _pinned(self, column: np.ndarray) -> Tensor:
        """A copy in pinned memory, from which the device can copy without waiting."""
        copy = torch.from_numpy(column)
        return copy.pin_memory() if self._y.is_cuda else copy

    def _score(self) -> None:
        with scoring_mode(self._model):
            self._run_blocks()
            if self._hidden_columns is not None:
                self._logits.masked_fill_(self._hidden_columns, -torch.inf)
            found = torch.log_softmax(self._logits, 0).view(-1).index_select(0, self._own)
            losses = (found * self._weight).masked_fill_(self._closed, -torch.inf)
            flat = self._logits.view(-1)
            mine = flat.index_select(0, self._own)
            flat.index_fill_(0, self._own, -torch.inf)
            right = mine > self._logits.amax(0)
            errors = (~(right | self._closed | self._uncounted)).sum()
            picked = torch.topk(_keys(losses, self._later), self._k).indices
            summary = [losses.amax().double().view(1), errors.double().view(1), picked.double()]
            torch.cat(summary, out=self.results.report)
            real = ~self._closed.index_select(0, picked)
            self._closed.index_fill_(0, picked, True)
            columns = [value.index_select(0, picked) for value in (self._x, self._y, self._trained)]
            hidden = None if self._hidden is None else self._hidden.index_select(0, picked)
            self.steps.add(columns[0], columns[1], columns[2], hidden, real)

    def _run_blocks(self) -> None:
        """Compute the logits of every block, several blocks at the same time."""
        starts = range(0, len(self._x), self._block)
        if self.steps.device.type != "cuda":
            for start in starts:
                self._run_block(start)
            return
        current = torch.cuda.current_stream(self.steps.device)
        used = streams(self.steps.device)[1 : 1 + len(starts)]
        for stream in used:
            stream.wait_stream(current)
        for start, stream in zip(starts, itertools.cycle(used), strict=False):
            with torch.cuda.stream(stream):
                self._run_block(start)
        for stream in used:
            current.wait_stream(stream)

    def _run_block(self, start: int) -> None:
        end = start + self._block
        self._logits[:, start:end].copy_(self._model(self._x[start:end]).t())


def _keys(losses: Tensor, later: Tensor) -> Tensor:
    """Different integers in the order of the losses, with ties in the order of `later`; -0 is 0."""
    bits = (losses + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(torch.int64) << 32) + later


class Graphs:
    """The recorded graphs of one learner. They hold no reference to it, so that its memory is freed with it."""

    def __init__(self, engine: "FastLearner") -> None:
        self._model, self._options = engine.model, engine.options
        self._steps: Steps | None = None
        self._scores: Scores | None = None
        self._places = _places(engine.model)

    def fits(self, engine: "FastLearner") -> bool:
        """Whether the model is still in the memory that was recorded."""
        return self._places == _places(engine.model)

    def steps(self, sample: Examples, rows: int) -> Steps:
        """A training set with room for this many rows like those of the sample."""
        model, shape = self._model, sample.x.shape[1:]
        if self._steps is None or self._steps.x.shape[1:] != shape or len(self._steps.x) < rows:
            with scoring_mode(model):
                size, parameter = block_rows(sample.x), next(model.parameters())
                zeros = torch.zeros((size, *shape), dtype=parameter.dtype, device=parameter.device)
                classes = model(zeros).shape[1]
            capacity = 1 << max(11, (rows - 1).bit_length())
            self._steps = Steps(model, self._options, shape, classes, capacity)
        return self._steps

    def scores(self, steps: Steps, rows: int, masked: bool) -> Scores:
        """A pool with room for this many rows."""
        scores, capacity = self._scores, max(1, -(-rows // ROUNDED)) * ROUNDED
        if (
            scores is None
            or scores.steps is not steps
            or not rows <= len(scores) <= max(SPARE * rows, capacity)
        ):
            self._scores = None
            self._scores = scores = Scores(
                self._model, steps, capacity, masked, min(self._options.k, capacity)
            )
        return scores

    def update_on_prior(self, engine: "FastLearner", prior: Examples, epochs: int, lr: float) -> None:
        """Train on the prior examples before the first pick."""
        steps = self.steps(prior, len(prior))
        steps.start(prior, engine.prior_weight(prior), engine.masked_classes)
        steps.plan([(0, len(prior))], epochs, lr, engine.task, "prior")
        steps.update(0, len(prior))
        steps.wait()
        engine.model.eval()


class Iterations:
    """The steps of an iteration of mP2L, with the methods of `fast.Iterations`; iterations are requested some ahead."""

    def __init__(
        self,
        graphs: Graphs,
        engine: "FastLearner",
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
    ) -> None:
        self._engine, self._n, options = engine, len(S), engine.options
        parts = [S] if B is None else [S, B]
        weights = [(1.0, 1.0), (options.pick_omega or options.omega, options.omega)][: len(parts)]
        size = block_rows(S.x)
        self._begin = max(1, -(-len(S) // size)) * size
        starts = [0, self._begin][: len(parts)]
        self._before = 0 if prior is None else len(prior)
        self._open = int(candidates.sum()) + (0 if B is None else len(B))
        most = math.inf if options.max_iterations is None else options.max_iterations
        self._last = int(min(most, -(-self._open // options.k)))
        self._steps = graphs.steps(S, self._before + options.k * (self._last + 2))
        self._scores = graphs.scores(
            self._steps, starts[-1] + len(parts[-1]), engine.masked_classes is not None
        )
        self._scores.load(parts, starts, weights, candidates, engine.masked_classes)
        self._steps.start(prior, engine.prior_weight(prior), engine.masked_classes)
        self._results = self._scores.results
        self._results.start()
        self._free, self._asked = list(range(PLACES)), deque[int]()
        self._next, self._now, self._kept = 0, -1, -1  # the next iteration to request; places of results
        sizes = [(j, self._trained(j)) for j in range(1, self._last + 1)]
        self._steps.plan(sizes, options.epochs, options.lr, engine.task, "update")

    def _trained(self, j: int) -> int:
        """The number of examples that iteration j trains on."""
        return self._before + min(self._engine.options.k * j, self._open)

    def top(self) -> Top:
        """The largest weighted loss, the number of errors, and the block of the k largest losses."""
        k, begin = self._engine.options.k, self._begin
        if self._now not in (-1, self._kept):
            self._free.append(self._now)
        j = self._next - len(self._asked)
        while self._next <= min(j + AHEAD, self._last):
            self._ask()
        self._now = self._asked.popleft()
        if self._results.done:
            self._results.done[self._now].synchronize()
        worst, errors, *picked = self._results.reports[self._now].tolist()
        rows = [int(row) for row in picked[: max(0, self._open - k * j)]]
        rows = [row if row < begin else row - begin + self._n for row in rows]
        return worst, int(errors), np.array(rows, np.int64)

    def train(self, block: np.ndarray, j: int) -> None:
        """Do nothing: the device has picked the same block, and training on it is requested already."""

    def _ask(self) -> None:
        """Request the update of the next iteration, then its scores, without waiting."""
        if self._next:
            self._steps.update(self._next, self._trained(self._next))
        self._scores.replay()
        place = self._free.pop()
        self._results.fill[place]()
        if self._results.done:
            self._results.done[place].record(self._steps.stream)
        self._asked.append(place)
        self._next += 1

    def keep(self) -> None:
        """Keep the copy of theta at the newest iteration."""
        if self._kept >= 0:
            self._free.append(self._kept)
        self._kept = self._now

    def finish(self) -> None:
        """Put back the kept theta, or that of the newest iteration, after all requested work."""
        self._results.put_back(self._now if self._kept < 0 else self._kept)
        self._engine.model.eval()
        self._steps.wait()


def _places(model: nn.Module) -> list[Any]:
    return [(value.data_ptr(), value.dtype, value.shape) for value in model.state_dict().values()]
