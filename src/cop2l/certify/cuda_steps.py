"""Trains on a CUDA device with recorded CUDA graphs: a training set in fixed memory, and steps of the optimiser."""

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel.exact import Examples
from cop2l.kernel.learning import Optimiser
from cop2l.kernel.options import Options
from cop2l.randomness import derive, private_randomness

GROUPS = (8, 4, 2, 1)
"""How many mini-batches one graph may have."""
STREAMS = 8
"""How many blocks are scored at the same time: one block does not fill a device."""
ALIGNED = 128
"""Mini-batches begin at multiples of this many rows, so that they are aligned like memory of their own."""
STAGE = 2**28
"""The most bytes of the mini-batches of a group."""
TABLE = 2**15
"""About how many rows of mini-batches are sent to the device at once; at least one epoch."""


@cache
def streams(device: torch.device) -> list[Any]:
    """The streams of a device: the first one for recording, the others for blocks that are scored at the same time."""
    new_stream: Any = torch.cuda.Stream
    return [new_stream(device) for _ in range(1 + STREAMS)]


def record(device: torch.device, memory: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Record work as a graph, and return the function that replays it. The work is done once here, to warm up.

    The work reads and writes only fixed memory. `memory` is the pool for its intermediate results and for the workspaces of
    cuBLAS, because the workspace of a stream would be shared with other graphs that were recorded on it.
    """
    if device.type != "cuda":
        return work
    stream, graph = streams(device)[0], torch.cuda.CUDAGraph()
    library: Any = torch._C
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        work()  # libraries set themselves up at the first call, which cannot be recorded
    stream.synchronize()
    collecting = gc.isenabled()
    gc.disable()  # freeing memory would end the recording
    try:
        library._cuda_clearCublasWorkspaces()
        with torch.cuda.stream(stream):
            graph.capture_begin(memory, capture_error_mode="thread_local")
            try:
                work()
            finally:  # also if memory is exhausted: a stream that is still recording can do nothing else
                graph.capture_end()
        library._cuda_clearCublasWorkspaces()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay


@contextmanager
def drawing_from(dice: torch.Generator | None) -> Iterator[None]:
    """Make `dice` itself the default generator of its device, so that recorded work draws from it when it is replayed."""
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
        parameter = next(model.parameters())
        self.device, self.classes, self._model, self._options = parameter.device, classes, model, options
        self.x = torch.zeros((rows, *shape), dtype=parameter.dtype, device=parameter.device)
        self.y, self.weight = self._zeros(rows, torch.int64), self._zeros(rows, parameter.dtype)
        self.hidden = torch.zeros((rows, classes), dtype=torch.bool, device=parameter.device)
        self.counts = self._zeros(classes, torch.int64)
        self.labels = torch.arange(classes, device=parameter.device)
        self.end = self._zeros(1, torch.int64)
        self.stream: Any = None
        self._zero = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        self._balanced, self._masked = False, False
        self._rows = -(-options.batch // ALIGNED) * ALIGNED
        largest = STAGE // (self._rows * self.x[:1].nbytes)
        self._groups = [size for size in GROUPS if size <= max(1, largest)]
        self._most = max(TABLE // self._rows, -(-rows // options.batch), GROUPS[0])
        self._drawn = torch.empty(2 * self._most, options.batch, dtype=torch.int32)
        self._in_order = np.arange(options.batch, dtype=np.int32)
        self._order = torch.Generator()
        self._table = torch.zeros((4 * self._most, self._rows), dtype=torch.int32, device=parameter.device)
        self._next = self._zeros(1, torch.int64)
        self._pairs = torch.arange(2 * GROUPS[0], device=parameter.device).view(-1, 2).t().contiguous()
        self._recorded: dict[Any, Callable[[], None]] = {}
        self._coming, self._there = deque[tuple[int, int, int, bool]](), 0
        self._optimisers: dict[float, Optimiser] = {}
        start = self._zero.clone().requires_grad_()
        torch.autograd.grad(start.exp(), start)  # torch warns if a backward pass begins with a matrix product
        self._random = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())
        on_device = parameter.device.type == "cuda"
        self._dice = torch.Generator(parameter.device) if on_device and self._random else None
        self.memory: Any = torch.cuda.graph_pool_handle() if on_device else None
        new_event: Any = torch.cuda.Event
        self._sent = [
            (
                torch.zeros(self._table.shape, dtype=torch.int32, pin_memory=on_device),
                new_event() if on_device else None,
            )
            for _ in range(2)
        ]

    def wait(self) -> None:
        """Wait until the device has done all requested work."""
        if self.stream is not None:
            self.stream.synchronize()

    def start(self, prior: Examples | None, weight: Tensor, masked_classes: Tensor | None) -> None:
        """Begin a task: the training set is the prior examples, and the optimisers have empty state.

        The weights are ignored if classes are balanced.
        """
        count = 0 if prior is None else len(prior)
        self._balanced, self._masked = prior is not None and self._options.balance, masked_classes is not None
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
            self.weight[:count] = weight
            self.counts.copy_((prior.y[:, None] == self.labels).sum(0))
            if masked_classes is not None:
                self.hidden[:count] = masked_classes[torch.from_numpy(prior.task).to(self.device)]

    def add(self, x: Tensor, y: Tensor, weight: Tensor, hidden: Tensor | None, real: Tensor) -> None:
        """Append examples. Those that are not real are not counted, and are overwritten or never used."""
        at = self.end + torch.arange(len(y), device=self.device)
        strict = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode(0)  # no row is written twice, so that any order gives the same
        try:
            columns = [(self.x, x), (self.y, y), (self.weight, weight)]
            for column, new in [*columns, *([] if hidden is None else [(self.hidden, hidden)])]:
                column.index_copy_(0, at, new)
        finally:
            torch.set_deterministic_debug_mode(strict)
        self.counts.add_(((y[:, None] == self.labels) & real[:, None]).sum(0))
        self.end.add_(len(y))

    def plan(self, sizes: Iterable[tuple[int, int]], epochs: int, lr: float, task: int, purpose: str) -> None:
        """Plan an update for each (iteration, n): epochs over the first n examples, as in `ReferenceLearner.update`."""
        self._epochs, self._lr, self._draw, self._there = epochs, lr, (purpose, task), 0
        self._coming.clear()
        for iteration, n in sizes:
            fit = max(
                1, self._most // -(-n // self._options.batch)
            )  # a whole update is sent at once, if it fits
            for first in range(0, epochs, fit):
                self._coming.append((iteration, n, min(fit, epochs - first), first == 0))
        self._model.train()

    def update(self, iteration: int, n: int) -> None:
        """Run the next update of the plan."""
        left, (purpose, task) = self._epochs * -(-n // self._options.batch), self._draw
        groups = self._split(left) if left <= self._most else self._groups
        recorded = {size: self._steps(size, self._lr) for size in groups}  # before the dice are set
        with self._randomness(self._options.seed, purpose, task, iteration):
            while left:
                self._there = self._there or self._send()
                now = min(left, self._there)
                for size in self._split(now):
                    recorded[size]()
                left, self._there = left - now, self._there - now

    def _split(self, count: int) -> list[int]:
        """The sizes of groups that together have `count` mini-batches."""
        groups = []
        for size in self._groups:
            groups += [size] * (count // size)
            count %= size
        return groups

    def _randomness(self, seed: int, purpose: str, *numbers: int) -> AbstractContextManager[None]:
        """Let dropout draw what it draws in `private_randomness`; recorded work draws from a generator of its own."""
        if self._dice is not None:
            self._dice.manual_seed(derive(seed, purpose, *numbers))
        private = self._random and self._dice is None
        return private_randomness(self.device, seed, purpose, *numbers) if private else nullcontext()

    def _send(self) -> int:
        """Send the next mini-batches of the plan to the device, as many as fit; the result is their number.

        A mini-batch has two rows in the table: the positions of its examples, then minus their shares in its mean, as bits.
        """
        size, end, last, real = self._options.batch, 0, list[int](), list[int]()
        flat, index, (purpose, task) = self._drawn.view(-1), self._drawn.numpy(), self._draw
        while self._coming and end <= self._most:
            iteration, n, epochs, first = self._coming.popleft()
            if first:
                self._order.manual_seed(derive(self._options.seed, f"{purpose} order", task, iteration))
            batches = -(-n // size)
            positions = index[end : end + epochs * batches].reshape(epochs, -1)
            if n > size:
                for begin in range(end * size, (end + epochs * batches) * size, batches * size):
                    torch.randperm(n, generator=self._order, out=flat[begin : begin + n])
            else:
                positions[:, :n] = self._in_order[:n]
            final, filled = positions[:, -size:], n - (batches - 1) * size
            last += range(end + batches - 1, end + epochs * batches, batches)
            real += epochs * [filled]
            while filled < size:  # fill the last mini-batch with its own rows
                count = min(filled, size - filled)
                final[:, filled : filled + count] = final[:, :count]
                filled += count
            end += epochs * batches
        table, sent = self._sent[0]
        self._sent.reverse()
        if sent is not None:
            sent.synchronize()  # wait for the table before the last one, which used the same memory
        both = table.numpy()[: 2 * end, :size]
        both[::2] = index[:end]
        share, counts = both[1::2].view(np.float32), np.array(real)[:, None]
        share[:] = -(1 / size)
        share[last] = np.where(self._in_order < counts, -(1 / counts), -0.0)
        self._table[: 2 * end].copy_(table[: 2 * end], non_blocking=True)
        if sent is not None:
            sent.record(self.stream)
        self._next.zero_()
        return end

    def _steps(self, count: int, lr: float) -> Callable[[], None]:
        """The graph of `count` steps; each replay continues in the table where the last one ended."""
        key = count, lr, self._balanced, self._masked
        if key not in self._recorded:
            self.wait()  # here, not while recording
            optimiser = self._optimisers.setdefault(lr, Optimiser(self._model, self._options, lr))
            state = [*self._model.state_dict().values(), *optimiser.first, self._next]
            before = [value.clone() for value in state]
            self._next.zero_()
            with self._randomness(0, "record"), drawing_from(self._dice):
                replay = record(self.device, self.memory, lambda: self._take(count, optimiser))
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
            self._recorded[key] = replay
        return self._recorded[key]

    def _take(self, count: int, optimiser: Optimiser) -> None:
        """Take steps on the next mini-batches of the table.

        The loss itself is not computed: only its gradient is needed, and that of its last two operations has a closed form.
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
        """The weights of `class_balanced_weights` over the whole training set."""
        total = (self.counts > 0).sum() * self.counts.index_select(0, y)
        return (total.double().reciprocal() * self.counts.sum()).to(self.weight.dtype)

    def _zeros(self, count: int, kind: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=kind, device=self.device)
