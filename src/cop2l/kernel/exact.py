"""Exact arithmetic, examples, and their scores: bits that are a function of an example and the model alone.

Every forward pass that scores has the same number of rows, in full precision and in a fixed order of sums.
"""

import hashlib
import math
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cop2l.kernel.options import Options, require
from cop2l.kernel.samples import numbers
from cop2l.randomness import marks

# cuBLAS reads this when it starts; without it torch refuses to be deterministic on CUDA.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

Rows = np.ndarray
NONE: Rows = np.empty(0, np.int64)
BITS = 3
"""The number of this specification of the learned bits: it grows when `learning` gives other ones."""

# ---- exact arithmetic


@contextmanager
def exact_arithmetic(threads: int) -> Iterator[None]:
    """Inside, torch is deterministic, in full precision and uses so many threads, whatever was set; then all is as before.

    New memory is not filled with NaN, which takes longer than most of what is done in it.
    """
    cuda, cudnn, mkldnn, memory = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn, torch.utils.deterministic
    products = [getattr(backend, name, None) for backend in (cuda, cudnn, mkldnn) for name in ("matmul", "conv", "rnn")]
    wanted: list[tuple[Any, str, Any]] = [(p, "fp32_precision", "ieee") for p in products if hasattr(p, "fp32_precision")]
    if not wanted:  # before torch 2.9
        wanted = [(cuda.matmul, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    wanted += [(cudnn, "deterministic", True), (cudnn, "benchmark", False), (memory, "fill_uninitialized_memory", False)]
    before = [getattr(owner, name) for owner, name, _ in wanted]
    mode, count = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    try:
        torch.set_deterministic_debug_mode(2)
        torch.set_num_threads(threads)
        for owner, name, value in wanted:
            setattr(owner, name, value)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (owner, name, _), value in zip(wanted, before, strict=True):
            setattr(owner, name, value)
        torch.set_num_threads(count)
        torch.set_deterministic_debug_mode(mode)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors: names, types, shapes and bits."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        flat = value.clone(memory_format=torch.contiguous_format).view(-1)  # one element may have any stride
        whole.update(flat.view(torch.uint8).numpy().data)
    return whole.hexdigest()


def size_of(model: nn.Module) -> int:
    """How many numbers are learned or stored as parameters."""
    return sum(p.numel() for p in model.parameters())


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, "") or platform.processor() or "unknown"  # which starts a process


def machine(model: nn.Module) -> str:
    """What must be equal for the bits to be made again; the number of threads is set, and the rest changes no bits."""
    like, cpu = next(model.parameters()), torch.backends.cpu.get_cpu_capability()
    device = torch.cuda.get_device_name(like.device) if like.device.type == "cuda" else like.device.type
    system = f"{platform.system()} {platform.machine()}, {processor()}, {cpu}"
    return f"bits {BITS}, torch {torch.__version__}, {system}, {device}, {str(like.dtype).removeprefix('torch.')}"


# ---- examples


@dataclass(frozen=True)
class Examples:
    """Rows of one or several tasks: z = (x, y, mark), and where each comes from. `x` may be a memory map."""

    x: Any
    y: Tensor
    task: Rows
    row: Rows
    mark: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def take(self, at: np.ndarray) -> "Examples":
        """The rows at these positions, copied to the device of y, in the plain memory layout."""
        where = torch.from_numpy(np.ascontiguousarray(at)).to(self.y.device, non_blocking=True)
        rows = tensor(self.x[where.to(self.x.device) if isinstance(self.x, Tensor) else at])
        # another layout (channels last) may be rounded differently
        x = torch.empty(rows.shape, dtype=rows.dtype, device=where.device).copy_(rows)
        return Examples(x, self.y[where], self.task[at], self.row[at], self.mark[at])


def tensor(rows: Any) -> Tensor:
    """Rows of x as a tensor; of an array, a copy where torch could not share it."""
    if isinstance(rows, Tensor):
        return rows.detach()
    return torch.from_numpy(np.require(rows, rows.dtype.newbyteorder("="), ["C", "W"]))


def sample(x: Any, y: Tensor, task: int, seed: int, rows: Rows | None = None) -> Examples:
    """The sample of a task (or these rows of it). A mark is a 64-bit function of (seed, task, row), drawn before the data."""
    rows = np.arange(len(y), dtype=np.int64) if rows is None else rows
    every = marks(seed, "mark", task, n=int(rows.max()) + 1 if len(rows) else 0)
    return Examples(x, y, np.full(len(rows), task, np.int64), rows, every[rows])


def join(parts: Sequence[Examples | None]) -> Examples | None:
    """All examples of the parts, in order; None if there are none."""
    some = [part for part in parts if part is not None and len(part)]
    if not some:
        return None
    columns = [np.concatenate([getattr(part, name) for part in some]) for name in ("task", "row", "mark")]
    return Examples(torch.cat([part.x for part in some]), torch.cat([part.y for part in some]), *columns)


def gather(S: Examples, B: Examples | None, C: Rows) -> Examples | None:
    """The examples at these positions of the pool, S first, then B, in this order."""
    of_S, of_B = np.flatnonzero(len(S) > C), np.flatnonzero(len(S) <= C)
    if B is None or not len(of_B):
        return S.take(C)
    both = join([S.take(C[of_S]), B.take(C[of_B] - len(S))])
    return both and both.take(np.argsort(np.concatenate([of_S, of_B])))  # back into the order of C


def certified_rows(rows: int, task: int, options: Options) -> np.ndarray:
    """A mask of the rows of a task: True for the certified part S_t, False for the prior part P_t.

    The prior part is the floor(prior * rows) rows with the smallest second marks: fixed in advance, the same number for
    equal tasks, and independent of the first marks and of the data.
    """
    certified = np.ones(rows, bool)
    if options.prior:
        certified[np.argsort(marks(options.seed, "prior", task, n=rows), kind="stable")[: int(options.prior * rows)]] = False
    return certified


def threshold(n: int, after: int, options: Options) -> np.uint64:
    """2^64 tau, tau = m'/(s n): of the n examples not picked at their own task, those with a smaller mark are kept after task s.

    Given the tasks before, the number kept of each is a sum of independent indicators of mean m'/s at most, where no losses
    are equal; m' = a - sqrt(9.22 a), a = m + 1. By Chernoff all together reach a with probability at most
    exp(-(a - m')^2 / 2a) <= 1/100 after any given task.
    """
    a = options.memory - options.prior_memory_size + 1
    mean = max(0.0, a - math.sqrt(9.22 * a))
    return np.uint64(min(int(mean / (after * n) * 2.0**64), 2**64 - 1)) if n else np.uint64(0)


def withheld_rows(rows: int, task: int, share: float, seed: int) -> np.ndarray:
    """A mask of the rows of a task: True for those that a learner is never given."""
    return np.asarray(marks(seed, "holdout", task, n=rows) < np.uint64(share * 2.0**64))


# ---- scoring: every forward pass has the same number of rows


FEW, SMALL_BLOCK, LARGE_BLOCK, WIDTH = 512, 256, 2048, 16


def block_rows(x: Any) -> int:
    """How many rows a block of such examples has: a function of the shape of one example alone."""
    return LARGE_BLOCK if math.prod(x.shape[1:]) <= FEW else SMALL_BLOCK


def pad_rows(rows: Tensor, size: int, memory: Tensor | None = None) -> Tensor:
    """So many rows: these, then zeros; in memory that is there already, if it is given."""
    memory = rows.new_empty((size, *rows.shape[1:])) if memory is None else memory
    memory[: len(rows)], memory[len(rows) :] = rows, 0
    return memory


def model_input(model: nn.Module, x: Tensor) -> Tensor:
    """These rows where the model is: real numbers in its own precision, and integers as they are."""
    like = next(model.parameters())
    return x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)


