"""The learner's fast path. Its specification is `cop2l.kernel.learning.Plain`: the same bits, in less time.

What is gained: inputs are laid out in blocks once and for all; logits of several blocks are taken together; the training
set grows in place; a step of the optimiser is a few calls for all parameters together.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.console import Progress
from cop2l.kernel import learning
from cop2l.kernel.learning import (
    LARGE_BLOCK,
    NONE,
    WIDTH,
    Examples,
    Outcome,
    PaddedLinear,
    Plain,
    Rows,
    answers,
    balanced,
    block_rows,
    criterion,
    join,
    padded,
    threshold,
)
from cop2l.kernel.options import Options, Refusal
from cop2l.randomness import generator, private_randomness

CHUNK = 2**17
"""How many logits (nothing else) are held together, if a block has not more."""
COPIED = 2**28
"""Bytes of a task that are copied once, where its memory does not begin as torch's own does; more are copied block by block."""
SMALL_REQUESTS = (1, 16, 128)
"""Rows of a block where so few examples are to be predicted."""
Round = tuple[float, int, np.ndarray]
"""One iteration: the largest weighted loss, the number of errors, and the block on top."""


class Optimiser(learning.Optimiser):
    """The kernel's optimiser, all parameters at once: a step of a small model is mostly book-keeping."""

    def __init__(self, model: nn.Module, options: Options, lr: float | None = None) -> None:
        super().__init__(model, options, lr)
        self._values = [p.detach() for p in self.parameters]  # the same memory

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        self.descend(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down these gradients."""
        self.steps += 1
        if self.kind == "sgd":
            torch._foreach_add_(self._values, gradients, alpha=-self.lr)
        elif self.kind == "momentum":
            torch._foreach_mul_(self.first, 0.9)
            torch._foreach_add_(self.first, gradients)
            torch._foreach_add_(self._values, self.first, alpha=-self.lr)
        else:
            torch._foreach_lerp_(self.first, gradients, 0.1)
            torch._foreach_mul_(self.second, 0.999)
            torch._foreach_addcmul_(self.second, gradients, gradients, 0.001)
            scale = torch._foreach_sqrt(self.second)
            torch._foreach_div_(scale, math.sqrt(1 - 0.999**self.steps))
            torch._foreach_add_(scale, 1e-8)
            torch._foreach_addcdiv_(self._values, self.first, scale, -self.lr / (1 - 0.9**self.steps))


class ScoringMode:
    """Inside: evaluation mode, no gradients, padded linear layers where a width asks for it; then all is as before.

    It looks at the model once, and is entered again and again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules, self._training = list(model.modules()), list[nn.Module]()
        padded = not ours(model) or any(p.dim() == 2 and p.shape[1] % WIDTH for p in model.parameters())
        self._layers: AbstractContextManager[Any] = PaddedLinear() if padded else nullcontext()
        self._gradients = True

    def fits(self, model: nn.Module) -> bool:
        """Whether the model still has the modules that were looked at."""
        return self._modules == list(model.modules())

    @property
    def like(self) -> Tensor:
        """The model's first parameter: in which precision it computes, and where."""
        return next(p for module in self._modules for p in module._parameters.values() if p is not None)

    def __enter__(self) -> None:
        self._training = [module for module in self._modules if module.training]
        for module in self._training:
            _switch(module, False)
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        self._layers.__enter__()

    def __exit__(self, *error: object) -> None:
        self._layers.__exit__(None, None, None)
        torch.set_grad_enabled(self._gradients)
        for module in self._training:
            _switch(module, True)


def _switch(module: nn.Module, training: bool) -> None:
    """Set its mode; past nn.Module's own look at what is assigned, which takes longer than a small product."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        object.__setattr__(module, "training", training)
    else:
        module.training = training


def ours(model: nn.Module) -> bool:
    """Whether it is one of cop2l's models as built: it never changes its input, and its parameters show every product's width."""
    return type(model).__module__.startswith("cop2l.models.") and all(
        type(module).__module__.startswith(("cop2l.models.", "torch.nn.modules."))
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not getattr(module, "inplace", False)
        for module in model.modules()
    )


def row_major(x: Tensor) -> bool:
    """Whether x has the plain memory layout: kernels may round another one (channels last) differently."""
    return x.stride() == torch.empty(x.shape, dtype=x.dtype, device="meta").stride()


def where_the_model_is(model: nn.Module, x: Any) -> Any:
    """X as a tensor on the model's device: real numbers in its precision, integers as they are."""
    return learning.seen(model, learning.tensor(x))


def input_blocks(model: nn.Module, x: Any, size: int | None = None) -> Iterator[Any]:
    """X in blocks of the same number of rows, where the model is; rows beyond the end are zeros. A block lasts until the next.

    A model of the user's own, which may write into its input, gets copies.
    """
    size, trusted, scratch = size or block_rows(x), ours(model), None
    for start in range(0, len(x), size):
        rows = where_the_model_is(model, x[start : start + size])
        if not (trusted and len(rows) == size) or rows.data_ptr() % 64 or not row_major(rows):
            if scratch is None:
                scratch = rows.new_empty((size, *rows.shape[1:]))
            rows = padded(rows, size, scratch)
        yield rows if trusted else rows.detach()  # it may reshape what it is given


def kept_blocks(model: nn.Module, x: Any) -> list[Tensor] | None:
    """X in blocks to be used again and again, if they can be views of it or of one copy; else None."""
    like, size = next(model.parameters()), block_rows(x)
    if not isinstance(x, Tensor) or (x.device, x.dtype) != (like.device, like.dtype):
        return None
    if not row_major(x) or not ours(model):
        return None
    whole = range(0, len(x) - size + 1, size)
    if any((x.data_ptr() + start * x[:1].nbytes) % 64 for start in whole):
        if x.nbytes > COPIED:
            return None
        x = x.clone()
    last = [block.clone() for block in input_blocks(model, x[len(whole) * size :])]
    return [*(x[start : start + size] for start in whole), *last]


@dataclass(frozen=True)
class _Chunk:
    """Consecutive rows whose logits are held together: fewer and larger steps follow than for each block."""

    start: int
    logits: Tensor
    """Classes along the first dimension, where a softmax over few classes is much quicker."""
    scratch: Tensor
    """Memory of the same shape, used at every pass: fresh memory costs more than what is done in it."""
    own: Tensor
    """Where, in the flat matrix of logits, each row's own class is."""
    outside: Tensor | None
    """Logits that are not in the row's head."""


class Pool:
    """Examples that are scored together, again and again: laid out once, each part in whole blocks of its own.

    Positions count rows of this layout: part i's rows begin at `starts[i]`, and what is left of its last block is padding,
    which is scored like everything else and never picked.
    """

    def __init__(
        self, model: nn.Module, parts: Sequence[Examples], outside: Tensor | None, weights: Sequence[float]
    ) -> None:
        self._model, self._parts, self._outside, self._mode = model, parts, outside, ScoringMode(model)
        self._size, like = block_rows(parts[0].x), next(model.parameters())
        self.starts = [0]
        for part in parts:
            self.starts.append(self.starts[-1] - (-len(part) // self._size) * self._size)
        self._y = torch.cat([F.pad(part.y, (0, -len(part) % self._size)) for part in parts])
        self._weight = torch.empty(len(self._y), dtype=like.dtype, device=like.device)
        for (start, end), weight in zip(itertools.pairwise(self.starts), weights, strict=True):
            self._weight[start:end] = -weight
        self._losses, self._closed = (
            torch.empty_like(self._weight),
            torch.zeros_like(self._weight, dtype=torch.bool),
        )
        self._blocks = [kept_blocks(model, part.x) for part in parts]
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return len(self._y)

    def laid_out(self, columns: Sequence[np.ndarray], padding: Any) -> np.ndarray:
        """One array for each part, brought into the layout."""
        whole = np.full(len(self), padding, columns[0].dtype)
        for start, column in zip(self.starts, columns, strict=False):
            whole[start : start + len(column)] = column
        return whole

    def close(self, rows: np.ndarray) -> None:
        """From now on the loss of these rows is minus infinity."""
        self._closed.index_fill_(0, torch.from_numpy(rows).to(self._closed.device), True)

    def losses_at(self, rows: np.ndarray) -> np.ndarray:
        """What these rows had in the last scoring."""
        return self._losses[torch.from_numpy(rows).to(self._losses.device)].cpu().numpy()

    def score(self, *, errors: bool) -> tuple[Tensor, np.ndarray]:
        """Every row's weight * cross-entropy, and (if `errors`) which of the first part's examples are misclassified.

        The first lasts until the next call.
        """
        counted = len(self._parts[0]) if errors else 0
        wrong = np.empty(counted, bool)
        with self._mode:
            for chunk in self._computed():
                end = chunk.start + chunk.logits.shape[1]
                if chunk.outside is not None:
                    chunk.logits.masked_fill_(chunk.outside, -torch.inf)
                found = (
                    torch.log_softmax(chunk.logits, 0, out=chunk.scratch).view(-1).index_select(0, chunk.own)
                )
                torch.mul(found, self._weight[chunk.start : end], out=self._losses[chunk.start : end])
                if chunk.start < counted:
                    flat, own = chunk.logits.view(-1), chunk.own[: counted - chunk.start]
                    mine = flat.index_select(0, own)
                    flat.index_fill_(0, own, -torch.inf)
                    right = mine > chunk.logits[:, : len(own)].amax(0)
                    np.logical_not(right.cpu().numpy(), out=wrong[chunk.start : chunk.start + len(own)])
        return self._losses.masked_fill_(self._closed, -torch.inf), wrong

    def _computed(self) -> Iterator[_Chunk]:
        """Every chunk, when its logits are there."""
        start, chunks = 0, iter(self._chunks)
        chunk = next(chunks, None)
        for part, kept in zip(self._parts, self._blocks, strict=True):
            for rows in kept or input_blocks(self._model, part.x):
                logits = self._model(rows)
                if chunk is None:
                    chunks = iter(self._planned(logits))
                    chunk = next(chunks)
                at = start - chunk.start
                chunk.logits[:, at : at + self._size].copy_(logits.t())
                start += self._size
                if start == chunk.start + chunk.logits.shape[1]:
                    yield chunk
                    chunk = next(chunks, None)

    def _planned(self, like: Tensor) -> list[_Chunk]:
        """The layout in chunks of whole blocks."""
        classes, most = like.shape[1], max(1, CHUNK // like.shape[1] // self._size) * self._size
        both = like.new_zeros(2, classes * min(most, len(self)))
        task = torch.from_numpy(self.laid_out([part.task for part in self._parts], 0)).to(like.device)
        for start in range(0, len(self), most):
            y = self._y[start : start + most]
            logits, scratch = (flat[: classes * len(y)].view(classes, len(y)) for flat in both)
            own = y * len(y) + torch.arange(len(y), device=y.device)
            hidden = None
            if self._outside is not None:
                hidden = (
                    self._outside.index_fill(0, task.new_zeros(1), False)[task[start : start + most]]
                    .t()
                    .contiguous()
                )
            self._chunks.append(_Chunk(start, logits, scratch, own, hidden))
        return self._chunks


def top(losses: Tensor, rest: np.ndarray, mark: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """The largest loss, and the positions of the k largest: largest first, ties by the smaller mark. Closed rows are -inf."""
    largest = torch.topk(losses, min(k + 1, len(losses)))
    found = largest.values.tolist()
    if (
        len(found) > k
        and found[-1] > -math.inf
        and all(one > other for one, other in itertools.pairwise(found))
    ):
        return found[0], largest.indices[:k].cpu().numpy()  # as nearly always: no ties
    at = np.flatnonzero(rest)
    values = losses.cpu().numpy()[at]
    worst = float(values.max(initial=-math.inf))
    if len(at) > k:
        largest_k = values >= np.partition(values, -k)[-k]  # and all that are level with the last of them
        at, values = at[largest_k], values[largest_k]
    return worst, at[np.lexsort((mark[at], -values))[:k]]


class TrainingSet:
    """C in picking order (behind the prior examples, if any), with weights, grown block by block."""

    def __init__(self, prior: Examples | None, like: Tensor, balance: bool) -> None:
        self._balance, self._like, self._size = balance and prior is not None, like, 0
        self._columns: list[Any] = []  # x, y, weight
        self._task = NONE
        if prior is not None:
            self.add(prior, np.arange(len(prior)), np.ones(len(prior)))

    def add(self, source: Examples, at: np.ndarray, weight: np.ndarray) -> None:
        """These examples of the source, with these weights."""
        index = torch.from_numpy(at).to(source.y.device)
        if isinstance(source.x, Tensor) and source.x.device == source.y.device:
            rows: Any = source.x.index_select(0, index)
        else:
            rows = source.take(at).x
        new = [
            rows,
            source.y.index_select(0, index),
            torch.from_numpy(weight).to(index.device, self._like.dtype),
        ]
        end = self._size + len(at)
        if not self._columns or end > len(self._columns[0]):
            room = end + end // 2 + 256
            grown = [part.new_empty((room, *part.shape[1:])) for part in new]
            for old, larger in zip(self._columns, grown, strict=False):
                larger[: self._size].copy_(old[: self._size])
            self._columns = grown
        for column, part in zip(self._columns, new, strict=True):
            column[self._size : end].copy_(part)
        self._task = np.concatenate([self._task, source.task[at]])
        self._size = end

    def reorder(self, count: int, order: np.ndarray) -> None:
        """Bring the last `count` examples into this order."""
        first = self._size - count
        index = torch.from_numpy(order).to(self._like.device)
        for column in self._columns:
            last = column[first : self._size]
            last.copy_(last[index])
        self._task[first:] = self._task[first:][order]

    def examples(self) -> Examples:
        """What is trained on."""
        x, y, _ = (column[: self._size] for column in self._columns)
        return Examples(x, y, self._task, self._task, self._task)

    def weight(self) -> Tensor:
        """The weights of the examples; classes weigh the same where there is a prior part."""
        _, y, weight = (column[: self._size] for column in self._columns)
        return balanced(y).to(self._like.dtype) if self._balance else weight


class Rounds:
    """The iterations of mP2L: each scores the pool and finds the block on top; before the next, the block is trained on."""

    def __init__(
        self,
        engine: "Fast",
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        searching: bool,
    ) -> None:
        self._engine, self._S, self._B, self._n, self._searching = engine, S, B, len(S), searching
        options, parts = engine.options, [S] if B is None else [S, B]
        weights = [1.0, options.pick_omega or options.omega][: len(parts)]
        self._pool = pool = Pool(engine.model, parts, engine.outside, weights)
        self._mark = pool.laid_out([part.mark for part in parts], 0)
        self._rest = pool.laid_out([candidates, *(np.ones(len(part), bool) for part in parts[1:])], False)
        pool.close(np.flatnonzero(~self._rest))
        self._training = TrainingSet(prior, next(engine.model.parameters()), options.balance)
        self._theta: dict[str, Tensor] | None = None

    def __iter__(self) -> Iterator[Round]:
        """The largest weighted loss, the number of errors, and the block: positions that count S first, then B."""
        engine, training, optimiser = self._engine, self._training, self._engine.optimiser()
        for j in itertools.count(1):
            found = self._found()
            yield found
            self._close(found[2])
            self._add(found[2], len(self._S))
            engine.update(
                optimiser, training.examples(), training.weight(), engine.options.epochs, "update", j
            )

    def _found(self) -> Round:
        """Score the pool."""
        losses, wrong = self._pool.score(errors=self._searching)
        worst, picked = top(losses, self._rest, self._mark, self._engine.options.k)
        errors = int(np.count_nonzero(wrong & self._rest[: len(wrong)]))
        return worst, errors, np.where(picked < self._n, picked, picked - self._pool.starts[1] + self._n)

    def _close(self, block: np.ndarray) -> None:
        """These are picked, and never again."""
        picked = self._laid_out(block)
        self._rest[picked] = False
        self._pool.close(picked)

    def _laid_out(self, block: np.ndarray) -> np.ndarray:
        """Where the pool has these positions."""
        return np.where(block < self._n, block, block - self._n + self._pool.starts[1])

    def _add(self, block: np.ndarray, n: int) -> None:
        of_S, of_B = np.flatnonzero(block < n), np.flatnonzero(block >= n)
        self._training.add(self._S, block[of_S], np.ones(len(of_S)))
        if self._B is not None and len(of_B):
            self._training.add(self._B, block[of_B] - n, np.full(len(of_B), self._engine.options.omega))
            if len(of_S):
                self._training.reorder(len(block), np.argsort(np.concatenate([of_S, of_B])))

    def keep(self) -> None:
        """Remember theta as it is now."""
        self._theta = _copied(self._engine.model.state_dict(), self._theta)

    def finish(self) -> None:
        """Theta goes back to what was kept; if nothing was, it stays."""
        self._engine.model.eval()
        if self._theta is not None:
            self._engine.model.load_state_dict(self._theta)


@dataclass
class Fast(Plain):
    """CoP2L with the bits of `Plain`."""

    progress: Progress | None = None
    ranks: Any = None
    """The processes that score together (`cop2l.certify.ranks`); None: this one alone."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One entry per iteration of the newest task: picked, worst_loss, errors, bound, kept."""
    _graphs: Any = field(default=None, repr=False, compare=False)

    def optimiser(self, lr: float | None = None) -> Optimiser:
        """An optimiser with empty state."""
        return Optimiser(self.model, self.options, lr)

    def update(
        self, optimiser: Any, trained: Examples, weight: Tensor, epochs: int, purpose: str, iteration: int = 0
    ) -> None:
        """Epochs of mini-batches, each filled up to `batch` rows with its own rows at weight zero."""
        n, size, like, seed = (
            len(trained),
            self.options.batch,
            next(self.model.parameters()),
            self.options.seed,
        )
        hidden = (
            None if self.outside is None else self.outside[torch.from_numpy(trained.task).to(like.device)]
        )
        columns = [trained.x, trained.y, weight, *([] if hidden is None else [hidden])]
        order = generator(seed, f"{purpose} order", self.task, iteration)
        single = _filled(columns, torch.arange(n), size) if n <= size else None
        trusted, ready = ours(self.model), trained.x.dtype == like.dtype
        if not self.model.training:
            self.model.train()
        with private_randomness(like.device, seed, purpose, self.task, iteration):
            for _ in range(epochs):
                if single is not None:
                    x, *others = single
                    batches = iter([(x if trusted else x.clone(), *others)])
                else:
                    shuffled = torch.randperm(n, generator=order).to(like.device)
                    batches = (_filled(columns, rows, size) for rows in torch.split(shuffled, size))
                for x, y, factor, *outside in batches:
                    logits = self.model(x) if ready else answers(self.model, x)
                    if outside:
                        logits = logits.masked_fill(outside[0], -torch.inf)
                    losses = F.cross_entropy(logits, y, reduction="none")
                    optimiser.step(torch.dot(losses, factor.to(losses.dtype)))

    def mp2l(
        self,
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        message: int | None = None,
        longest: int | None = None,
    ) -> Outcome:
        """Algorithm 2, as `Plain.mp2l` has it."""
        last = self.options.max_iterations if message is None else message
        most = min(math.inf if m is None else m for m in (last, longest))
        n, certified, searching = len(S), int(candidates.sum()), message is None
        rounds = self._rounds(S, B, candidates, prior, searching, most)
        self.model.train()
        options, points, blocks, best, least = self.options, self.options.grid_points, [NONE], 0, math.inf
        self.trace, own, j = [], 0, 0
        for found in rounds:
            j, (worst, errors, picked) = len(blocks) - 1, found
            if math.isnan(worst):
                raise Refusal(
                    f"Training diverged at task {self.task}, iteration {j}: the loss is not a number; "
                    f"lower lr ({options.lr}) or omega."
                )
            stopped = not worst >= options.gamma
            if searching:
                value = criterion(options, certified, own, errors, j)
                if (not points or j in points or stopped) and (value < least or options.stop == "none"):
                    best, least = j, value
                    rounds.keep()
                self._say(j, own, worst, errors, value)
            if stopped or j == last:
                break
            if searching and options.stop != "none" and criterion(options, certified, own, 0, j + 1) >= least:
                break
            if j == longest:
                raise Refusal(f"Task {self.task} does not stop after {j} iterations, as it is said to.")
            blocks.append(picked)
            own += int(np.count_nonzero(picked < n))
        rounds.finish()
        kept = best if searching else j
        for step in self.trace:
            step["kept"] = step["iteration"] == kept
        paid = next(point for point in points or (kept,) if point >= kept)
        return Outcome(np.concatenate(blocks[: kept + 1]), np.concatenate(blocks), paid, j)

    def train_on_prior(self, own: Examples | None) -> Examples | None:
        """As `Plain.train_on_prior`."""
        prior, options = join([*self.prior, own]), self.options
        graphs = self._graphs_for([prior]) if options.start == "weights" else None
        if prior is None or graphs is None or not options.prior_epochs:
            return super().train_on_prior(own)
        graphs.update_on_prior(self, prior, options.prior_epochs, options.prior_lr or options.lr)
        return prior

    def stays(self, rows: Rows, task: int, after: int) -> np.ndarray:
        """As `Plain.stays`; examples in the buffer have their marks with them."""
        held = self.buffer[task - 1] if task <= len(self.buffer) else None
        if held is None or rows is not held.row or not self.options.marked:
            return super().stays(rows, task, after)
        left = self.sizes[task - 1][1] - len(self.sets[task - 1].own)
        return np.asarray(held.mark < threshold(left, after, self.options))

    def _rounds(
        self,
        S: Examples,
        B: Examples | None,
        candidates: np.ndarray,
        prior: Examples | None,
        searching: bool,
        longest: float,
    ) -> Any:
        """The iterations: shared between ranks, recorded where they can be, else step by step."""
        if self.ranks is not None:
            from cop2l.certify import ranks

            return ranks.Rounds(self.ranks, self, S, B, candidates, prior, searching)
        graphs = self._graphs_for([S, B, prior])
        if graphs is None:
            return Rounds(self, S, B, candidates, prior, searching)
        from cop2l.certify import cuda

        return cuda.Rounds(graphs, self, S, B, candidates, prior, longest)

    def _graphs_for(self, parts: Sequence[Examples | None]) -> Any:
        """What is recorded for this learner; None where nothing can be."""
        from cop2l.certify import cuda

        if not cuda.able(self, parts):
            self._graphs = None
        elif self._graphs is None or not self._graphs.fits(self):
            self._graphs = cuda.Graphs(self)
        return self._graphs

    def _say(self, iteration: int, picked: int, worst: float, errors: int, value: float) -> None:
        event = {"task": self.task, "iteration": iteration, "picked": picked}
        self.trace.append({**event, "worst_loss": worst, "errors": errors, "bound": value})
        if self.progress:
            self.progress(self.trace[-1])


def _filled(columns: Sequence[Any], rows: Tensor, size: int) -> tuple[Any, ...]:
    """The rows of a mini-batch: x, y, factor and, if task-incremental, what is outside the head."""
    count = len(rows)
    at = rows if count == size else rows.repeat(-(-size // count))[:size]
    x, y, weight, *hidden = (column.index_select(0, at.to(column.device)) for column in columns)
    factor = weight * (1 / count)
    factor[count:] = 0
    return x, y, factor, *hidden


def _copied(state: dict[str, Tensor], scratch: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """A copy of the state, in the memory of an earlier one if there is one."""
    if scratch is None:
        return {name: value.clone() for name, value in state.items()}
    torch._foreach_copy_(list(scratch.values()), list(state.values()))
    return scratch


def outputs(
    model: nn.Module,
    x: Any,
    task: int | None = None,
    outside: Tensor | None = None,
    mode: ScoringMode | None = None,
) -> Iterator[Tensor]:
    """The logits, block by block, on the CPU; those outside the head of the task are minus infinity.

    Few examples go through the model in a block of their own size: what is certified is counted in whole blocks.
    """
    left, mode = len(x), mode or ScoringMode(model)
    size = next((few for few in SMALL_REQUESTS if 0 < left <= few), None)
    with mode:
        for rows in input_blocks(model, x) if size is None else [small_block(mode.like, x, size)]:
            logits = model(rows)[:left]
            left -= len(rows)
            if task is not None and outside is not None:
                logits = logits.masked_fill(outside[task], -torch.inf)
            yield logits.cpu()


def small_block(like: Tensor, x: Any, size: int) -> Any:
    """One block of few examples, in memory of its own."""
    rows = learning.tensor(x[:])
    dtype = like.dtype if rows.is_floating_point() else rows.dtype
    block = torch.zeros((size, *x.shape[1:]), dtype=dtype, device=like.device)
    block[: len(rows)] = rows
    return block


PRODUCTS = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]


def exact_already(like: Tensor) -> bool:
    """Whether a model there computes in full precision as torch is set: to set it takes longer than a small product."""
    return (
        like.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and all(getattr(product, "fp32_precision", None) in ("none", "ieee") for product in PRODUCTS)
    )


def misclassified(model: nn.Module, part: Examples, outside: Tensor | None) -> np.ndarray:
    """Which examples are misclassified, as the kernel counts them."""
    return Pool(model, [part], outside, [1.0]).score(errors=True)[1]


class ErrorCount:
    """Which examples of many tasks are misclassified: small tasks share a forward pass."""

    def __init__(self, model: nn.Module, outside: Tensor | None) -> None:
        self._model, self._outside = model, outside
        self._waiting: list[tuple[Examples, np.ndarray, Any]] = []
        self._rows = 0

    def add(self, part: Examples, wrong: np.ndarray, rows: Any) -> None:
        """In the end `wrong` says at these rows which of the examples are misclassified."""
        self._waiting.append((part, wrong, rows))
        self._rows += len(part)
        if self._rows >= LARGE_BLOCK:
            self.finish()

    def finish(self) -> None:
        """Score what is waiting."""
        waiting, self._waiting, self._rows = [one for one in self._waiting if len(one[0])], [], 0
        parts, start = [part for part, *_ in waiting], 0
        if len(parts) > 1:
            parts = [replace(part, x=where_the_model_is(self._model, part.x[:])) for part in parts]
        every = (
            misclassified(self._model, found, self._outside)
            if (found := _joined(parts))
            else np.empty(0, bool)
        )
        for part, wrong, rows in waiting:
            wrong[rows] = every[start : start + len(part)]
            start += len(part)


def _joined(parts: Sequence[Examples]) -> Examples | None:
    """All of them; a single one as it is, which may be a memory map."""
    return parts[0] if len(parts) == 1 else join(parts)
