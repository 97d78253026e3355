"""Scores and trains on a CUDA device with recorded CUDA graphs: the bits of the kernel's functions in less time.

A small model computes for microseconds, and launching its operations one by one takes longer than that. A recorded graph is
launched with one call. It reads and writes fixed memory only: the blocks of a pool, a training set, a table of mini-batches. A
new recording is compared with the plain operations, bit for bit, before it is used. If anything differs or cannot be recorded,
the model is computed plainly from then on.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel.exact import Examples, PaddedLinear, digest, model_input, score
from cop2l.kernel.training import Optimiser, SeedWords, hidden_classes, mini_batches, shares, step, train
from cop2l.learner.scoring import is_builtin_model
from cop2l.randomness import derive, private_randomness

LARGEST = 2**32
"""The most bytes of inputs that are copied into fixed memory; more are computed plainly."""
STREAMS = 8
"""How many blocks are scored at the same time: one block does not fill a device."""
TABLE = 2**20
"""How many positions of mini-batches are sent to the device at once; at least those of one epoch."""
FEWEST_ROWS = 2**12
"""The least number of rows of memory for a training set; it grows to powers of two."""
RECORDING: SeedWords = (0, "record", 0, 0)
"""What the randomness of recordings and comparisons is drawn from."""
FAILED: list[Any] = []
"""Graphs whose recording failed: torch's allocator may still ask them whether a stream is recording."""

Scores = list[tuple[Tensor, np.ndarray]]


