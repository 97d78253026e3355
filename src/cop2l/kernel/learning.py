"""CoP2L as a reference algorithm: the specification of the learner, bit for bit.

The letters are the paper's: S a sample, B the buffer, C the compression set, K the number of kept iterations, I, J, G the sets
of docs/theory.md. The bits are a function of the examples as a *set*, for three reasons. Every forward pass that scores has
the same number of rows. So has every mini-batch of an update. All randomness is a function of (seed, purpose, task, iteration).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cop2l.kernel.exact import NO_ROWS, Examples, Rows, gather, join, score, threshold
from cop2l.kernel.options import Options, require
from cop2l.kernel.training import Optimiser, train
from cop2l.randomness import marks


@dataclass(frozen=True)
class Outcome:
    """The result of mP2L beside theta, which is in the model. Positions in the pool count S first, then B."""

    compression: Rows
    """C: positions picked in the kept iterations, in picking order."""
    picked: Rows
    """Positions picked in any iteration up to the stop: the whole trajectory."""
    kept_iterations: int
    """The K in the bound: with grid=True the number of kept iterations rounded up to the grid; otherwise that number."""
    stopped: int
    """The number of iterations of the trajectory."""


@dataclass
class Sets:
    """The sets of one task, as sorted row numbers of its sample, and its messages."""

    own_picks: Rows = field(default_factory=lambda: NO_ROWS)
    """C_t n S_t: picked and kept at the task itself."""
    compression: Rows = field(default_factory=lambda: NO_ROWS)
    """I_t, the first compression set."""
    evicted: Rows = field(default_factory=lambda: NO_ROWS)
    """J_t, the second: examples of I_t that left the buffer. Only the paper's bound distinguishes it from I_t."""
    picked: Rows = field(default_factory=lambda: NO_ROWS)
    """G_t: picked and kept at the task itself, or picked from the buffer in any iteration of a later task."""
    iterations: int = 0
    """mu2_t = K_t: `kept_iterations` of the task's outcome."""
    stopped: int = 0
    """The number of iterations of the task's trajectory."""


SET_NAMES = ("own_picks", "compression", "evicted", "picked")


def set_tensors(sets: Sequence[Sets]) -> dict[str, Tensor]:
    """The sets of all tasks as tensors, as a certificate stores and hashes them."""
    pairs = [(t, name, getattr(task_sets, name)) for t, task_sets in enumerate(sets, 1) for name in SET_NAMES]
    return {f"{t}/{name}": torch.from_numpy(rows.copy()) for t, name, rows in pairs}


class Pool:
    """S* = S u B*, and what was picked from it. Positions count S first, then B.

    With `joined`, S and B are one part: a rerun then scores fewer blocks, but cannot count the errors of S.
    """

    def __init__(self, S: Examples, B: Examples | None, options: Options, joined: bool) -> None:
        parts = [S] if B is None else [S, B]
        self.n, self.k = len(S), options.k
        self.parts = [join(parts) or S] if joined else parts
        self.mark = np.concatenate([part.mark for part in parts])
        self.weight = np.repeat([1.0, options.omega], [self.n, len(self.mark) - self.n])
        self._weight = torch.from_numpy(self.weight)
        self.remaining = np.ones(len(self.mark), bool)
        self.picked_of_S, self.blocks = 0, [NO_ROWS]

    def weighted_losses(self, scores: Sequence[tuple[Tensor, np.ndarray]]) -> tuple[np.ndarray, int]:
        """Weight * loss of every example, minus infinity for those that cannot be picked, and the number of errors of S."""
        losses = torch.cat([loss for loss, _ in scores])
        self._weight = self._weight.to(losses)
        weighted = (losses * self._weight).cpu().numpy()
        weighted[~self.remaining] = -math.inf
        errors = scores[0][1][: self.n] & self.remaining[: self.n]
        return weighted, int(np.count_nonzero(errors))

    def pick(self, losses: np.ndarray) -> Rows:
        """Take the k largest losses out of the pool; of equal ones, the smaller marks."""
        k = min(self.k, len(losses))
        kth_largest = np.partition(losses, -k)[-k]
        largest = np.flatnonzero(self.remaining & (losses >= kth_largest))
        block = largest[np.lexsort((self.mark[largest], -losses[largest]))[: self.k]]
        self.remaining[block] = False
        self.picked_of_S += int((block < self.n).sum())
        self.blocks.append(block)
        return block


