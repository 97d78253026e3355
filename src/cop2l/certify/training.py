"""update(theta, C): the same examples in the same order give the same parameters, bit for bit."""

import math
import os
from collections.abc import Iterator
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
) -> None:
    """Some epochs of mini-batches over the training set, each step on the mean of weight * cross-entropy.

    Mini-batches and dropout are a function of (seed, purpose, task, iteration). `outside` has one row per example
    (task-incremental) or is None. A last mini-batch of one example joins the one before it, because normalisation
    layers cannot train on a single example.
    """
    n, place = len(y), next(model.parameters())
    ends = [*range(options.batch, n, options.batch), n]
    if len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    order = generator(options.seed, f"{purpose} order", task, iteration)
    model.train()
    with private_randomness(place.device, options.seed, purpose, task, iteration):
        for _ in range(epochs):
            shuffled = torch.randperm(n, generator=order).to(y.device)
            whole = len(ends) <= GATHERED  # few mini-batches are gathered in one go
            columns = [part.index_select(0, shuffled) for part in (x, y, weight)] if whole else []
            for start, end in zip([0, *ends], ends, strict=False):
                at = shuffled[start:end]
                some_x, some_y, some_w = (
                    (part[start:end] for part in columns)
                    if whole
                    else (part.index_select(0, at) for part in (x, y, weight))
                )
                logits = model(some_x.to(place.dtype))
                if outside is not None:
                    logits = logits.masked_fill(outside[at], -torch.inf)
                loss = (F.cross_entropy(logits, some_y, reduction="none") * some_w).mean()
                optimiser.step(loss)
    model.eval()


def balanced(y: Tensor) -> Tensor:
    """Weights that give every class present the same total weight, with mean one."""
    counts = torch.bincount(y)
    return len(y) / ((counts > 0).sum() * counts[y]).double()  # whatever the default dtype