class Graphs:
    """`score` and `train` of one model, recorded where that is possible; `failure` says why recording was given up."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.failure: str | None = None
        self._tensors = tensors_of(model)
        self._recorder: Recorder | None = None
        self._recordings: dict[type, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Graphs":
        """A copy records anew."""
        return Graphs(memo.get(id(self.model), self.model))

    def score(self, parts: Sequence[Examples], masked_classes: Tensor | None = None) -> Scores:
        """The losses and the errors of each part of a pool, as `cop2l.kernel.exact.score`; the host waits once."""
        key = [*map(id, parts), id(masked_classes)]  # the recording keeps these alive
        recorded = self._recorded(RecordedPool, key, parts, masked_classes)
        return recorded.score() if recorded else [score(self.model, part, masked_classes) for part in parts]

    def train(
        self, optimiser: Optimiser, trained: Examples, weight: Tensor, epochs: int, batch: int, seed_words: SeedWords,
        masked_classes: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Some epochs in training mode, as `cop2l.kernel.training.train`."""
        before = self._recordings.get(RecordedSteps)
        capacity = max(1 << len(trained).bit_length(), before.capacity if before else FEWEST_ROWS)
        key = [optimiser.kind, optimiser.lr, *(p.data_ptr() for p in optimiser.parameters)]
        key += [capacity, batch, trained.x.shape[1:], trained.x.dtype, masked_classes is None]
        arguments = [trained], masked_classes, optimiser, capacity, batch
        if recorded := self._recorded(RecordedSteps, key, *arguments):
            recorded.train(optimiser, trained, weight, epochs, seed_words, masked_classes)
        else:
            train(self.model, optimiser, trained, weight, epochs, batch, seed_words, masked_classes)

    def forget_pool(self) -> None:
        """Free the memory of the pool that was scored last."""
        self._recordings.pop(RecordedPool, None)
        self._tensors = tensors_of(self.model)  # some may be other objects now

    def _recorded(self, kind: Any, key: list[Any], parts: Sequence[Examples], *arguments: Any) -> Any:
        """The recording with this key, a new one if need be; None if these examples are computed plainly."""
        device = next(self.model.parameters()).device
        copied = all(isinstance(part.x, Tensor) and len(part) for part in parts)
        copied = copied and sum(part.x.nbytes for part in parts) <= LARGEST
        if self.failure or not has_graphs(device) or not copied:
            return None
        key += [value.data_ptr() for value in self._tensors]
        if kind not in self._recordings or self._recordings[kind].key != key:
            self._recordings.pop(kind, None)  # its memory is free for the next
            try:
                if self._recorder is None or self._recorder.device != device:
                    self._recorder = Recorder(device)
                self._recordings[kind] = kind(key, self._recorder, self.model, parts, *arguments)
            except Exception as error:  # the plain function raises it again, if it is not about recording
                self._recordings.clear()
                self.failure = f"{type(error).__name__}: {error}"  # not the error, which keeps memory alive
        return self._recordings.get(kind)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a model; listing them takes as long as some steps of training."""
    return [*model.parameters(), *model.buffers()]


def has_graphs(device: torch.device) -> bool:
    """Whether work can be recorded on this device."""
    return device.type == "cuda"


class Recorder:
    """Records work on a device. Recordings share memory for intermediate results, because they are replayed in turn."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.is_cuda = device, device.type == "cuda"
        if self.is_cuda:
            self._generator = torch.Generator(device)
            self._memory: Any = torch.cuda.graph_pool_handle()
            new_stream: Any = torch.cuda.Stream
            self._stream, *self._streams = (new_stream(device) for _ in range(1 + STREAMS))
            zero = torch.zeros(1, device=device)
            self._first = self.record(zero.zero_)  # the memory of recordings ends with the last of them

    def record(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Do work once, to warm up, and record it; the result replays it. On another device the result is the work itself."""
        if not self.is_cuda:
            return work
        graph, was_collecting = torch.cuda.CUDAGraph(), gc.isenabled()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream), self.randomness(RECORDING):
            self._warm_up(work)
            gc.disable()  # freeing memory would end the recording
            torch._C._cuda_clearCublasWorkspaces()  # the graph gets its own, from the memory of recordings
            try:
                graph.capture_begin(self._memory, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    self._end(graph)
            finally:
                torch._C._cuda_clearCublasWorkspaces()
                if was_collecting:
                    gc.enable()
        return graph.replay

    def _warm_up(self, work: Callable[[], Any]) -> None:
        """Do work, and refuse it if the host waits for a result: that cannot be recorded, and trying would harm torch."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            self._stream.synchronize()

    def _end(self, graph: Any) -> None:
        """End a recording. After one that failed, torch before 2.12 would go on taking memory for it."""
        try:
            graph.capture_end()
        except RuntimeError:
            FAILED.append(graph)
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.device.index, self._memory)
            raise

    @contextmanager
    def randomness(self, seed_words: SeedWords) -> Iterator[None]:
        """Inside, plain work and replays draw what `private_randomness` gives.

        On a CUDA device they draw from the generator of recordings, which takes the place of the default one: a graph reads
        it when it is replayed, and a recording that fails leaves it unusable.
        """
        with private_randomness(self.device, *seed_words):
            if not self.is_cuda:
                yield
                return
            default: Any = torch.cuda.default_generators[self.device.index]
            before = default.graphsafe_get_state()
            default.graphsafe_set_state(self._generator)
            try:
                default.manual_seed(derive(*seed_words))
                yield
            finally:
                default.graphsafe_set_state(before)

    def do(self, jobs: Sequence[Callable[[], None]], *, together: bool) -> None:
        """Do jobs, on a device and if they may be done together on several streams."""
        streams = self._streams[: len(jobs)] if self.is_cuda and together else []
        current: Any = torch.cuda.current_stream(self.device) if streams else None
        for stream in streams:
            stream.wait_stream(current)
        for job, stream in zip(jobs, cycle(streams or [None]), strict=False):
            with torch.cuda.stream(stream) if stream else nullcontext():
                job()
        for stream in streams:
            current.wait_stream(stream)


