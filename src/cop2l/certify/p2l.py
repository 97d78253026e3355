"""P2L and mP2L: pick the examples with the largest loss, train on what was picked, repeat."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.bounds import combined_certificate, single_task_kl_bound
from cop2l.certify.examples import Examples
from cop2l.certify.options import Options
from cop2l.certify.scoring import Pool
from cop2l.certify.training import Batches, Optimiser, balanced, update
from cop2l.errors import UserError

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """What mP2L returns beside the parameters, which are left in the model.

    Positions count the pool: first the task's sample S, then the buffer B.
    """

    kept: np.ndarray
    """C: positions picked in the iterations that were kept, in picking order."""
    picked: np.ndarray
    """Positions picked in any iteration up to the stop: the whole trajectory."""
    iterations: int
    """K: how many iterations were kept (the message mu2)."""
    trace: list[dict[str, Any]]
    """One entry per iteration: picked, worst_loss, errors, bound, kept."""


def p2l(
    model: nn.Module, S: Examples, options: Options, *, task: int = 1, outside: Tensor | None = None
) -> Outcome:
    """P2L in blocks of k: mP2L without a buffer and without early stopping, the original meta-algorithm.

    Leaves theta in the model. Every example outside C then has a loss below gamma; with gamma <= -ln 0.5 it is
    classified correctly.
    """
    plain = Options(**{**options.as_dict(), "stop": "none"})
    return mp2l(model, S, None, plain, task=task, outside=outside)


def mp2l(
    model: nn.Module,
    S: Examples,
    B: Examples | None,
    options: Options,
    *,
    task: int,
    outside: Tensor | None = None,
    candidates: np.ndarray | None = None,
    prior: Examples | None = None,
    iterations: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    r"""mP2L(theta_init, S, B, gamma, K*): the paper's Algorithm 2 in blocks of k; leaves theta in the model.

    The block picked at an iteration is a function of theta and of the pool S u B \ C as a *set*: it is the k largest
    by (weighted loss, then smallest mark), and an example's loss depends on no other example. Hence, if a smaller pool
    contains the block, the same block is picked from it. On this rest reconstruction and the preference property.

    With `iterations` = K* it performs exactly K* iterations (the printed test k <= K* would perform one more), and
    looks at no bound. Otherwise it runs to the stop, and keeps the iteration with the least criterion.

    model        theta_init, and afterwards theta
    S            the current task's sample, weight 1
    B            the buffer, weight omega
    candidates   mask over S: True for the certified part; the prior part is never picked nor counted
    prior        examples that every update trains on beside C (own prior part and stored ones)
    """
    n = len(S)
    parts, weights = ([S, B], [1.0, options.omega]) if B else ([S], [1.0])
    pool = Pool(model, parts, outside, weights)  # line 2: S* <- S u B*
    mark = pool.laid_out([part.mark for part in parts], 0)
    eligible = np.ones(n, bool) if candidates is None else candidates
    rest = pool.laid_out([eligible, *(np.ones(len(part), bool) for part in parts[1:])], False)  # S* \ C
    pool.close(np.flatnonzero(~rest))
    buffer_starts = pool.starts[1]
    certified = int(eligible.sum())
    training = _TrainingSet(prior, outside, next(model.parameters()))
    optimiser = Optimiser(model, options)
    model.train()
    blocks: list[np.ndarray] = []  # line 1: C_0 <- {}
    own = 0  # |C n S|
    best, best_state, best_value = 0, None, math.inf
    trace: list[dict[str, Any]] = []
    for j in itertools.count():
        if j == iterations:  # line 4: ... and k < K*
            break
        losses, wrong = pool.score(errors=iterations is None)
        worst, picked = top(losses, rest, mark, options.k)  # line 3: the largest l * w
        if math.isnan(worst):
            raise UserError(
                f"Training diverged at task {task}, iteration {j}: the loss is not a number; lower lr ({options.lr}) or omega."
            )
        if iterations is None:
            errors = int(np.count_nonzero(wrong & rest[:n]))
            value = criterion(options, certified, own, errors, j)
            if value < best_value or options.stop == "none":
                best, best_value = j, value
                best_state = _copied(model.state_dict(), best_state)
            entry = {"task": task, "iteration": j, "picked": own}
            trace.append({**entry, "worst_loss": worst, "errors": errors, "bound": value})
            if progress:
                progress(trace[-1])
            if not worst >= options.gamma or j == options.max_iterations:  # line 4: while l * w >= gamma
                break
            if options.stop != "none" and criterion(options, certified, own, 0, j + 1) >= best_value:
                break  # what was picked alone costs too much: no later iteration can be the argmin
        rest[picked] = False
        pool.close(picked)
        of_S, of_B = picked[picked < n], picked[picked >= buffer_starts] - buffer_starts
        positions = np.where(picked < n, picked, picked - buffer_starts + n)
        blocks.append(positions)  # line 6: C_k <- C_{k-1} u {...}
        own += len(of_S)
        training.add(S, of_S, 1.0)
        if B:
            training.add(B, of_B, options.omega)
        training.update(model, optimiser, options, task, j + 1)  # line 7: theta_k <- update(theta_{k-1}, C_k)
    model.eval()
    if iterations is None:  # lines 10-12: k <- argmin of the criterion
        assert best_state is not None
        model.load_state_dict(best_state)
    kept = best if iterations is None else iterations
    for step in trace:
        step["kept"] = step["iteration"] == kept
    empty = np.empty(0, np.int64)
    return Outcome(  # line 13: return theta_k, C_k
        kept=np.concatenate([empty, *blocks[:kept]]),
        picked=np.concatenate([empty, *blocks]),
        iterations=kept,
        trace=trace,
    )


def criterion(options: Options, n: int, picked: int, errors: int, iterations: int) -> float:
    """What early stopping minimises; it reads the current task alone.

    kl: the single-task bound of the paper. preference: (|G| + errors) / n, to which our certificate is nearest.
    combined: the combined certificate of this task alone.
    """
    if options.stop == "combined":
        tasks = options.tasks or 1
        return float(combined_certificate(n, picked, errors, iterations, tasks, math.log(options.delta)))
    if options.stop == "kl":
        return float(single_task_kl_bound(n, picked, errors, math.log(options.delta)))
    return (picked + errors) / n if n else 0.0


def top(losses: Tensor, rest: np.ndarray, mark: np.ndarray, k: int) -> tuple[float, np.ndarray]:
    """The largest loss of the rest, and the positions of its k largest: largest first, ties by the smaller mark.

    Losses outside the rest are not above 0 (see `Pool.close`), so that no one else is among k losses above 0.
    """
    largest = torch.topk(losses, min(k + 1, len(losses)))
    found = largest.values.tolist()
    if len(found) > k and found[-1] > 0 and all(one > next_ for one, next_ in itertools.pairwise(found)):
        return found[0], largest.indices[:k].cpu().numpy()  # as nearly always: no ties
    at = np.flatnonzero(rest)
    values = losses.cpu().numpy()[at]
    worst = float(values.max(initial=-math.inf))
    if len(at) > k:
        largest_k = values >= np.partition(values, -k)[-k]  # and all that are level with the last of them
        at, values = at[largest_k], values[largest_k]
    return worst, at[np.lexsort((mark[at], -values))[:k]]


def _copied(state: dict[str, Tensor], room: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """A copy of the state, in the room if there is one."""
    if room is None:
        return {name: tensor.clone() for name, tensor in state.items()}
    torch._foreach_copy_(list(room.values()), list(state.values()))
    return room


class _TrainingSet:
    """C in picking order (behind the prior examples, if any), with weights and heads, grown block by block."""

    def __init__(self, prior: Examples | None, outside: Tensor | None, place: Tensor) -> None:
        self._prior, self._outside, self._dtype = prior, outside, place.dtype
        self._columns: list[Tensor] = []  # x, y, weight and, if task-incremental, what is outside the head
        self._size, self._batches = 0, Batches()

    def add(self, source: Examples, at: np.ndarray, weight: float) -> None:
        """These examples of the source, each with this weight."""
        if self._prior and not self._size:
            self._append(self._prior, np.arange(len(self._prior)), 1.0)
        if len(at):
            self._append(source, at, weight)

    def _append(self, source: Examples, at: np.ndarray, weight: float) -> None:
        index = torch.from_numpy(at).to(source.y.device)
        start, self._size = self._size, self._size + len(at)
        if not self._columns or self._size > len(self._columns[0]):
            self._grow(source.inputs(index[:1]), source.y)
        x, y, weights, *hidden = (column[start : self._size] for column in self._columns)
        source.inputs(index, x)
        torch.index_select(source.y, 0, index, out=y)
        weights.fill_(weight)
        if self._outside is not None:
            hidden[0].copy_(self._outside[torch.from_numpy(source.task[at]).to(source.y.device)])

    def _grow(self, x: Tensor, y: Tensor) -> None:
        """Room for half as many again."""
        room = self._size + self._size // 2 + 256
        grown = [x.new_empty(room, *x.shape[1:]), y.new_empty(room), y.new_empty(room, dtype=self._dtype)]
        if self._outside is not None:
            grown.append(self._outside.new_empty(room, self._outside.shape[1]))
        for old, new in zip(self._columns, grown, strict=False):
            new[: len(old)] = old
        self._columns = grown

    def update(
        self, model: nn.Module, optimiser: Optimiser, options: Options, task: int, iteration: int
    ) -> None:
        """The update of theta on all of C."""
        x, y, weight, *hidden = (column[: self._size] for column in self._columns)
        update(
            model,
            optimiser,
            x,
            y,
            balanced(y).to(self._dtype) if self._prior else weight,
            hidden[0] if hidden else None,
            options,
            epochs=options.epochs,
            purpose="update",
            task=task,
            iteration=iteration,
            batches=self._batches,
        )