class PaddedLinear(TorchFunctionMode):
    """Inside, every linear layer's inner width is a multiple of 16; the added zeros change no sum."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fill the width of an input and a weight."""
        if func is F.linear and len(args) > 1 and (missing := -args[1].shape[-1] % WIDTH):
            args = (F.pad(args[0], (0, missing)), F.pad(args[1], (0, missing)), *args[2:])
        return func(*args, **(kwargs or {}))


def head_masks(heads: Sequence[Sequence[int]], classes: int, scenario: str, device: Any) -> Tensor | None:
    """Task-incremental: row t says which classes do not belong to task t's head (row 0 is unused). Otherwise None."""
    masked_classes = (~np.isin(np.arange(classes), head) for head in ([], *heads))
    return torch.from_numpy(np.stack([*masked_classes])).to(device) if scenario == "task-incremental" else None


def logits_of(model: nn.Module, part: Examples) -> Iterator[Tensor]:
    """The logits of every block, one column for each example, in evaluation mode, which is left on."""
    size = block_rows(part.x)
    with torch.no_grad():
        block = model_input(model.eval(), tensor(part.x[:0])).new_empty((size, *part.x.shape[1:]))
        for start in range(0, len(part), size):
            pad_rows(tensor(part.x[start : start + size]), size, block)
            with PaddedLinear():  # here alone: inside, every call of torch takes longer
                logits = model(block.detach())  # it may reshape what it is given
            yield logits.t().contiguous()