class RecordedPool:
    """The parts of a pool in fixed memory. One call scores them all."""

    def __init__(
        self, key: list[Any], recorder: Recorder, model: nn.Module, parts: Sequence[Examples],
        masked_classes: Tensor | None,
    ) -> None:  # fmt: skip
        self.key, self._recorder, self._model = key, recorder, model.eval()
        self._parts, self._masked_classes = list(parts), masked_classes
        self._is_builtin, before = is_builtin_model(model), host_state(model)
        self._blocks: list[Tensor] = []
        hook = model.register_forward_pre_hook(lambda _, inputs: self._blocks.append(inputs[0].clone()))
        try:
            expected = [score(model, part, masked_classes) for part in parts]
        finally:
            hook.remove()
        require(before == host_state(model), "The model draws or counts on the host.")
        with torch.no_grad():
            logits = model(self._blocks[0].clone())
        size, parameter = len(logits), next(model.parameters())
        self._logits = logits.new_zeros(logits.shape[1], size * len(self._blocks))
        self._hidden = None if masked_classes is None else torch.zeros_like(self._logits, dtype=torch.bool)
        columns, start = [], 0
        for part in parts:
            columns.append(torch.arange(start, start + len(part), device=parameter.device))
            if self._hidden is not None and (hidden := hidden_classes(part, masked_classes)) is not None:
                self._hidden[:, start : start + len(part)] = hidden.t()
            start += -(-len(part) // size) * size
        self._columns = torch.cat(columns)
        self._places = torch.cat([part.y for part in parts]) * self._logits.shape[1] + self._columns
        self._host = torch.zeros(2, len(self._columns), dtype=parameter.dtype, pin_memory=recorder.is_cuda)
        self._replay = recorder.record(self._compute)
        require(bits(chain(*self.score())) == bits(chain(*expected)), "A recorded score has other bits.")

    def score(self) -> Scores:
        """The losses and the errors of each part, on the host."""
        self._replay()
        if self._recorder.is_cuda:
            torch.cuda.current_stream(self._recorder.device).synchronize()
        sizes = [len(part) for part in self._parts]
        losses, errors = (torch.split(row, sizes) for row in self._host.clone())
        return [(loss, error.numpy() > 0) for loss, error in zip(losses, errors, strict=True)]

    def _compute(self) -> None:
        """Do what `cop2l.kernel.exact.score` does with one block, with all of them."""
        jobs = [partial(self._run_block, number) for number in range(len(self._blocks))]
        with torch.no_grad(), PaddedLinear():
            self._recorder.do(jobs, together=self._is_builtin)  # in another model blocks may share memory
        if self._hidden is not None:
            self._logits.masked_fill_(self._hidden, -torch.inf)
        flat = self._logits.view(-1)
        losses = -torch.log_softmax(self._logits, 0).view(-1).index_select(0, self._places)
        logit_of_class = flat.index_select(0, self._places)
        flat.index_fill_(0, self._places, -torch.inf)
        errors = ~(logit_of_class > self._logits.amax(0).index_select(0, self._columns))
        rows = [row.to(self._host.dtype) for row in (losses, errors)]
        self._host.copy_(torch.stack(rows), non_blocking=True)

    def _run_block(self, number: int) -> None:
        block = self._blocks[number]
        logits = self._model(block if self._is_builtin else block.clone())  # a model may write into its input
        self._logits[:, number * len(block) : (number + 1) * len(block)].copy_(logits.t())


class RecordedSteps:
    """A training set and a table of mini-batches in fixed memory. One call takes the step of the next mini-batch."""

    def __init__(
        self, key: list[Any], recorder: Recorder, model: nn.Module, parts: Sequence[Examples],
        masked_classes: Tensor | None, optimiser: Optimiser, capacity: int, batch: int,
    ) -> None:  # fmt: skip
        trained, self._parameter = parts[0], next(model.parameters())
        self.key, self.capacity, self._batch = key, capacity, batch
        self._recorder, self._model = recorder, model
        self._optimiser = Optimiser(model, optimiser.kind, optimiser.lr)
        x, y = model_input(model, trained.x[:1]), trained.y
        self._x, self._y = x.new_zeros(capacity, *x.shape[1:]), y.new_zeros(capacity)
        self._hidden = None if masked_classes is None else masked_classes[:1].repeat(capacity, 1)
        shape = max(TABLE, capacity) // batch + 1, batch
        self._rows, self._factors = y.new_zeros(shape), self._parameter.detach().new_zeros(shape)
        self._next = y.new_zeros(1)
        self._load(trained, masked_classes)
        self._record(torch.arange(batch) % len(trained))

    def _load(self, trained: Examples, masked_classes: Tensor | None) -> None:
        """Copy a training set into fixed memory."""
        self._x[: len(trained)] = trained.x
        self._y[: len(trained)] = trained.y
        if self._hidden is not None and (hidden := hidden_classes(trained, masked_classes)) is not None:
            self._hidden[: len(trained)] = hidden

    def _send(self, rows: Tensor, weight: Tensor, share: Tensor) -> int:
        """Send mini-batches to the device; the result is their number. `share` is the table of one epoch."""
        steps = len(rows)
        on_device = self._rows[:steps].copy_(rows, non_blocking=True)
        weights = weight.index_select(0, on_device.view(-1)).view(-1, *share.shape)
        self._factors[:steps] = (weights * share).view(steps, -1)
        self._next.zero_()
        return steps

    def _record(self, rows: Tensor) -> None:
        """Record a step, and compare it with a plain one on these rows; in the end everything is as it was."""
        parameter, results = self._parameter.detach(), []
        tensors = [value.detach() for value in tensors_of(self._model)]
        tensors += [*self._optimiser.state, self._next]
        self._send(rows[None], parameter.new_ones(len(self._x)), shares(len(rows), len(rows), parameter))
        before = [value.clone() for value in tensors]
        self._model.train()
        try:
            self._replay = self._recorder.record(self._take_step)
            for take_step in (self._replay, self._take_step):
                put_back(tensors, before)
                with self._recorder.randomness(RECORDING):
                    take_step()
                    results.append((bits(tensors), host_state(self._model)))
        finally:
            put_back(tensors, before)
            self._model.eval()
        require(results[0] == results[1], "A recorded step has other bits.")

    def train(
        self, optimiser: Optimiser, trained: Examples, weight: Tensor, epochs: int, seed_words: SeedWords,
        masked_classes: Tensor | None,
    ) -> None:  # fmt: skip
        """Some epochs on these examples; the optimiser begins with its state and gets the new one."""
        n, state, recorded_state = len(trained), optimiser.state, self._optimiser.state
        if optimiser.kind == "sgd":
            state = recorded_state = []
        tables = mini_batches(n, self._batch, epochs, seed_words)
        weight, share = weight.to(self._parameter), shares(n, self._batch, self._parameter)
        self._load(trained, masked_classes)
        put_back(recorded_state, state)
        self._model.train()
        with self._recorder.randomness(seed_words):
            while sent := list(islice(tables, len(self._rows) // len(share))):
                for _ in range(self._send(torch.cat(sent), weight, share)):
                    self._replay()
        self._model.eval()
        put_back(state, recorded_state)

    def _take_step(self) -> None:
        """Take the step of `cop2l.kernel.training.train` on the next mini-batch of the table."""
        rows, factor = (table.index_select(0, self._next).view(-1) for table in (self._rows, self._factors))
        self._next.add_(1)
        x, y = self._x.index_select(0, rows), self._y.index_select(0, rows)
        hidden = None if self._hidden is None else self._hidden.index_select(0, rows)
        step(self._model, self._optimiser, x, y, factor, hidden)


def host_state(model: nn.Module) -> str:
    """What a replay leaves as it is: the host's generator, and numbers that modules keep, such as a count of calls."""
    values = [value for module in model.modules() for value in vars(module).values()]
    return repr(
        [value for value in values if isinstance(value, int | float)] + torch.get_rng_state().tolist()
    )


def put_back(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def bits(tensors: Any) -> str:
    """A digest of the bits of tensors and arrays."""
    return digest({str(number): torch.as_tensor(value) for number, value in enumerate(tensors)})


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise RuntimeError(reason)
