"""RanPAC: random projections on frozen features (McDonnell et al., 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cop2l.methods.base import MethodOptions
from cop2l.methods.frozen import FrozenFeatures
from cop2l.randomness import generator, marks

RIDGES = [10.0**power for power in range(-8, 9)]
"""The values among which lambda is chosen, as in the paper."""
FOLDS = 5
"""One example in so many of a task is withheld to choose lambda."""


@dataclass(frozen=True)
class RanPACOptions(MethodOptions):
    """There is no learning rate, because nothing is trained by gradients."""

    random_features: int = 2000
    """Number of random features (M); the paper has 10000. Memory grows with its square."""
    ridge: float = 0.0
    """The ridge parameter (lambda); 0: chosen at each task, from its own training data."""

    positive: ClassVar = ("random_features",)


class RanPAC(FrozenFeatures):
    """RanPAC: ridge regression onto the classes, on random features h = relu(z P) of frozen features z.

    P is fixed, with standard normal entries. G sums h h^T and C sums h y^T over all tasks, with y one-hot;
    W = (G + lambda I)^-1 C predicts argmax_c (h W)_c. Lambda has the smallest squared error on a fifth of the newest task,
    when the other examples of that task are fitted. The paper also fine-tunes the backbone on the first task. The model's own
    head is not used.
    """

    Options = RanPACOptions

    def add_task(self, x: Any, y: Tensor) -> None:
        """Add the next task to G and C, choose lambda, and solve."""
        if not self.tensors:
            self.tensors = self.empty_sums(self.features(x[:1]).shape[1])
        M, n, t = self.options.random_features, len(y), self.tasks_seen + 1
        withheld = torch.zeros(n, dtype=torch.bool)
        withheld[torch.randperm(n, generator=generator(self.seed, "ridge", t))[: n // FOLDS]] = True
        withheld = withheld.to(self.device)
        classes, column = torch.unique(y, return_inverse=True)
        G, C = self.tensors["G"].new_zeros(M, M), self.tensors["C"].new_zeros(M, len(classes))
        examples: list[tuple[Tensor, Tensor]] | None = [] if n - n // FOLDS < M else None
        for h, Y in self.hidden_blocks(x, column, ~withheld):
            G += h.T @ h
            C += h.T @ Y
            if examples is not None:
                examples.append((h, Y))
        fit = None if self.options.ridge or not withheld.any() else spectrum(G, C, examples)
        errors = G.new_zeros(len(RIDGES))
        for h, Y in self.hidden_blocks(x, column, withheld):
            G += h.T @ h
            C += h.T @ Y
            if fit is not None:
                errors += squared_errors(h, Y, *fit)
        sums = {name: value.clone() for name, value in self.tensors.items() if name != "P"}
        if fit is not None:
            sums["ridge"].fill_(RIDGES[int(errors.argmin())])
        sums["G"] += G
        sums["C"][:, classes] += C
        sums["count"] += y.bincount(minlength=self.outputs)
        G = sums["G"].clone()
        G.diagonal().add_(sums["ridge"])
        self.tensors |= {**sums, "W": torch.linalg.solve(G, sums["C"])}

    def empty_sums(self, width: int) -> dict[str, Tensor]:
        """The random projection, and sums over no examples; lambda is 1 until a task is large enough to choose it."""
        M = self.options.random_features
        normal = torch.from_numpy(normal_numbers(self.seed, "projection", width * M))
        P = normal.view(width, M).to(self.device)
        return {
            "P": P,
            "G": P.new_zeros(M, M),
            "C": P.new_zeros(M, self.outputs),
            "count": P.new_zeros(self.outputs),
            "ridge": P.new_tensor(self.options.ridge or 1.0),
        }

    def hidden(self, z: Tensor) -> Tensor:
        """Random features h of features z."""
        return (z @ self.tensors["P"]).relu()

    def hidden_blocks(self, x: Any, column: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Random features and one-hot classes of the rows in a mask, block by block."""
        columns = int(column.max()) + 1
        for z, labels in self.blocks(x, column, mask):
            yield self.hidden(z), F.one_hot(labels, columns).double()

    def logits(self, x: Any) -> Tensor:
        """The products h W, and -inf for classes without an example; the model's own before the first task."""
        if "W" not in self.tensors:
            return super().logits(x)
        outputs = self.evaluate(lambda block: self.hidden(self.features(block)) @ self.tensors["W"], x)
        return outputs.masked_fill(~self.has_examples(), -torch.inf)


def spectrum(
    G: Tensor, C: Tensor, examples: list[tuple[Tensor, Tensor]] | None
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Factors of B, and e and A, with (G + lambda I)^-1 C = B (A / (e + lambda)) for every lambda > 0.

    They are the eigenvectors and eigenvalues of G = H^T H. If H has fewer rows than columns, its rows (and their
    classes) are given as `examples`, and those of the smaller H H^T are used.
    """
    if examples is None:
        values, basis = torch.linalg.eigh(G)
        return [basis], values.clamp(min=0), basis.T @ C
    H, Y = (torch.cat(blocks) for blocks in zip(*examples, strict=True))
    values, vectors = torch.linalg.eigh(H @ H.T)
    return [H.T, vectors], values.clamp(min=0), vectors.T @ Y


def squared_errors(h: Tensor, Y: Tensor, basis: list[Tensor], values: Tensor, onto: Tensor) -> Tensor:
    """The squared error of the solution by `spectrum`, summed over examples, for each value of RIDGES."""
    for factor in basis:
        h = h @ factor
    return torch.stack([(h @ (onto / (values + ridge)[:, None]) - Y).square().sum() for ridge in RIDGES])


def normal_numbers(seed: int, purpose: str, n: int) -> np.ndarray:
    """Standard normal numbers by Box and Muller's formula, from marks; equal on every machine, up to rounding.

    >>> normal_numbers(0, "projection", 3).round(6).tolist()
    [-0.288331, 1.245299, 1.005781]
    """
    uniform = (marks(seed, purpose, n=2 * n) >> 11) * 2.0**-53
    draws: np.ndarray = np.sqrt(-2 * np.log1p(-uniform[:n])) * np.cos(2 * np.pi * uniform[n:])
    return draws