def score(model: nn.Module, part: Examples, masked_classes: Tensor | None = None) -> tuple[Tensor, np.ndarray]:
    """The cross-entropy of every example, and whether it is misclassified.

    An example is right only if its class has strictly the largest logit: a tie, or a NaN, is an error. `masked_classes`: for each
    task which classes are not in its head (task-incremental): their logits are minus infinity, after the whole head was computed.
    """
    like, size = next(model.parameters()), block_rows(part.x)
    y = pad_rows(part.y, (blocks := -(-len(part) // size)) * size).view(blocks, size)
    losses, wrong, at = torch.empty_like(y, dtype=like.dtype), np.empty(y.shape, bool), torch.arange(size, device=like.device)
    for i, (labels, logits) in enumerate(zip(y, logits_of(model, part), strict=True)):
        if masked_classes is not None:
            tasks = torch.from_numpy(part.task[i * size : (i + 1) * size]).to(like.device)
            logits.masked_fill_(pad_rows(masked_classes[tasks], size).t(), -torch.inf)
        losses[i] = -torch.log_softmax(logits, 0)[labels, at]
        own, logits[labels, at] = logits[labels, at], -torch.inf
        wrong[i] = ~(own > logits.amax(0)).cpu().numpy()
    return losses.view(-1)[: len(part)], wrong.reshape(-1)[: len(part)]


def answer_keys(model: nn.Module, part: Examples) -> np.ndarray:
    """A 64-bit hash of the logits of every example, equal where they are, bit for bit; -0 is 0."""
    rows = (row for logits in logits_of(model, part) for row in numbers(logits.t().double()) + 0)
    return np.array([hash(row.tobytes()) for row in rows][: len(part)], np.int64)


def repeated_answers(keys: Sequence[np.ndarray], used: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each task the rows with the key of another row: all but one in a task, and all that another task has too.

    One row of each equal set is no repeat: one that was learned from (`used`), if there is one.
    """
    tasks, found = Counter(key for own in keys for key in np.unique(own).tolist()), []
    for own, learned in zip(keys, used, strict=True):
        order, first = np.argsort(~learned, kind="stable"), np.zeros(len(own), bool)
        first[order[np.unique(own[order], return_index=True)[1]]] = True
        found.append(~first | np.array([tasks[key] > 1 for key in own.tolist()], bool))
    return found


def check_alone(model: nn.Module, part: Examples, masked_classes: Tensor | None = None) -> None:
    """Score some examples alone, in another order and in smaller company; refuse if a single bit changes.

    That fixed blocks make scores independent of each other is a fact about a machine and a model, and no theorem.
    """
    n, scattered = min(len(part), block_rows(part.x) + 37), np.random.default_rng(0)
    some = part.take(np.linspace(0, len(part) - 1, n).astype(np.int64))
    losses, wrong = score(model, some, masked_classes)
    orders = [scattered.permutation(n), scattered.permutation(n)[: max(1, n // 3)]]
    for order in [*orders, *(scattered.integers(n, size=1) for _ in range(4))]:
        again, wrong_again = score(model, some.take(order), masked_classes)
        expected = losses[torch.from_numpy(order).to(losses.device)]
        good = ((expected == again) | (expected.isnan() & again.isnan())).all() and (wrong[order] == wrong_again).all()
        require(good, "Scores depend on the examples scored together (this model, this machine): use another model or device.")
