"""CoP2L in its plainest form: the specification of the learner, bit for bit.

The letters are the paper's: S a sample, B the buffer, C the compression set, K the number of kept iterations, I, J, G the sets
of docs/theory.md. Three things make the bits a function of examples as a *set*: every forward pass that scores has the same
number of rows; every mini-batch of an update has the same number of rows; all randomness is a function of (seed, purpose,
task, iteration).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cop2l.kernel.exact import FEW, NONE, Examples, Rows, block_rows, certified_rows, gather, join, model_input, score, threshold
from cop2l.kernel.options import Options, require
from cop2l.randomness import generator, marks, private_randomness


class Optimiser:
    """Plain SGD, SGD with momentum 0.9, or Adam (0.9, 0.999, 1e-8), with empty state: as every task begins."""

    def __init__(self, model: nn.Module, options: Options, lr: float | None = None) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.kind, self.lr, self.steps = options.optimiser, lr or options.lr, 0
        self.first, self.second = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self._values = [p.detach() for p in self.parameters]  # the same memory

    def step(self, loss: Tensor) -> None:
        """One step down the gradient of the loss."""
        self.descend(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def descend(self, gradients: tuple[Tensor, ...]) -> None:
        """One step down these gradients, one operation at a time for all parameters."""
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


@dataclass(frozen=True)
class Outcome:
    """What mP2L returns beside theta, which is left in the model. Positions count S first, then B."""

    kept: Rows
    """C: positions picked in the kept iterations, in picking order."""
    picked: Rows
    """Positions picked in any iteration up to the stop: the whole trajectory."""
    kept_iterations: int
    """K, as it is paid for: how many iterations were kept or, on a grid, the next number of the grid."""
    stopped: int
    """How many iterations the trajectory has."""


@dataclass
class Sets:
    """The book-keeping of one task: row numbers of its sample, sorted, and the messages."""

    own_picks: Rows = field(default_factory=lambda: NONE)
    """C_t n S_t: picked and kept at the task itself."""
    compression: Rows = field(default_factory=lambda: NONE)
    """I_t, the first compression set."""
    evicted: Rows = field(default_factory=lambda: NONE)
    """J_t, the second: examples of I_t that left the buffer. Only the paper's bound tells it from I_t."""
    picked: Rows = field(default_factory=lambda: NONE)
    """G_t: picked and kept at the task itself, or picked from the buffer in any iteration of a later task."""
    iterations: int = 0
    """mu2_t = K_t: how many iterations were kept, as it is paid for."""
    stopped: int = 0
    """How many iterations the trajectory of the task has."""


SET_NAMES = ("own_picks", "compression", "evicted", "picked")


def set_tensors(sets: Sequence[Sets]) -> dict[str, Tensor]:
    """The sets of all tasks as tensors: what a certificate's file holds, and what is hashed."""
    return {f"{t}/{name}": torch.from_numpy(getattr(one, name).copy()) for t, one in enumerate(sets, 1) for name in SET_NAMES}


