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
from cop2l.certify.scoring import kept_blocks, score
from cop2l.certify.training import Optimiser, balanced, update
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
    taken = torch.zeros(n + (len(B) if B else 0), dtype=torch.bool, device=S.y.device)
    if candidates is not None:
        taken[:n] = torch.from_numpy(~candidates).to(taken.device)
    certified = n - int(taken[:n].sum())
    mark = np.concatenate([S.mark, B.mark]) if B else S.mark
    blocks_S, blocks_B = kept_blocks(model, S.x), kept_blocks(model, B.x) if B else None
    training = _TrainingSet(prior, outside, options, next(model.parameters()))
    optimiser = Optimiser(model, options)
    blocks: list[np.ndarray] = []  # line 1: C_0 <- {}
    own = 0  # |C n S|
    best, best_state, best_value = 0, None, math.inf
    trace: list[dict[str, Any]] = []
    for j in itertools.count():
        if j == iterations:  # line 4: ... and k < K*
            break
        losses, wrong = score(model, S, outside, errors=iterations is None, blocks=blocks_S)
        if B:
            old, _ = score(model, B, outside, errors=False, blocks=blocks_B)
            losses = torch.cat([losses, old * options.omega])  # line 2: S* <- S u B*
        losses.masked_fill_(taken, -torch.inf)
        worst = float(losses.max()) if len(losses) else -math.inf  # line 3: the largest l * w
        if math.isnan(worst):
            raise UserError(
                f"Training diverged at task {task}, iteration {j}: the loss is not a number; lower lr ({options.lr}) or omega."
            )
        if iterations is None:
            errors = int((wrong & ~taken[:n]).sum())
            value = criterion(options, certified, own, errors, j)
            if value < best_value or options.stop == "none":
                best, best_value = j, value
                best_state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            entry = {"task": task, "iteration": j, "picked": own}
            trace.append({**entry, "worst_loss": worst, "errors": errors, "bound": value})
            if progress:
                progress(trace[-1])
            if not worst >= options.gamma or j == options.max_iterations:  # line 4: while l * w >= gamma
                break
        block = top(losses, mark, options.k)
        taken[torch.from_numpy(block).to(taken.device)] = True
        blocks.append(block)  # line 6: C_k <- C_{k-1} u {...}
        own += int((block < n).sum())
        training.add(S, block[block < n], 1.0)
        if B:
            training.add(B, block[block >= n] - n, options.omega)
        training.update(model, optimiser, options, task, j + 1)  # line 7: theta_k <- update(theta_{k-1}, C_k)
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


def top(losses: Tensor, mark: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest losses, largest first, ties by the smaller mark; -inf is never taken."""
    least = torch.topk(losses, min(k, len(losses)), sorted=False).values.min()
    found = torch.nonzero(losses >= least).flatten()
    values = losses[found].cpu().numpy()
    found_at = found.cpu().numpy()
    order = np.lexsort((mark[found_at], -values))[:k]
    return np.asarray(found_at[order][values[order] > -np.inf])


class _TrainingSet:
    """C in picking order (behind the prior examples, if any), with weights and heads, grown block by block."""

    def __init__(
        self, prior: Examples | None, outside: Tensor | None, options: Options, place: Tensor
    ) -> None:
        self._outside, self._prior, self._options = outside, prior, options
        self._dtype = place.dtype
        self._x: Tensor | None = None
        if prior:
            self._append(prior, 1.0)

    def add(self, source: Examples, at: np.ndarray, weight: float) -> None:
        if len(at):
            self._append(source.take(at), weight)

    def _append(self, new: Examples, weight: float) -> None:
        y = new.y
        w = torch.full((len(y),), weight, dtype=self._dtype, device=y.device)
        hidden = None if self._outside is None else self._outside[torch.from_numpy(new.task).to(y.device)]
        if self._x is None:
            self._x, self._y, self._w, self._hidden = new.x, y, w, hidden
            return
        self._x, self._y = torch.cat([self._x, new.x]), torch.cat([self._y, y])
        self._w = torch.cat([self._w, w])
        self._hidden = None if hidden is None or self._hidden is None else torch.cat([self._hidden, hidden])

    def update(
        self, model: nn.Module, optimiser: Optimiser, options: Options, task: int, iteration: int
    ) -> None:
        assert self._x is not None
        weight = balanced(self._y).to(self._dtype) if self._prior else self._w
        update(
            model,
            optimiser,
            self._x,
            self._y,
            weight,
            self._hidden,
            options,
            epochs=options.epochs,
            purpose="update",
            task=task,
            iteration=iteration,
        )
