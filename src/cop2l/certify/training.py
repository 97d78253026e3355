"""update(theta, C): the same examples in the same order give the same parameters, bit for bit."""

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.certify.options import Options
from cop2l.randomness import generator, private_randomness

# cuBLAS reads this when it starts; without it torch refuses to be deterministic on CUDA.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Inside, torch is deterministic and in full precision, whatever was set; then all is as before.

    `set_float32_matmul_precision("medium")`, for one, rounds products to 16 bits on some processors.
    """
    mode = torch.get_deterministic_debug_mode()  # use_deterministic_algorithms would first import a compiler
    wanted = _settings()
    before = [getattr(place, name) for place, name, _ in wanted]
    try:
        torch.set_deterministic_debug_mode(2)
        for place, name, value in wanted:
            setattr(place, name, value)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (place, name, _), value in zip(wanted, before, strict=True):
            setattr(place, name, value)
        torch.set_deterministic_debug_mode(mode)


def _settings() -> list[tuple[Any, str, Any]]:
    """Where torch keeps its precision and its freedom to choose kernels, and what they must be."""
    cudnn = torch.backends.cudnn
    products = [
        getattr(backend, product)
        for backend in (torch.backends.cuda, cudnn, torch.backends.mkldnn)
        for product in ("matmul", "conv", "rnn")
        if hasattr(getattr(backend, product, None), "fp32_precision")
    ]
    precise: list[tuple[Any, str, Any]] = [(product, "fp32_precision", "ieee") for product in products]
    if not precise:  # before torch 2.9
        precise = [(torch.backends.cuda.matmul, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    return [(cudnn, "deterministic", True), (cudnn, "benchmark", False), *precise]


@contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Inside, torch uses this many threads: a sum that is split otherwise rounds otherwise."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


GATHERED = 8
ROOM = 2**22
"""So many mini-batches are copied together, if they have not more numbers than this."""


class Optimiser:
    """Plain SGD, SGD with momentum 0.9, or Adam (0.9, 0.999, 1e-8), with empty state: as every task begins.

    Written out, because a step of torch.optim on a small model is mostly book-keeping, and loads a compiler.
    """

    def __init__(self, model: nn.Module, options: Options, lr: float | None = None) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._values = [p.detach() for p in self.parameters]  # the same memory
        self._kind, self._lr = options.optimiser, options.lr if lr is None else lr
        self._first = [torch.zeros_like(v) for v in self._values] if self._kind != "sgd" else []
        self._second = [torch.zeros_like(v) for v in self._values] if self._kind == "adam" else []
        self._steps = 0

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        self._steps += 1
        if self._kind == "sgd":
            torch._foreach_add_(self._values, gradients, alpha=-self._lr)
        elif self._kind == "momentum":
            torch._foreach_mul_(self._first, 0.9)
            torch._foreach_add_(self._first, gradients)
            torch._foreach_add_(self._values, self._first, alpha=-self._lr)
        else:
            torch._foreach_lerp_(self._first, gradients, 0.1)
            torch._foreach_mul_(self._second, 0.999)
            torch._foreach_addcmul_(self._second, gradients, gradients, 0.001)
            scale = torch._foreach_sqrt(self._second)
            torch._foreach_div_(scale, math.sqrt(1 - 0.999**self._steps))
            torch._foreach_add_(scale, 1e-8)
            rate = self._lr / (1 - 0.9**self._steps)
            torch._foreach_addcdiv_(self._values, self._first, scale, -rate)


class Batches:
    """Copies mini-batches out of columns, several at a time, always into the same memory.

    For small examples the copy takes less time than the calls that make it, and than the fresh memory it would need.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def of(
        self, columns: list[Tensor], orders: Iterable[Tensor], sizes: list[int]
    ) -> Iterator[tuple[Tensor, ...]]:
        """The columns' rows in one order after the other, in mini-batches of these sizes; each lasts until the next."""
        together = GATHERED if GATHERED * max(sizes) * columns[0][:1].numel() <= ROOM else 1
        device, orders = columns[0].device, iter(orders)
        while some := list(itertools.islice(orders, max(1, together // len(sizes)))):
            at = (torch.cat(some) if len(some) > 1 else some[0]).to(device)
            every = sizes * len(some)
            for first in range(0, len(every), together):
                here = every[first : first + together]
                yield from self._copied(columns, at if here == every else at[: sum(here)], here)
                at = at[sum(here) :]

    def same(self, columns: list[Tensor], times: int) -> Iterator[tuple[Tensor, ...]]:
        """All rows as they stand, again and again: the order of a single mini-batch means nothing."""
        x, *others = columns
        for _ in range(times):
            copy = self._room(x, x.shape[0]).copy_(x)  # the model may change its input in place
            yield copy, *others

    def _room(self, x: Tensor, count: int) -> Tensor:
        if self._memory is None or self._memory.shape[0] < count:
            self._memory = x.new_empty(count + count // 2, *x.shape[1:])  # the training set grows
        return self._memory[:count]

    def _copied(self, columns: list[Tensor], at: Tensor, sizes: list[int]) -> Iterator[tuple[Tensor, ...]]:
        x, *others = columns
        copies = [torch.index_select(x, 0, at, out=self._room(x, at.shape[0]))]
        copies += [column.index_select(0, at) for column in others]
        yield from zip(*(copy.split_with_sizes(sizes) for copy in copies), strict=True)


def update(
    model: nn.Module,
    optimiser: Optimiser,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    outside: Tensor | None,
    options: Options,
    *,
    epochs: int,
    purpose: str,
    task: int,
    iteration: int = 0,
    batches: Batches | None = None,
) -> None:
    """Some epochs of mini-batches over the training set, each step on the mean of weight * cross-entropy.

    The model is in training mode already: switching it takes longer than a step of a small one.
    Mini-batches and dropout are a function of (seed, purpose, task, iteration); a single mini-batch is not shuffled.
    `outside` has one row per example (task-incremental) or is None. A last mini-batch of one example joins the one before
    it, because normalisation layers cannot train on a single example.
    """
    n, place = len(y), next(model.parameters())
    columns = [x, y, weight] if outside is None else [x, y, weight, outside]
    sizes = [min(options.batch, n - start) for start in range(0, n, options.batch)]
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    with private_randomness(place.device, options.seed, purpose, task, iteration):
        batches = batches or Batches()
        if len(sizes) == 1:
            every = batches.same(columns, epochs)
        else:
            order = generator(options.seed, f"{purpose} order", task, iteration)
            every = batches.of(columns, (torch.randperm(n, generator=order) for _ in range(epochs)), sizes)
        for some_x, some_y, some_w, *hidden in every:
            logits = model(some_x.to(place.dtype))
            if hidden:
                logits = logits.masked_fill(hidden[0], -torch.inf)
            optimiser.step(weighted_loss(logits, some_y, some_w))


def weighted_loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """What a step goes down: the mean of weight * cross-entropy (one product: fewer steps back than a mean of products)."""
    losses = F.cross_entropy(logits, y, reduction="none")
    return torch.dot(losses, (weight * (1 / y.shape[0])).to(losses.dtype))


def balanced(y: Tensor) -> Tensor:
    """Weights that give every class present the same total weight, with mean one."""
    counts = torch.bincount(y)
    return len(y) / ((counts > 0).sum() * counts[y]).double()  # whatever the default dtype
