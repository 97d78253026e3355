"""The fast path on a CUDA device: recorded once as CUDA graphs, then repeated with one call, and the host is never waited for.

P2L trains a small model on few examples thousands of times, so that launching kernels took nearly all the time. Here all
memory stands still: the pool, the training set, and tables of the rows of each mini-batch. The block on top is found and
added to the training set on the device. Iterations are asked for some ahead; what lies behind the stop is thrown away,
and theta comes back from copies. Every product has the shapes of `Plain`, every sum its order: the bits are the same.
"""

import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.certify.fast import Optimiser, ScoringMode, ours
from cop2l.kernel.learning import LARGE_BLOCK, Examples, block_rows
from cop2l.kernel.options import Options
from cop2l.randomness import derive, private_randomness

if TYPE_CHECKING:
    from cop2l.certify.fast import Fast

AHEAD = 3
"""How many iterations are asked for before the oldest of them is judged."""
PLACES = AHEAD + 2
"""Where results are: of the iterations that were asked for, the oldest with them, and of the one that is kept."""
GROUPS = (8, 4, 2, 1)
"""Numbers of mini-batches that are recorded together."""
STREAMS = 8
"""How many blocks are scored side by side: one of them does not fill a device."""
ALIGNED = 128
"""Mini-batches begin at multiples of so many rows: as aligned as memory of their own would be."""
STAGE = 2**28
"""The most bytes that the mini-batches of a group may take."""
TABLE = 2**15
"""How many rows of mini-batches go to the device at once, about; an epoch always does."""
ROUNDED = LARGE_BLOCK
"""Pools have multiples of so many rows, which are whole blocks of either size."""
SPARE = 1.25
"""A pool may have so many times the rows that it needs: to score some more takes less than to record it again."""
_done_once = set[Any]()
"""Names of the work that was done in this process: its kernels are loaded."""


def able(engine: "Fast", parts: Sequence[Examples | None]) -> bool:
    """Whether this learner can be recorded: float32 on CUDA, one of cop2l's models, an optimiser without a step count."""
    like, some = next(engine.model.parameters()), [part for part in parts if part is not None]
    if like.device.type != "cuda" or like.dtype != torch.float32 or engine.options.optimiser == "adam":
        return False
    if not ours(engine.model) or not all(isinstance(part.x, Tensor) and part.x.is_cuda for part in some):
        return False
    free: int = torch.cuda.mem_get_info(like.device)[0]
    needed: int = 4 * like.element_size() * sum(part.x.numel() for part in some)
    return needed < free


def record(device: torch.device, memory: Any, name: Any, work: Callable[[], None]) -> Callable[[], None]:
    """What repeats this work, which reads and writes fixed memory only, with one call. It may be done once here, as a start.

    Work of the same `name` has the same kernels. `memory` is where its intermediate results lie. The workspaces of cuBLAS lie
    there too: those that belong to a stream would be shared with whatever else was recorded on it, and may run at the same time.
    """
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    if name not in _done_once:  # libraries make themselves ready at the first call, which cannot be recorded
        with torch.cuda.stream(stream):
            work()
        stream.synchronize()
        _done_once.add(name)
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    library: Any = torch._C
    forget = library._cuda_clearCublasWorkspaces
    gc.disable()  # what is freed while recording would end it
    try:
        forget()
        with torch.cuda.stream(stream):
            graph.capture_begin(memory, capture_error_mode="thread_local")
            try:
                work()
            finally:  # also where the memory ends: a stream that goes on recording can do nothing else
                graph.capture_end()
        forget()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay


@contextmanager
def drawing_from(dice: torch.Generator | None) -> Iterator[None]:
    """Inside, the device's default generator is this one, not a copy: what is recorded goes on to draw from it."""
    if dice is None:
        yield
        return
    default: Any = torch.cuda.default_generators[dice.device.index or 0]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(dice)
    try:
        yield
    finally:
        default.graphsafe_set_state(before)