@dataclass
class ReferenceLearner:
    """CoP2L. theta is in the model; the fields hold the other state that goes from task to task."""

    model: nn.Module
    options: Options
    masked_classes: Tensor | None = None
    """For task-incremental: see `head_masks`."""
    sets: list[Sets] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """For each task the number of its rows."""
    buffer: list[Examples] = field(default_factory=list)
    """B_1..B_t."""

    @property
    def task(self) -> int:
        """The number of the task that is learned next."""
        return len(self.sets) + 1

    def score(self, parts: Sequence[Examples]) -> list[tuple[Tensor, np.ndarray]]:
        """The losses and the errors of each part of a pool; an engine may compute the same bits in another way."""
        return [score(self.model, part, self.masked_classes) for part in parts]

    def update(self, optimiser: Optimiser, trained: Examples, weight: Tensor, j: int) -> None:
        """Train on these examples; an engine may compute the same bits in another way."""
        options, seed_words = self.options, (self.options.seed, "update", self.task, j)
        train(self.model, optimiser, trained, weight, options.epochs, options.batch, seed_words, self.masked_classes)

    def observe(self, event: dict[str, Any]) -> None:
        """Get what an iteration of a search did; `least` says that its criterion is the least so far."""

    def mp2l(self, S: Examples, B: Examples | None, kept_iterations: int | None = None, longest: int | None = None) -> Outcome:
        r"""Algorithm 2, mP2L(theta, S, B, gamma, K), in blocks of k: pick the largest losses, train on all picked, repeat.

        The block is a function of theta and of the pool S u B \ C as a set: its k largest by (weight * loss, then smaller mark).
        Without `kept_iterations` the algorithm runs to its stop and keeps the iteration with the least criterion, which reads S
        alone. With it, the algorithm performs that number of iterations, or fewer if gamma stops it first.

        longest: more iterations than this are refused
        """
        options, searching = self.options, kept_iterations is None
        pool = Pool(S, B, options, joined=not searching)  # line 2: S* <- S u B*
        last = options.max_iterations if searching else kept_iterations
        optimiser = Optimiser(self.model, options.optimiser, options.lr)
        trained: Examples | None = None  # line 1: C_0 <- {}
        theta, best, least, j = self.model.state_dict(), 0, math.inf, 0
        while True:
            losses, errors = pool.weighted_losses(self.score(pool.parts))
            largest = float(losses.max(initial=-math.inf))  # line 3: the largest l * w
            diverged = f"Training diverged at task {self.task}, iteration {j}: the loss is not a number"
            require(not math.isnan(largest), f"{diverged}; lower lr ({options.lr}) or omega.")
            below_gamma = not largest >= options.gamma  # line 4: while l * w >= gamma
            if searching:
                value = criterion(options, len(S), pool.picked_of_S, errors)
                on_grid = not options.grid_points or j in options.grid_points or below_gamma
                is_least = on_grid and (value < least or options.stop == "none")
                if is_least:
                    best, least = j, value
                    theta = {name: part.clone() for name, part in self.model.state_dict().items()}
                event = {"task": self.task, "iteration": j, "picked": pool.picked_of_S, "worst_loss": largest}
                self.observe({**event, "errors": errors, "criterion": value, "least": is_least})
            if below_gamma or j == last:
                break
            if searching and options.stop != "none" and criterion(options, len(S), pool.picked_of_S, 0) >= least:
                break  # the picks alone cost too much: no later iteration has a smaller criterion
            require(j != longest, f"Task {self.task} does not stop after {j} iterations, as the certificate states.")
            block = pool.pick(losses)  # line 6: C_k <- C_{k-1} u {...}
            trained = join([trained, gather(S, B, block)])
            assert trained is not None
            weight = torch.from_numpy(pool.weight[np.concatenate(pool.blocks)])
            j += 1
            self.update(optimiser, trained, weight, j)  # line 7: theta_k <- update(theta_{k-1}, C_k)
        if searching:  # lines 10-12: k <- argmin of the criterion; all state goes back to it
            self.model.load_state_dict(theta)
        K = best if searching else j
        paid_iterations = next(point for point in options.grid_points or (K,) if point >= K)
        return Outcome(np.concatenate(pool.blocks[: K + 1]), np.concatenate(pool.blocks), paid_iterations, j)  # line 13

    def learn(self, S: Examples, longest: int | None = None) -> Outcome:
        """Learn the sample of the next task: one iteration of the loop of Algorithm 4, the compression function.

        An example that leaves the buffer moves to J only if it is in I; the printed line moves every example. With a buffer that
        uses marks nothing moves to J.
        """
        t, n, options = self.task, len(S), self.options
        B = join(self.buffer)  # line 4
        outcome = self.mp2l(S, B, longest=longest)  # line 5: theta_t, C* <- mP2L(theta_{t-1}, S_t, B*)
        C, picked = outcome.compression, outcome.picked
        self.sizes.append(n)
        own_picks = np.sort(C[n > C])
        for i, past in enumerate(self.sets, 1):
            if B is not None:
                of_task = np.flatnonzero(B.task == i)
                past.compression = np.union1d(past.compression, B.row[np.intersect1d(C - n, of_task)])  # line 7: I_i
                past.picked = np.union1d(past.picked, B.row[np.intersect1d(picked - n, of_task)])
            B_i = self.buffer[i - 1]
            in_buffer = self.kept_in_buffer(B_i.row, i, t)  # line 8: B_i <- sample(B_i, floor(m/t))
            evicted = NO_ROWS if options.uses_marks else np.intersect1d(B_i.row[~in_buffer], past.compression)  # lines 10-11
            past.evicted = np.union1d(past.evicted, evicted)  # line 12: J_i
            past.compression = np.setdiff1d(past.compression, evicted)  # line 13; `reconstruct` does not need mu1_i (line 14)
            self.buffer[i - 1] = B_i if in_buffer.all() else B_i.take(np.flatnonzero(in_buffer))
        not_picked = np.setdiff1d(np.arange(n), own_picks, assume_unique=True)
        self.sets.append(Sets(own_picks, own_picks, NO_ROWS, own_picks, outcome.kept_iterations, outcome.stopped))  # line 6
        self.buffer.append(S.take(not_picked[self.kept_in_buffer(not_picked, t, t)]))  # line 9: B_t
        return outcome

    def reconstruct(self, sets: Sequence[Sets], examples: Sequence[Examples]) -> None:
        """Algorithm 5: turn theta_0 in the model into theta_T, from the examples I_t u J_t and the messages.

        Why it gives the same bits: every picked block is contained in the stored examples. It had the k largest losses among all
        examples, so it has them among the stored ones. Differences from the printed text: mP2L performs mu2_t iterations, not
        one more. The buffer is formed after the loop over i < t. Row numbers and the task's own picks determine which rows are
        in the buffer, so that neither J_t nor the times mu1_t are needed. The sizes of the tasks must be known, too.
        """
        buffer_rows: list[Rows] = []  # for each task all rows in the buffer, also those of unknown examples
        for t, (recorded, S) in enumerate(zip(sets, examples, strict=True), 1):
            C = self.mp2l(S, join(self.buffer), recorded.iterations).compression  # line 4: K = mu2_t
            own_picks = np.sort(S.row[C[len(S) > C]])  # not read from the recorded sets
            buffer_rows.append(np.setdiff1d(np.arange(self.sizes[t - 1]), own_picks))
            self.buffer.append(S)  # line 5
            self.sets.append(replace(recorded, own_picks=own_picks))
            for i, B_i in enumerate(self.buffer):  # lines 6-11
                buffer_rows[i] = buffer_rows[i][self.kept_in_buffer(buffer_rows[i], i + 1, t)]
                self.buffer[i] = B_i.take(np.flatnonzero(np.isin(B_i.row, buffer_rows[i])))

    def kept_in_buffer(self, rows: Rows, task: int, after: int) -> np.ndarray:
        """The mask of these rows of `task` that are in the buffer after task `after`.

        It is a function of (seed, task, after), of the row numbers and of the number of examples picked at the task itself: of no
        other example, and of no content.
        """
        n, picks, options = self.sizes[task - 1], len(self.sets[task - 1].own_picks), self.options
        if options.uses_marks:
            return np.asarray(marks(options.seed, "mark", task, n=n)[rows] < threshold(n - picks, after, options))
        keys = marks(options.seed, "uniform", task, after, n=n)[rows]  # sample(B_i, floor(m/s))
        return np.argsort(np.argsort(keys, kind="stable")) < options.memory // after


def kl_inverse(q: float, eps: float) -> float:
    """sup{p : kl(q, p) <= eps}, by bisection to the last bit."""
    low, high = min(q, 1.0), 1.0
    while low < (middle := (low + high) / 2) < high:
        left = q * math.log(q / middle) if q > 0 else 0.0
        right = (1 - q) * math.log((1 - q) / (1 - middle)) if q < 1 else 0.0
        low, high = (middle, high) if left + right <= eps else (low, middle)
    return high


def criterion(options: Options, n: int, picked: int, errors: int) -> float:
    """The value that early stopping minimises. It reads the current task alone; it is no bound, and nothing is claimed of it.

    kl: the single-task bound of the paper. preference: (picked + errors)/n.
    """
    remaining, price = n - picked, -math.log(options.delta)
    if options.stop in ("none", "preference") or not n:
        return (picked + errors) / max(n, 1)
    price += math.lgamma(n + 1) - math.lgamma(picked + 1) - math.lgamma(remaining + 1)
    price += math.log(2 * math.sqrt(max(remaining, 1)) * (picked + 1) ** 2 * math.pi**2 / 6)
    return kl_inverse(errors / remaining, price / remaining) if remaining else 1.0