@dataclass
class ReferenceLearner:
    """CoP2L: theta is in the model, and here is what is carried from task to task beside it."""

    model: nn.Module
    options: Options
    masked_classes: Tensor | None = None
    """Task-incremental: row t says which classes do not belong to task t's head (row 0 is unused)."""
    sets: list[Sets] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """For each task: how many rows it has, and how many of them are certified."""
    buffer: list[Examples] = field(default_factory=list)
    """B_1..B_t: examples of the certified parts."""
    prior: list[Examples] = field(default_factory=list)
    """The stored prior examples, task by task."""
    prior_counts: list[Tensor] = field(default_factory=list)
    """How many examples of each class the prior part of each task had."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Over all prior parts and picks so far, if a task starts with LDA: `count` and `sum` of each class, and `square`."""

    @property
    def task(self) -> int:
        """The number of the task that is learned next."""
        return len(self.sets) + 1

    def update(self, optimiser: Optimiser, trained: Examples, weight: Tensor, epochs: int, purpose: str, j: int = 0) -> None:
        """Some epochs of mini-batches in training mode; each step goes down the mean of weight * cross-entropy.

        Every mini-batch has `batch` rows: one that has fewer is filled with its own rows again, from the first on, at weight
        zero, so that batch normalisation sees rows of the training set only. A single mini-batch is not shuffled.
        """
        n, size, like, seed = len(trained), self.options.batch, next(self.model.parameters()), self.options.seed
        hidden = None if self.masked_classes is None else self.masked_classes[torch.from_numpy(trained.task).to(like.device)]
        order, x = generator(seed, f"{purpose} order", self.task, j), model_input(self.model, trained.x)
        self.model.train()
        with private_randomness(like.device, seed, purpose, self.task, j):
            for _ in range(epochs):
                for rows in torch.split(torch.randperm(n, generator=order) if n > size else torch.arange(n), size):
                    at = rows[torch.arange(size) % len(rows)].to(like.device)
                    factor = weight[at] * (1 / len(rows))
                    factor[len(rows) :] = 0
                    logits = self.model(x.index_select(0, at))
                    if hidden is not None:
                        logits = logits.masked_fill(hidden[at], -torch.inf)
                    losses = F.cross_entropy(logits, trained.y[at], reduction="none")
                    optimiser.step(torch.dot(losses, factor.to(losses.dtype)))
        self.model.eval()

    def mp2l(
        self, S: Examples, B: Examples | None, candidates: np.ndarray, prior: Examples | None,
        kept_iterations: int | None = None, longest: int | None = None,
    ) -> Outcome:  # fmt: skip
        r"""Algorithm 2, mP2L(theta, S, B, gamma, K), in blocks of k: pick the largest losses, train on all picked, repeat.

        The block is a function of theta and of the pool S u B \ C as a set: the largest by (weight * loss, then smaller mark).
        Without `kept_iterations` it runs to the stop and keeps the iteration of the least criterion, which reads S alone.
        Else it performs that many iterations, or fewer if gamma stops it first.

        candidates   mask over S: True for the certified part; the prior part is never picked nor counted
        prior        examples that every update trains on beside C
        longest      more iterations than this are refused
        """
        model, options, n, like = self.model, self.options, len(S), next(self.model.parameters())
        pool = [S] if B is None else [S, B] if kept_iterations is None else [join([S, B]) or S]  # line 2: S* <- S u B*
        mark = np.concatenate([part.mark for part in pool])
        columns = [np.repeat([1.0, w], [n, len(mark) - n]) for w in (options.omega, options.pick_omega or options.omega)]
        weights, in_picking = (torch.from_numpy(column).to(like.device, like.dtype) for column in columns)
        rest = np.concatenate([candidates, np.ones(len(mark) - n, bool)])  # S* \ C
        certified, last = int(candidates.sum()), options.max_iterations if kept_iterations is None else kept_iterations
        optimiser, blocks, trained = Optimiser(model, options), [NONE], prior  # line 1: C_0 <- {}
        factor, points, theta = self.prior_weight(prior).to(weights), options.grid_points, model.state_dict()
        best, j, own, least, searching = 0, 0, 0, math.inf, kept_iterations is None
        while True:
            scored = [score(model, part, self.masked_classes) for part in pool]
            losses = np.where(rest, (torch.cat([loss for loss, _ in scored]) * in_picking).cpu().numpy(), -math.inf)
            worst = float(losses.max(initial=-math.inf))  # line 3: the largest l * w
            require(not math.isnan(worst), f"Training diverged at task {self.task}, iteration {j}: the loss is not a number.")
            stopped = not worst >= options.gamma  # line 4: while l * w >= gamma
            if searching and (not points or j in points or stopped):
                value = criterion(options, certified, own, int((scored[0][1] & rest[:n]).sum()), j)
                if value < least or options.stop == "none":
                    best, least = j, value
                    theta = {name: part.clone() for name, part in model.state_dict().items()}
            if stopped or j == last:
                break
            if searching and options.stop != "none" and criterion(options, certified, own, 0, j + 1) >= least:
                break  # what was picked alone costs too much: no later iteration has a smaller criterion
            require(j != longest, f"Task {self.task} does not stop after {j} iterations, as it is said to.")
            least_of_k = torch.topk(torch.from_numpy(losses), min(options.k, len(losses))).values[-1].item()
            left = np.flatnonzero(rest & (losses >= least_of_k))  # k, and what is level with the last of them
            picked = left[np.lexsort((mark[left], -losses[left]))[: options.k]]
            rest[picked], own = False, own + int((picked < n).sum())
            blocks.append(picked)  # line 6: C_k <- C_{k-1} u {...}
            trained = join([trained, gather(S, B, picked)])
            assert trained is not None
            factor = torch.cat([factor, weights[torch.from_numpy(picked).to(like.device)]])
            weight = class_balanced_weights(trained.y).to(like.dtype) if prior is not None and options.balance else factor
            j += 1
            self.update(optimiser, trained, weight, options.epochs, "update", j)  # line 7: theta_k <- update(theta_{k-1}, C_k)
        if searching:  # lines 10-12: k <- argmin of the criterion; all state goes back to it
            model.load_state_dict(theta)
        kept = best if searching else j
        paid = next(point for point in points or (kept,) if point >= kept)
        return Outcome(np.concatenate(blocks[: kept + 1]), np.concatenate(blocks), paid, j)  # line 13

    def learn(self, S: Examples, longest: int | None = None) -> Outcome:
        """Learn the sample of the next task: one turn of the loop of Algorithm 4, the compression function.

        An example that leaves the buffer moves to J only if it is in I (the printed line moves every one); where marks decide
        who stays, nothing moves to J.
        """
        t, n, options = self.task, len(S), self.options
        certified = certified_rows(n, t, options)
        B = self.replayed()  # line 4
        own_prior = S.take(np.flatnonzero(~certified)) if options.prior else None
        prior = self.train_on_prior(own_prior, n)
        outcome = self.mp2l(S, B, certified, prior, longest=longest)  # line 5: theta_t, C* <- mP2L(theta_{t-1}, S_t, B*)
        self.add_up(gather(S, B, outcome.kept) if options.start == "slda" else None)
        self.sizes.append((n, int(certified.sum())))
        kept, picked = outcome.kept, outcome.picked
        own = np.sort(kept[kept < n])
        for i, past in enumerate(self.sets, 1):
            if B is not None:
                of_task = np.flatnonzero(B.task == i)
                past.compression = np.union1d(past.compression, B.row[np.intersect1d(kept - n, of_task)])  # line 7: I_i
                past.picked = np.union1d(past.picked, B.row[np.intersect1d(picked - n, of_task)])
            held = self.buffer[i - 1]
            still = self.kept_in_buffer(held.row, i, t)  # line 8: B_i <- sample(B_i, floor(m/t))
            gone = NONE if options.marked else np.intersect1d(held.row[~still], past.compression)  # lines 10-11
            past.evicted = np.union1d(past.evicted, gone)  # line 12: J_i
            past.compression = np.setdiff1d(past.compression, gone)  # line 13; mu1_i (line 14) is not needed: see `reconstruct`
            self.buffer[i - 1] = held if still.all() else held.take(np.flatnonzero(still))
        rest = np.setdiff1d(np.flatnonzero(certified), own, assume_unique=True)
        self.store_prior(own_prior)
        self.sets.append(Sets(own, own, picked=own, iterations=outcome.kept_iterations, stopped=outcome.stopped))  # line 6: mu2_t
        self.buffer.append(S.take(rest[self.kept_in_buffer(rest, t, t)]))  # line 9: B_t
        return outcome

    def reconstruct(self, sets: Sequence[Sets], known: Sequence[Examples], priors: Sequence[Examples | None]) -> None:
        """Algorithm 5: turns theta_0 in the model into theta_T, from `known` = I_t u J_t, the prior parts and the messages alone.

        It is exact for what `learn` made: each block picked from the full pool lies in the compression sets, and is the top of
        the smaller pool too. Differences from the printed text: mP2L performs mu2_t iterations, not one more; the buffer is
        formed after the loop over i < t; and who is in it, known or not, follows from row numbers and from the picks of the task
        itself, so that neither J_t nor the times mu1_t are needed. Only the sizes of the tasks must be known beside.
        """
        rows: list[Rows] = []  # of all examples in the buffer, task by task
        for t, (found, every, own_prior) in enumerate(zip(sets, known, priors, strict=True), 1):
            B = self.replayed()
            prior = self.train_on_prior(own_prior, self.sizes[t - 1][0])
            outcome = self.mp2l(every, B, np.ones(len(every), bool), prior, kept_iterations=found.iterations)  # line 4: K = mu2_t
            self.add_up(gather(every, B, outcome.kept) if self.options.start == "slda" else None)
            own = np.sort(every.row[outcome.kept[outcome.kept < len(every)]])  # found, not believed
            rows.append(np.setdiff1d(np.flatnonzero(certified_rows(self.sizes[t - 1][0], t, self.options)), own))
            self.buffer.append(every)  # line 5
            self.store_prior(own_prior)
            self.sets.append(replace(found, own_picks=own))
            for i, held in enumerate(self.buffer):  # lines 6-11
                rows[i] = rows[i][self.kept_in_buffer(rows[i], i + 1, t)]
                self.buffer[i] = held.take(np.flatnonzero(np.isin(held.row, rows[i])))

    def replayed(self) -> Examples | None:
        """B*: what can be picked beside the new sample; examples of a count-only buffer never are."""
        return None if self.options.buffer == "count-only" else join(self.buffer)

    def kept_in_buffer(self, rows: Rows, task: int, after: int) -> np.ndarray:
        """Which of these rows of `task` are in the buffer after task `after` (a mask over `rows`).

        A function of (seed, task, after), of row numbers and of how many examples were picked at the task itself: of no other
        example, and of no content.
        """
        (total, n), own, options = self.sizes[task - 1], len(self.sets[task - 1].own_picks), self.options
        if options.marked:
            return np.asarray(marks(options.seed, "mark", task, n=total)[rows] < threshold(n - own, after, options))
        keys = marks(options.seed, "uniform", task, after, n=total)[rows]  # sample(B_i, floor(m/s))
        return np.argsort(np.argsort(keys, kind="stable")) < (options.memory - options.prior_memory_size) // after

    def train_on_prior(self, own: Examples | None, rows: int) -> Examples | None:
        """Before the first pick, at a task of so many rows: epochs over the prior examples, stored and own; or LDA."""
        prior, options = join([*self.prior, own]), self.options
        if options.start == "slda":
            self.add_up(own)
            if self.sums:  # the prior part of a small task may be empty
                self.solve()
            return prior if options.prior_memory else None
        if prior is not None and (epochs := options.prior_passes(rows)):
            weight = class_balanced_weights(prior.y) if options.balance else self.prior_weight(prior)
            weight = weight.to(next(self.model.parameters()).dtype)
            self.update(Optimiser(self.model, options, options.prior_lr), prior, weight, epochs, "prior")
        return prior

    def prior_weight(self, prior: Examples | None) -> Tensor:
        """How many examples of its task's prior part each one stands for: n / kept of its class; one at the newest task."""
        if prior is None:
            return torch.ones(0, dtype=torch.float64)
        weight = torch.ones(len(prior), dtype=torch.float64, device=prior.y.device)
        for t, count in enumerate(self.prior_counts, 1):
            at = torch.from_numpy(prior.task == t).to(prior.y.device)
            y = prior.y[at]
            weight[at] = (count.to(y.device).double() / torch.bincount(y, minlength=len(count)))[y]
        return weight

    def add_up(self, part: Examples | None) -> None:
        """Add examples to the sums: how many each class has, their features, and the products of features."""
        if part is None:
            return
        head, labels = linear_head(self.model), iter(torch.split(part.y, block_rows(part.x)))

        def add(_: Any, inputs: tuple[Tensor, ...]) -> None:
            own = F.one_hot(next(labels), head.out_features).double()
            z = inputs[0][: len(own)].double()
            for name, more in (("count", own.sum(0)), ("sum", own.T @ z), ("square", gram(z))):
                self.sums[name] = self.sums[name] + more if name in self.sums else more

        with head.register_forward_pre_hook(add):
            score(self.model, part)

    def solve(self) -> None:
        """Put linear discriminant analysis of the sums into the head."""
        head, count = linear_head(self.model), self.sums["count"]
        mean = self.sums["sum"] / count.clamp(min=1)[:, None]
        scatter = self.sums["square"] - (mean.T * count) @ mean
        weight, bias = discriminant(mean, scatter, count.sum(), self.options.shrinkage, self.options.ridge)
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias.masked_fill(count == 0, -1e9))  # nothing known of the class

    def store_prior(self, own: Examples | None) -> None:
        """Keep an equal share of prior examples per task, balanced over its classes, in the order of their second marks."""
        if own is not None:
            self.prior.append(own)
            self.prior_counts.append(torch.bincount(own.y).cpu())
            share = self.options.prior_memory_size // self.task
            self.prior = [part.take(balanced_order(part, self.options.seed)[:share]) for part in self.prior]


