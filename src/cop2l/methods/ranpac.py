"""RanPAC (McDonnell et al., 2023): ridge regression on random features of frozen features."""

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
"""Among these the ridge parameter is chosen, as its authors do."""
HELD = 5
"""One example in so many of the task is held out to choose by."""


@dataclass(frozen=True)
class RanPACOptions(MethodOptions):
    """Nothing is trained: there is no learning rate."""

    random_features: int = 2000
    """How many random features, M; the paper has 10000, and what is kept grows with their square."""
    ridge: float = 0.0
    """The ridge parameter; 0: chosen at each task, from its own training data."""

    positive: ClassVar = ("random_features",)


class RanPAC(FrozenFeatures):
    """Random projection, ReLU and ridge regression onto the classes: (G + lambda I)^-1 C, for frozen features.

    h = relu(z P) with P fixed and normal; G sums h h^T and C sums h onto the columns of the classes, over all tasks. Lambda
    has the smallest squared error on a fifth of the newest task when the rest of that task is fitted. The model's own head is
    not used.
    """

    Options = RanPACOptions

    def absorb(self, x: Any, y: Tensor, t: int) -> None:
        """Add task t to G and C, choose lambda, and solve."""
        if not self.kept:
            self.begin(self.features(x[:1]).shape[1])
        M, n = self.options.random_features, len(y)
        held = torch.zeros(n, dtype=torch.bool)
        held[torch.randperm(n, generator=generator(self.seed, "ridge", t))[: n // HELD]] = True
        held = held.to(self.device)
        classes, own = torch.unique(y, return_inverse=True)
        G, C = self.kept["G"].new_zeros(M, M), self.kept["C"].new_zeros(M, len(classes))
        few: list[tuple[Tensor, Tensor]] | None = [] if n - n // HELD < M else None
        for h, Y in self.hidden_blocks(x, own, ~held):
            G += h.T @ h
            C += h.T @ Y
            if few is not None:
                few.append((h, Y))
        fitted = None if self.options.ridge or not held.any() else spectrum(G, C, few)
        errors = G.new_zeros(len(RIDGES))
        for h, Y in self.hidden_blocks(x, own, held):
            G += h.T @ h
            C += h.T @ Y
            if fitted is not None:
                errors += squared_errors(h, Y, *fitted)
        kept = {name: value.clone() for name, value in self.kept.items() if name != "P"}
        if fitted is not None:
            kept["ridge"].fill_(RIDGES[int(errors.argmin())])
        kept["G"] += G
        kept["C"][:, classes] += C
        kept["count"] += y.bincount(minlength=self.outputs)
        G = kept["G"].clone()
        G.diagonal().add_(kept["ridge"])
        self.kept |= {**kept, "W": torch.linalg.solve(G, kept["C"])}

    def begin(self, width: int) -> None:
        """The random projection, and sums of nothing; lambda is 1 until a task is large enough to choose."""
        M = self.options.random_features
        P = (
            torch.from_numpy(normal_numbers(self.seed, "projection", width * M))
            .view(width, M)
            .to(self.device)
        )
        self.kept = {
            "P": P,
            "G": P.new_zeros(M, M),
            "C": P.new_zeros(M, self.outputs),
            "count": P.new_zeros(self.outputs),
            "ridge": P.new_tensor(self.options.ridge or 1.0),
        }

    def hidden(self, z: Tensor) -> Tensor:
        """Random features of features."""
        return (z @ self.kept["P"]).relu()

    def hidden_blocks(self, x: Any, own: Tensor, part: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Random features, and a 1 in the column of the example's class, of the rows in a mask."""
        columns = int(own.max()) + 1
        for z, column in self.blocks(x, own, part):
            yield self.hidden(z), F.one_hot(column, columns).double()

    def logits(self, x: Any) -> Tensor:
        """The products h W, and -inf for classes without an example; the model's own before the first task."""
        if "W" not in self.kept:
            return super().logits(x)
        outputs = self.evaluate(lambda block: self.hidden(self.features(block)) @ self.kept["W"], x)
        return outputs.masked_fill(~self.classes_seen(), -torch.inf)


def spectrum(
    G: Tensor, C: Tensor, few: list[tuple[Tensor, Tensor]] | None
) -> tuple[list[Tensor], Tensor, Tensor]:
    """B (as factors), e and A with (G + lambda I)^-1 C = B (A / (e + lambda)) for every lambda > 0.

    From the eigenvectors of G = H^T H; or, where H has fewer rows than columns, from those of H H^T, which are as few.
    """
    if few is None:
        values, basis = torch.linalg.eigh(G)
        return [basis], values.clamp(min=0), basis.T @ C
    H, Y = (torch.cat(blocks) for blocks in zip(*few, strict=True))
    values, vectors = torch.linalg.eigh(H @ H.T)
    return [H.T, vectors], values.clamp(min=0), vectors.T @ Y


def squared_errors(h: Tensor, Y: Tensor, basis: list[Tensor], values: Tensor, onto: Tensor) -> Tensor:
    """For each ridge parameter, the squared error of the solution that a `spectrum` gives, summed over examples."""
    for factor in basis:
        h = h @ factor
    return torch.stack([(h @ (onto / (values + ridge)[:, None]) - Y).square().sum() for ridge in RIDGES])


def normal_numbers(seed: int, purpose: str, n: int) -> np.ndarray:
    """Standard normal numbers by Box and Muller's formula, from marks: the same on every machine, up to rounding.

    >>> normal_numbers(0, "projection", 3).round(6).tolist()
    [-0.288331, 1.245299, 1.005781]
    """
    uniform = (marks(seed, purpose, n=2 * n) >> 11) * 2.0**-53
    draws: np.ndarray = np.sqrt(-2 * np.log1p(-uniform[:n])) * np.cos(2 * np.pi * uniform[n:])
    return draws