class Steps:
    """A training set in fixed memory, and steps of the optimiser on it."""

    def __init__(
        self, model: nn.Module, options: Options, shape: Sequence[int], classes: int, rows: int
    ) -> None:
        like = next(model.parameters())
        self.device, self.classes, self._model, self._options = like.device, classes, model, options
        self.x = torch.zeros((rows, *shape), dtype=like.dtype, device=like.device)
        self.y, self.weight = self._zeros(rows, torch.int64), self._zeros(rows, like.dtype)
        self.hidden = torch.zeros((rows, classes), dtype=torch.bool, device=like.device)
        self.counts, self.labels = (
            self._zeros(classes, torch.int64),
            torch.arange(classes, device=like.device),
        )
        self.end = self._zeros(1, torch.int64)
        self.stream: Any = None
        self._zero = torch.zeros((), dtype=like.dtype, device=like.device)
        self._balanced, self._masked = False, False
        self._rows = -(-options.batch // ALIGNED) * ALIGNED
        largest = STAGE // (self._rows * self.x[:1].nbytes)
        self._groups = [size for size in GROUPS if size <= max(1, largest)]
        self._most = max(TABLE // self._rows, -(-rows // options.batch), GROUPS[0])
        self._drawn = torch.empty(2 * self._most, options.batch, dtype=torch.int32)
        self._in_order = np.arange(options.batch, dtype=np.int32)
        self._order = torch.Generator()
        self._table = torch.zeros((4 * self._most, self._rows), dtype=torch.int32, device=like.device)
        self._next = self._zeros(1, torch.int64)
        self._pairs = torch.arange(2 * GROUPS[0], device=like.device).view(-1, 2).t().contiguous()
        self._recorded: dict[Any, Callable[[], None]] = {}
        trained = tuple(p.requires_grad for p in model.parameters())
        kind = str(like.device), repr(model), trained, options.batch, options.optimiser
        self.name = *kind, *shape, classes, rows
        self._optimisers: dict[float, Optimiser] = {}
        start = self._zero.clone().requires_grad_()
        torch.autograd.grad(
            start.exp(), start
        )  # torch warns where a backward pass begins with a matrix product
        self._random = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())
        on_device = like.device.type == "cuda"
        self._dice = torch.Generator(like.device) if on_device and self._random else None
        self.memory: Any = torch.cuda.graph_pool_handle() if on_device else None
        made: Any = torch.cuda.Event
        self._sent = [
            (
                torch.zeros(self._table.shape, dtype=torch.int32, pin_memory=on_device),
                made() if on_device else None,
            )
            for _ in range(2)
        ]

    def wait(self) -> None:
        """Until the device has done all that was asked for."""
        if self.stream is not None:
            self.stream.synchronize()

    def start(self, prior: Examples | None, outside: Tensor | None) -> None:
        """The training set is the prior examples; every optimiser has empty state."""
        count = 0 if prior is None else len(prior)
        self._balanced, self._masked = prior is not None and self._options.balance, outside is not None
        if self.device.type == "cuda":
            self.stream = torch.cuda.current_stream(self.device)
        self.counts.zero_()
        self.end.fill_(count)
        for optimiser in self._optimisers.values():
            for value in optimiser.first:
                value.zero_()
        if prior is not None:
            self.x[:count] = prior.x
            self.y[:count] = prior.y
            self.weight[:count] = 1
            self.counts.copy_((prior.y[:, None] == self.labels).sum(0))
            if outside is not None:
                self.hidden[:count] = outside[torch.from_numpy(prior.task).to(self.device)]

    def add(self, x: Tensor, y: Tensor, weight: Tensor, hidden: Tensor | None, real: Tensor) -> None:
        """Examples behind the others; those that are not real are counted nowhere, and overwritten or never used."""
        at = self.end + torch.arange(len(y), device=self.device)
        strict = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode(0)  # no row is written twice: any order gives the same
        try:
            columns = [(self.x, x), (self.y, y), (self.weight, weight)]
            for column, new in [*columns, *([] if hidden is None else [(self.hidden, hidden)])]:
                column.index_copy_(0, at, new)
        finally:
            torch.set_deterministic_debug_mode(strict)
        self.counts.add_(((y[:, None] == self.labels) & real[:, None]).sum(0))
        self.end.add_(len(y))

    def updates(
        self, sizes: Iterable[tuple[int, int]], epochs: int, lr: float, task: int, purpose: str
    ) -> Iterator[None]:
        """For each (iteration, n): epochs over the first n examples, as `Plain.update` has them; one update at a time."""
        sizes, ahead = itertools.tee(sizes)
        seed, coming, there = self._options.seed, self._coming(ahead, epochs, task, purpose), 0
        self._model.train()
        for iteration, n in sizes:
            left = epochs * -(-n // self._options.batch)
            groups = self._split(left) if left <= self._most else self._groups
            recorded = {size: self._steps(size, lr) for size in groups}  # before the dice are set
            with self._randomness(seed, purpose, task, iteration):
                while left:
                    there = there or self._send(coming)
                    now = min(left, there)
                    for size in self._split(now):
                        recorded[size]()
                    left, there = left - now, there - now
            yield

    def _split(self, count: int) -> list[int]:
        """So many mini-batches as groups that are recorded together."""
        groups = []
        for size in self._groups:
            groups += [size] * (count // size)
            count %= size
        return groups

    def _coming(
        self, sizes: Iterable[tuple[int, int]], epochs: int, task: int, purpose: str
    ) -> Iterator[tuple[int, int]]:
        """How many epochs over how many examples come, an update at a time if it fits; their order is drawn next."""
        for iteration, n in sizes:
            if n > self._options.batch:
                self._order.manual_seed(derive(self._options.seed, f"{purpose} order", task, iteration))
            fit = max(1, self._most // -(-n // self._options.batch))
            for done in range(0, epochs, fit):
                yield min(fit, epochs - done), n

    def _randomness(self, seed: int, purpose: str, *numbers: int) -> AbstractContextManager[None]:
        """Inside, dropout draws what it draws in `private_randomness`; what is recorded draws from a generator of its own."""
        if self._dice is not None:
            self._dice.manual_seed(derive(seed, purpose, *numbers))
        private = self._random and self._dice is None
        return private_randomness(self.device, seed, purpose, *numbers) if private else nullcontext()

    def _send(self, coming: Iterator[tuple[int, int]]) -> int:
        """The mini-batches of what comes, as many as fit, go to the device; how many they are.

        Of each: its rows, then minus their shares in its mean, as bits; the gradient of the loss is minus these.
        """
        size, end, last, real = self._options.batch, 0, list[int](), list[int]()
        flat, index = self._drawn.view(-1), self._drawn.numpy()
        for epochs, n in coming:
            batches = -(-n // size)
            own = index[end : end + epochs * batches].reshape(epochs, -1)
            if n > size:
                for begin in range(end * size, (end + epochs * batches) * size, batches * size):
                    torch.randperm(n, generator=self._order, out=flat[begin : begin + n])
            else:
                own[:, :n] = self._in_order[:n]
            final, filled = own[:, -size:], n - (batches - 1) * size
            last += range(end + batches - 1, end + epochs * batches, batches)
            real += epochs * [filled]
            while filled < size:  # with its own rows
                more = min(filled, size - filled)
                final[:, filled : filled + more] = final[:, :more]
                filled += more
            end += epochs * batches
            if end > self._most:
                break
        table, sent = self._sent[0]
        self._sent.reverse()
        if sent is not None:
            sent.synchronize()  # it went two tables ago
        both = table.numpy()[: 2 * end, :size]
        both[::2] = index[:end]
        share, count = both[1::2].view(np.float32), np.array(real)[:, None]
        share[:] = -(1 / size)
        share[last] = np.where(self._in_order < count, -(1 / count), -0.0)
        self._table[: 2 * end].copy_(table[: 2 * end], non_blocking=True)
        if sent is not None:
            sent.record(self.stream)
        self._next.zero_()
        return end

    def _steps(self, count: int, lr: float) -> Callable[[], None]:
        """So many steps, recorded: each call goes on in the table where the one before ended."""
        key = count, lr, self._balanced, self._masked
        if key not in self._recorded:
            self.wait()  # here, not while recording
            optimiser = self._optimisers.setdefault(lr, Optimiser(self._model, self._options, lr))
            state = [*self._model.state_dict().values(), *optimiser.first, self._next]
            before = [value.clone() for value in state]
            self._next.zero_()
            with self._randomness(0, "record"), drawing_from(self._dice):
                replay = record(
                    self.device, self.memory, (*self.name, *key), lambda: self._take(count, optimiser)
                )
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
            self._recorded[key] = replay
        return self._recorded[key]

    def _take(self, count: int, optimiser: Optimiser) -> None:
        """Steps on the next mini-batches of the table.

        The value of the loss is not needed, and the gradient of its last two operations is known beforehand.
        """
        at = (self._next + self._pairs[:, :count]).view(-1)
        size, (rows, share) = self._options.batch, self._table.index_select(0, at).view(2, -1)
        self._next.add_(2 * count)
        y = self.y.index_select(0, rows)
        weight = self._class_weight(y) if self._balanced else self.weight.index_select(0, rows)
        factor = weight * share.view(weight.dtype)
        gradient = torch.where(y[:, None] == self.labels, factor[:, None], self._zero)
        columns = [self.x.index_select(0, rows), gradient]
        if self._masked:
            columns.append(self.hidden.index_select(0, rows))
        for x, of_loss, *hidden in zip(
            *(part.view(count, -1, *part.shape[1:])[:, :size] for part in columns), strict=True
        ):
            logits = self._model(x)
            if hidden:
                logits = logits.masked_fill(hidden[0], -torch.inf)
            of_logits = torch.ops.aten._log_softmax_backward_data(
                of_loss, torch.log_softmax(logits.detach(), 1), 1, logits.dtype
            )
            optimiser.descend(
                torch.autograd.grad(
                    logits, optimiser.parameters, of_logits, allow_unused=True, materialize_grads=True
                )
            )

    def _class_weight(self, y: Tensor) -> Tensor:
        """As `balanced` gives it for the whole training set."""
        total = (self.counts > 0).sum() * self.counts.index_select(0, y)
        return (total.double().reciprocal() * self.counts.sum()).to(self.weight.dtype)

    def _zeros(self, count: int, kind: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=kind, device=self.device)


class Results:
    """Theta and the report of the newest iterations, each in a place of its own, which one call fills."""

    def __init__(self, model: nn.Module, steps: Steps, picked: int) -> None:
        self._state, cuda = list(model.state_dict().values()), steps.device.type == "cuda"
        self.report = torch.zeros(2 + picked, dtype=torch.float64, device=steps.device)
        self.theta = [[torch.empty_like(value) for value in self._state] for _ in range(PLACES)]
        self._reports = torch.zeros(PLACES, 2 + picked, dtype=torch.float64, pin_memory=cuda)
        self.reports = self._reports.numpy()
        made: Any = torch.cuda.Event
        self.done = [made() for _ in range(PLACES)] if cuda else []
        name = (*steps.name, picked)
        self.fill = [
            record(steps.device, steps.memory, name, partial(self._fill, at)) for at in range(PLACES)
        ]

    def _fill(self, at: int) -> None:
        torch._foreach_copy_(self.theta[at], self._state)
        self._reports[at].copy_(self.report, non_blocking=True)

    def start(self) -> None:
        """From here on the host's memory belongs to this stream too: nobody else gets it before the stream is done."""
        self._reports[0].copy_(self.report, non_blocking=True)

    def put_back(self, at: int) -> None:
        """Theta is again what it was then."""
        torch._foreach_copy_(self._state, self.theta[at])


class Scores:
    """A pool in fixed memory; one call scores it, reports, and moves the block on top into the training set."""

    def __init__(self, model: nn.Module, steps: Steps, rows: int, masked: bool, results: Results) -> None:
        self.steps, self._model, self._mode = steps, model, ScoringMode(model)
        device, kind = steps.device, steps.x.dtype
        self._block, self.results, self._k = block_rows(steps.x), results, len(results.report) - 2
        self._x = torch.zeros((rows, *steps.x.shape[1:]), dtype=kind, device=device)
        self._y, self._own, self._later = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._weight, self._trained = (torch.zeros(rows, dtype=kind, device=device) for _ in range(2))
        self._closed, self._uncounted = (torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(2))
        self._logits = torch.zeros((steps.classes, rows), dtype=kind, device=device)
        self._hidden = torch.zeros((rows, steps.classes), dtype=torch.bool, device=device) if masked else None
        self._hidden_columns = torch.zeros_like(self._logits, dtype=torch.bool) if masked else None
        made: Any = torch.cuda.Stream
        self._streams = [made(device) for _ in range(STREAMS)] if device.type == "cuda" else []
        name = (*steps.name, rows, masked, self._k, "scores")
        self.replay = record(device, steps.memory, name, self._score)

    def __len__(self) -> int:
        return len(self._y)

    def load(
        self,
        parts: Sequence[Examples],
        starts: Sequence[int],
        weights: Sequence[tuple[float, float]],
        candidates: np.ndarray,
        outside: Tensor | None,
    ) -> None:
        """Another pool, whose parts begin at these rows; each has one weight in picking and one in training."""
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
            if outside is not None and self._hidden is not None and self._hidden_columns is not None:
                self._hidden[start:end] = outside[torch.from_numpy(part.task).to(outside.device)]
                self._hidden_columns[:, start:end] = self._hidden[start:end].t()
        self._closed.copy_(self._pinned(~opened), non_blocking=True)
        at = torch.arange(len(self), device=self._y.device)
        torch.ge(at, len(parts[0]), out=self._uncounted)
        torch.add(self._y * len(self), at, out=self._own)
        later = np.empty(len(mark), np.int64)
        later[np.argsort(mark, kind="stable")] = np.arange(len(mark))[::-1]
        self._later.copy_(self._pinned(later), non_blocking=True)

    def _pinned(self, column: np.ndarray) -> Tensor:
        """A copy that need not be waited for."""
        copy = torch.from_numpy(column)
        return copy.pin_memory() if self._y.is_cuda else copy

    def _score(self) -> None:
        with self._mode:
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
        """The logits of every block, several side by side."""
        starts = range(0, len(self._x), self._block)
        if not self._streams:
            for start in starts:
                self._run_block(start)
            return
        here = torch.cuda.current_stream(self.steps.device)
        used = self._streams[: len(starts)]
        for stream in used:
            stream.wait_stream(here)
        for start, stream in zip(starts, itertools.cycle(used), strict=False):
            with torch.cuda.stream(stream):
                self._run_block(start)
        for stream in used:
            here.wait_stream(stream)

    def _run_block(self, start: int) -> None:
        end = start + self._block
        self._logits[:, start:end].copy_(self._model(self._x[start:end]).t())


def _keys(losses: Tensor, later: Tensor) -> Tensor:
    """Whole numbers in the order of (loss, then smaller mark): no two are equal. -0 is 0."""
    bits = (losses + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(torch.int64) << 32) + later


class Graphs:
    """What is recorded for one learner, from task to task. It does not hold the learner: memory is free when that is gone."""

    def __init__(self, engine: "Fast") -> None:
        self._model, self._options = engine.model, engine.options
        self._steps: Steps | None = None
        self._scores: Scores | None = None
        self._results: Results | None = None
        self._places = _places(engine.model)

    def fits(self, engine: "Fast") -> bool:
        """Whether the model is still where it was recorded."""
        return self._places == _places(engine.model)

    def steps(self, like: Examples, rows: int) -> Steps:
        """A training set with room for so many rows."""
        model, shape = self._model, like.x.shape[1:]
        if self._steps is None or self._steps.x.shape[1:] != shape or len(self._steps.x) < rows:
            with ScoringMode(model):
                size, first = block_rows(like.x), next(model.parameters())
                rows_of_x = torch.zeros((size, *shape), dtype=first.dtype, device=first.device)
                classes = model(rows_of_x).shape[1]
            room = 1 << max(11, (rows - 1).bit_length())
            self._steps = Steps(model, self._options, shape, classes, room)
        return self._steps

    def scores(self, steps: Steps, rows: int, masked: bool) -> Scores:
        """A pool with room for so many rows."""
        found, room = self._scores, max(1, -(-rows // ROUNDED)) * ROUNDED
        picked = min(self._options.k, room)
        if self._results is None or len(self._results.report) != 2 + picked:
            self._results = Results(self._model, steps, picked)
        if (
            found is None
            or found.steps is not steps
            or found.results is not self._results
            or not rows <= len(found) <= max(SPARE * rows, room)
        ):
            self._scores = None  # its memory first
            self._scores = found = Scores(self._model, steps, room, masked, self._results)
        return found

    def update_on_prior(self, engine: "Fast", prior: Examples, epochs: int, lr: float) -> None:
        """The epochs over the prior examples before the first pick."""
        steps = self.steps(prior, len(prior))
        steps.start(prior, engine.outside)
        for _ in steps.updates([(0, len(prior))], epochs, lr, engine.task, "prior"):
            pass
        steps.wait()
        engine.model.eval()


class Rounds:
    """The iterations of mP2L, as `fast.Rounds` has them, asked for some ahead."""

    def __init__(
        self,
        graphs: Graphs,
        engine: "Fast",
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        longest: float,
    ) -> None:
        self._engine, self._n, options = engine, len(S), engine.options
        parts = [S] if B is None else [S, B]
        weights = [(1.0, 1.0), (options.pick_omega or options.omega, options.omega)][: len(parts)]
        size = block_rows(S.x)
        self._begin = max(1, -(-len(S) // size)) * size
        starts = [0, self._begin][: len(parts)]
        self._before = 0 if prior is None else len(prior)
        self._open = int(candidates.sum()) + (0 if B is None else len(B))
        self._last = int(min(longest, -(-self._open // options.k)))
        rows = self._before + options.k * (self._last + 2)
        self._steps = graphs.steps(S, rows)
        self._scores = graphs.scores(self._steps, starts[-1] + len(parts[-1]), engine.outside is not None)
        self._scores.load(parts, starts, weights, candidates, engine.outside)
        self._steps.start(prior, engine.outside)
        self._results = self._scores.results
        self._results.start()
        self._done, self._free = self._results.done, list(range(PLACES))
        self._now, self._kept = 0, -1
        before, most = self._before, self._open
        counts = ((j, before + min(options.k * j, most)) for j in range(1, self._last + 1))
        self._updates = self._steps.updates(counts, options.epochs, options.lr, engine.task, "update")

    def __iter__(self) -> Iterator[Any]:
        """Each iteration."""
        k, begin, reports = self._engine.options.k, self._begin, self._results.reports
        asked: deque[int] = deque()
        for j in itertools.count():
            for ahead in range(j + len(asked), min(j + AHEAD, self._last) + 1):
                asked.append(self._ask(ahead))
            self._now = asked.popleft()
            if self._done:
                self._done[self._now].synchronize()
            worst, errors, *picked = reports[self._now].tolist()
            rows = [int(row) for row in picked[: max(0, self._open - k * j)]]
            rows = [row if row < begin else row - begin + self._n for row in rows]
            yield worst, int(errors), np.array(rows, np.int64)
            if self._now != self._kept:
                self._free.append(self._now)

    def _ask(self, j: int) -> int:
        """The update of iteration j, then its scores; where its results will be. Nothing is waited for."""
        if j:
            next(self._updates)
        self._scores.replay()
        place = self._free.pop()
        self._results.fill[place]()
        if self._done:
            self._done[place].record(self._steps.stream)
        return place

    def keep(self) -> None:
        """Remember theta as it is at the newest iteration."""
        if self._kept >= 0:
            self._free.append(self._kept)
        self._kept = self._now

    def finish(self) -> None:
        """Theta goes back to what was kept, or to the newest iteration, after all else."""
        self._results.put_back(self._now if self._kept < 0 else self._kept)
        self._engine.model.eval()
        self._steps.wait()


def _places(model: nn.Module) -> list[Any]:
    return [(value.data_ptr(), value.dtype, value.shape) for value in model.state_dict().values()]