def linear_head(model: nn.Module) -> nn.Linear:
    """The last linear layer, if nothing else is trained."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    trained = {p for p in model.parameters() if p.requires_grad}
    good = layers and layers[-1].bias is not None and trained <= {*layers[-1].parameters()}
    require(good, "start='slda' needs a model that trains a linear head with a bias and nothing else, on fixed features.")
    return layers[-1]


def discriminant(mean: Tensor, scatter: Tensor, n: Tensor, e: float, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """W = mu ((1 - e) Sigma + (e + r / N) I)^-1 and b = -diag(W mu^T) / 2: linear discriminant analysis of N examples."""
    shrunk = scatter * ((1 - e) / n)
    shrunk.diagonal().add_(e + ridge / n)
    lower, failed = torch.linalg.cholesky_ex(shrunk)
    require(not failed, "The covariance of the features cannot be inverted, as if some repeat others: raise shrinkage.")
    weight = torch.cholesky_solve(mean.T, lower).T
    return weight, -(mean * weight).sum(1) / 2


def gram(z: Tensor) -> Tensor:
    """z^T z; what lies below the diagonal is not multiplied again."""
    upper = torch.cat([F.pad(z[:, i : i + FEW].T @ z[:, i:], (i, 0)) for i in range(0, z.shape[1], FEW)]).triu()
    return upper + upper.triu(1).T


def class_balanced_weights(y: Tensor) -> Tensor:
    """Weights that give every class present the same total weight, with mean one."""
    counts = torch.bincount(y)
    return len(y) / ((counts > 0).sum() * counts[y]).double()


def balanced_order(part: Examples, seed: int) -> np.ndarray:
    """Positions such that every beginning of the list has nearly equal numbers of each class."""
    if not len(part):
        return NONE
    order = np.argsort(marks(seed, "prior", int(part.task[0]), n=int(part.row.max()) + 1)[part.row], kind="stable")
    labels, rank = part.y.cpu().numpy()[order], np.empty(len(order), np.int64)
    rank[np.argsort(labels, kind="stable")] = np.concatenate([np.arange(n) for n in np.unique(labels, return_counts=True)[1]])
    return np.asarray(order[np.argsort(rank, kind="stable")])


def kl_inverse(q: float, eps: float) -> float:
    """sup{p : kl(q, p) <= eps}, by bisection to the last bit."""
    low, high = min(q, 1.0), 1.0
    while low < (middle := (low + high) / 2) < high:
        left = q * math.log(q / middle) if q > 0 else 0.0
        right = (1 - q) * math.log((1 - q) / (1 - middle)) if q < 1 else 0.0
        low, high = (middle, high) if left + right <= eps else (low, middle)
    return high


def criterion(options: Options, n: int, picked: int, errors: int, iterations: int) -> float:
    """What early stopping minimises. It reads the current task alone; it is no bound, and nothing is claimed of it.

    kl: the single-task bound of the paper. preference: (picked + errors)/n. combined: about the combined bound of this task:
    errors alone where nothing was picked, else picks too, at the price of choosing how many.
    """
    rest, price = n - picked, -math.log(options.delta)
    if options.stop in ("none", "preference") or not n:
        return (picked + errors) / max(n, 1)
    if options.stop == "kl":
        price += math.lgamma(n + 1) - math.lgamma(picked + 1) - math.lgamma(rest + 1)
        price += math.log(2 * math.sqrt(max(rest, 1)) * (picked + 1) ** 2 * math.pi**2 / 6)
        return kl_inverse(errors / rest, price / rest) if rest else 1.0
    price += math.log(options.tasks or 1)
    if not iterations:
        return kl_inverse(errors / n, (price + math.log(4 / 3)) / n)
    points = len(options.grid_points)
    price += math.log(4 * (points - 1 if points else (iterations + 1) ** 2 * math.pi**2 / 6))
    return kl_inverse((picked + errors) / n, (price + math.log(picked + errors + 1) / 2) / n)
