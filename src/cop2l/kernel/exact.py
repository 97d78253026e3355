"""Exact arithmetic, examples, and their scores: the bits of a score depend on the example and the model alone.

Every forward pass that scores has the same number of rows, full precision and a fixed order of sums.
"""

import copy
import hashlib
import math
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from cop2l.kernel.options import Options, require
from cop2l.kernel.samples import numbers
from cop2l.randomness import marks

# cuBLAS reads this when it starts. Without it torch refuses deterministic mode on CUDA.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

Rows = np.ndarray
NO_ROWS: Rows = np.empty(0, np.int64)
BITS = 4
"""The version of the learned bits: it grows when `learning` gives other bits."""

# ---- exact arithmetic


@contextmanager
def exact_arithmetic(threads: int) -> Iterator[None]:
    """Set torch to deterministic mode, full precision and this number of threads; in the end restore all settings.

    New memory is not filled with NaN: filling takes longer than most operations on it.
    """
    cuda, cudnn, mkldnn, memory = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn, torch.utils.deterministic
    products = [getattr(backend, name, None) for backend in (cuda, cudnn, mkldnn) for name in ("matmul", "conv", "rnn")]
    settings: list[tuple[Any, str, Any]] = [(p, "fp32_precision", "ieee") for p in products if hasattr(p, "fp32_precision")]
    if not settings:  # before torch 2.9
        settings = [(cuda.matmul, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    settings += [(cudnn, "deterministic", True), (cudnn, "benchmark", False), (memory, "fill_uninitialized_memory", False)]
    before = [getattr(owner, name) for owner, name, _ in settings]
    mode, count = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    try:
        torch.set_deterministic_debug_mode(2)
        torch.set_num_threads(threads)
        for owner, name, value in settings:
            setattr(owner, name, value)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)
        torch.set_num_threads(count)
        torch.set_deterministic_debug_mode(mode)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and bits of tensors."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu()
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        flat = value.clone(memory_format=torch.contiguous_format).view(-1)  # a tensor of one element may have any stride
        hasher.update(flat.view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def parameter_count(model: nn.Module) -> int:
    """The number of values in all parameters."""
    return sum(p.numel() for p in model.parameters())


def multiplications(model: nn.Module, row: Tensor) -> int:
    """The multiplications for one example: every parameter of a layer once for each place of its output (convolutions)."""
    total = 0

    def add(layer: nn.Module, _: Any, output: Any) -> None:
        nonlocal total
        values = output.numel() if isinstance(output, Tensor) else 0
        total += sum(p.numel() * max(1, values // len(p)) for p in layer.parameters(recurse=False) if p.dim())

    with torch.no_grad(), register_module_forward_hook(add):
        copy.deepcopy(model).eval()(model_input(model, row))  # a copy: it may keep something of its first call
    return total


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or "unknown"  # the last resort, as it starts a process


def machine(model: nn.Module) -> str:
    """The description of what must be equal to learn the same bits again, beside the number of threads."""
    parameter, cpu = next(model.parameters()), torch.backends.cpu.get_cpu_capability()
    device = torch.cuda.get_device_name(parameter.device) if parameter.device.type == "cuda" else parameter.device.type
    system = f"{platform.system()} {platform.machine()}, {processor()}, {cpu}"
    return f"bits {BITS}, torch {torch.__version__}, {system}, {device}, {str(parameter.dtype).removeprefix('torch.')}"


# ---- examples


@dataclass(frozen=True)
class Examples:
    """Examples z = (x, y, mark) of one or several tasks, with the task and the row of each. `x` may be a memory map."""

    x: Any
    y: Tensor
    task: Rows
    row: Rows
    mark: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def take(self, positions: np.ndarray) -> "Examples":
        """The examples at these positions, copied to the device of y, in the default memory layout."""
        index = torch.from_numpy(np.ascontiguousarray(positions)).to(self.y.device, non_blocking=True)
        if isinstance(self.x, Tensor):  # the result of index_select is in the default memory layout
            x = self.x.detach().index_select(0, index.to(self.x.device)).to(index.device)
        else:
            rows = tensor(self.x[positions])
            x = torch.empty(rows.shape, dtype=rows.dtype, device=index.device).copy_(rows)
        return Examples(x, self.y[index], self.task[positions], self.row[positions], self.mark[positions])


def tensor(rows: Any) -> Tensor:
    """Rows of x as a tensor; an array is copied if torch cannot share its memory."""
    if isinstance(rows, Tensor):
        return rows.detach()
    return torch.from_numpy(np.require(rows, rows.dtype.newbyteorder("="), ["C", "W"]))


def sample(x: Any, y: Tensor, task: int, seed: int, rows: Rows | None = None) -> Examples:
    """The sample of a task, or these rows of it. A mark is a 64-bit function of (seed, task, row), fixed before the data."""
    rows = np.arange(len(y), dtype=np.int64) if rows is None else rows
    all_marks = marks(seed, "mark", task, n=int(rows.max()) + 1 if len(rows) else 0)
    return Examples(x, y, np.full(len(rows), task, np.int64), rows, all_marks[rows])


def join(parts: Sequence[Examples | None]) -> Examples | None:
    """All examples of the parts, in order; None if there are none."""
    filled = [part for part in parts if part is not None and len(part)]
    if not filled:
        return None
    columns = [np.concatenate([getattr(part, name) for part in filled]) for name in ("task", "row", "mark")]
    return Examples(torch.cat([part.x for part in filled]), torch.cat([part.y for part in filled]), *columns)


def gather(S: Examples, B: Examples | None, C: Rows) -> Examples:
    """The examples at these positions of the pool (S first, then B), in the order of C."""
    of_S, of_B = np.flatnonzero(len(S) > C), np.flatnonzero(len(S) <= C)
    if B is None or not len(of_B):
        return S.take(C)
    if not len(of_S):
        return B.take(C - len(S))
    both = join([S.take(C[of_S]), B.take(C[of_B] - len(S))])
    assert both is not None
    return both.take(np.argsort(np.concatenate([of_S, of_B])))  # restores the order of C


def threshold(n: int, after: int, options: Options) -> np.uint64:
    """2^64 tau, tau = m'/(s n): of the n examples not picked at their own task, those with a smaller mark stay after task s.

    m' = a - sqrt(9.22 a), a = m + 1. Given the tasks before, and if no losses are equal, the number that stays of each task is
    a sum of independent indicators with mean at most m'/s. By Chernoff the total reaches a with probability at most
    exp(-(a - m')^2 / 2a) <= 1/100 after any given task.
    """
    a = options.memory + 1
    mean = max(0.0, a - math.sqrt(9.22 * a))
    return np.uint64(min(int(mean / (after * n) * 2.0**64), 2**64 - 1)) if n else np.uint64(0)


def withheld_rows(rows: int, task: int, share: float, seed: int) -> np.ndarray:
    """The mask of the rows of a task that a learner never gets."""
    return np.asarray(marks(seed, "holdout", task, n=rows) < np.uint64(share * 2.0**64))


def kept_rows(withheld: np.ndarray, task: int, most: int, seed: int) -> Rows:
    """At most this many of the withheld rows of a task: those with the smallest marks, in ascending order."""
    rows = np.flatnonzero(withheld)
    order = np.argsort(marks(seed, "holdout", task, n=len(withheld))[rows], kind="stable")
    return np.sort(rows[order[:most]])


# ---- scoring: every forward pass has the same number of rows


SMALL_EXAMPLE, SMALL_BLOCK, LARGE_BLOCK, WIDTH = 512, 256, 2048, 16


def block_rows(x: Any) -> int:
    """The number of rows of a block, a function of the shape of one example alone."""
    return LARGE_BLOCK if math.prod(x.shape[1:]) <= SMALL_EXAMPLE else SMALL_BLOCK


def pad_rows(rows: Tensor, size: int, out: Tensor | None = None) -> Tensor:
    """Fill `size` rows (those of `out`, if given) with these rows, again and again: zeros would be no rows of the data."""
    out = rows.new_empty((size, *rows.shape[1:])) if out is None else out
    out[: (n := len(rows))] = rows
    if n < size:
        out[n:] = out[torch.arange(n, size, device=out.device) % n]
    return out


def model_input(model: nn.Module, x: Tensor) -> Tensor:
    """Rows on the device of the model; floats in its precision, integers unchanged."""
    parameter = next(model.parameters())
    return x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)


class PaddedLinear(TorchFunctionMode):
    """Pad the inner width of every linear layer with zeros to a multiple of 16; the zeros change no sum."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and len(args) > 1 and (missing := -args[1].shape[-1] % WIDTH):
            args = (F.pad(args[0], (0, missing)), F.pad(args[1], (0, missing)), *args[2:])
        return func(*args, **(kwargs or {}))


def head_masks(heads: Sequence[Sequence[int]], classes: int, scenario: str, device: Any) -> Tensor | None:
    """For task-incremental: the mask of the classes outside task t's head in row t (row 0 is unused). Otherwise None."""
    masked_classes = (~np.isin(np.arange(classes), head) for head in ([], *heads))
    return torch.from_numpy(np.stack([*masked_classes])).to(device) if scenario == "task-incremental" else None


def logits_of(model: nn.Module, x: Any) -> Iterator[Tensor]:
    """The logits of every block of rows, one column for each; the model stays in evaluation mode."""
    size = block_rows(x)
    with torch.no_grad():
        block = model_input(model.eval(), tensor(x[:0])).new_empty((size, *x.shape[1:]))
        for start in range(0, len(x), size):
            pad_rows(tensor(x[start : start + size]), size, block)
            with PaddedLinear():  # only here: it slows every call of torch down
                logits = model(block.detach())  # detached, because the model may reshape its input in place
            yield logits.t().contiguous()


def score(model: nn.Module, part: Examples, masked_classes: Tensor | None = None) -> tuple[Tensor, np.ndarray]:
    """The cross-entropy of every example, and the mask of the misclassified ones.

    An example is right only if its class has strictly the largest logit: a tie or a NaN is an error. The classes outside the
    task's head (`masked_classes`, see `head_masks`) get the logit minus infinity, after the whole head was computed.
    """
    parameter, size = next(model.parameters()), block_rows(part.x)
    y = pad_rows(part.y, (blocks := -(-len(part) // size)) * size).view(blocks, size)
    losses, errors = torch.empty_like(y, dtype=parameter.dtype), np.empty(y.shape, bool)
    columns = torch.arange(size, device=parameter.device)
    for i, (labels, logits) in enumerate(zip(y, logits_of(model, part.x), strict=True)):
        if masked_classes is not None:
            tasks = torch.from_numpy(part.task[i * size : (i + 1) * size]).to(parameter.device)
            logits.masked_fill_(pad_rows(masked_classes[tasks], size).t(), -torch.inf)
        losses[i] = -torch.log_softmax(logits, 0)[labels, columns]
        logit_of_class, logits[labels, columns] = logits[labels, columns], -torch.inf
        errors[i] = ~(logit_of_class > logits.amax(0)).cpu().numpy()
    return losses.view(-1)[: len(part)], errors.reshape(-1)[: len(part)]


def answer_keys(model: nn.Module, x: Any) -> np.ndarray:
    """A 64-bit hash of the logits of every row: equal for logits with equal bits, where -0 is 0."""
    rows = (row for logits in logits_of(model, x) for row in numbers(logits.t().double()) + 0)
    return np.array([hash(row.tobytes()) for row in rows][: len(x)], np.int64)


def input_keys(x: Any, dtype: torch.dtype) -> list[int]:
    """A hash of the inputs of every row in this precision: equal for equal inputs, where -0 is 0."""
    keys = list[int]()
    for start in range(0, len(x), LARGE_BLOCK):
        rows = tensor(x[start : start + LARGE_BLOCK])
        values = rows.to(dtype) if rows.is_floating_point() else rows
        keys += [hash(row.tobytes()) for row in numbers(values.double()) + 0]
    return keys


def repeated_answers(keys: Sequence[np.ndarray], used: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The mask, for each task, of the rows whose key another row has: all if it is in another task, all but one otherwise.

    The one that is no repeat is a row that was trained on (`used`), if there is one.
    """
    tasks_with, masks = Counter(key for task_keys in keys for key in np.unique(task_keys).tolist()), []
    for task_keys, task_used in zip(keys, used, strict=True):
        order, first = np.argsort(~task_used, kind="stable"), np.zeros(len(task_keys), bool)
        first[order[np.unique(task_keys[order], return_index=True)[1]]] = True
        masks.append(~first | np.array([tasks_with[key] > 1 for key in task_keys.tolist()], bool))
    return masks


def fresh_model(unused: nn.Module, theta: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a model that was never called, with these parameters."""
    model = copy.deepcopy(unused)
    model.load_state_dict(dict(theta))
    return model.eval()


@torch.no_grad()
def check_alone(model: nn.Module, inputs: Sequence[Any], unused: nn.Module, bits: bool = True) -> None:
    """Refuse a model whose answer to a row depends on more than the row and the parameters; `inputs` are the rows of some tasks.

    No theorem says that blocks of equal length make scores independent of each other: it depends on the machine and the model.
    So some rows are scored again in another order, in smaller groups and alone, and no bit may change (or no class, if `bits` do
    not matter). In a batch of another length a machine rounds otherwise, and only the classes must be the same. The same holds
    if the parameters are loaded into a copy of the model that was never called (`unused`), and is called on another row first.
    """
    agree = partial(torch.allclose, rtol=0, atol=0, equal_nan=True) if bits else same_classes
    share, draws = -(-(block_rows(inputs[0]) + 37) // len(inputs)), np.random.default_rng(0)
    places = [np.linspace(0, len(x) - 1, min(len(x), share)).astype(np.int64) for x in inputs]
    rows = torch.cat([model_input(model, tensor(x[part])) for x, part in zip(inputs, places, strict=True)]).contiguous()
    logits, n = all_logits(model, rows), len(rows)
    groups = [draws.permutation(n)[:size] for size in (n, -(-n // 3), 10, *[1] * 30)]
    for group in groups[:4]:
        same = agree(logits[:, group], all_logits(model, rows[group]))
        require(same, "Scores depend on the examples scored together (this model, this machine): use another model or device.")
    for group in groups:
        same = same_classes(logits[:, group], model(rows[group]).t())
        require(
            same, "The class of a row depends on the rows beside it or their number: use a model that takes each row by itself."
        )
    fresh = fresh_model(unused, model.state_dict()).to(rows.device)
    fresh(rows[[-1]])
    same = agree(logits, all_logits(fresh, rows))
    require(same, "The model keeps something outside its state_dict that changes its answers: make it a persistent buffer.")


def all_logits(model: nn.Module, rows: Tensor) -> Tensor:
    """The logits of these rows, one column for each, computed in blocks."""
    return torch.cat([*logits_of(model, rows)], 1)[:, : len(rows)]


def same_classes(logits: Tensor, again: Tensor) -> bool:
    """Whether no column has another class, beyond what rounding explains: a hundredth of its largest finite logit."""
    chosen = logits.gather(0, again.argmax(0, keepdim=True))[0]
    rounding = logits.nan_to_num(0, 0, 0).abs().amax(0) / 100
    return not bool((logits.amax(0) - chosen > rounding).any())
