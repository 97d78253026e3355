"""Streaming linear discriminant analysis, SLDA (Hayes and Kanan, 2020), on frozen features."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cop2l.errors import UserError
from cop2l.methods.base import MethodOptions
from cop2l.methods.frozen import FrozenFeatures


@dataclass(frozen=True)
class SLDAOptions(MethodOptions):
    """There is no learning rate, because nothing is trained by gradients."""

    shrinkage: float = 1e-4
    """The weight of the identity beside the covariance (epsilon)."""

    positive: ClassVar = ("shrinkage",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrinkage > 1:
            raise UserError(f"The option shrinkage is {self.shrinkage}; give a share of at most 1.")


class SLDA(FrozenFeatures):
    """Streaming LDA: one mean per class and one shared covariance, on frozen features.

    Lambda = ((1 - epsilon) Sigma + epsilon I)^-1, w_k = Lambda mu_k, b_k = -(mu_k . Lambda mu_k) / 2; the head stores w and b.
    Sigma is the scatter of all examples about the final means of their classes, divided by their number. The paper updates
    Sigma with the means of the moment, so that its Sigma depends on the order of the examples.
    """

    Options = SLDAOptions

    def add_task(self, x: Any, y: Tensor) -> None:
        """Add the next task to the means and the scatter."""
        head = self.linear_head(x)
        self.tensors = self.updated_statistics(x, y, scatter=True)
        n, epsilon = self.tensors["count"].sum(), self.options.shrinkage
        self.write_head(head, *discriminant(self.tensors["mean"], self.tensors["scatter"], n, epsilon))


def discriminant(mean: Tensor, scatter: Tensor, n: Tensor, e: float) -> tuple[Tensor, Tensor]:
    """W = mu ((1 - e) Sigma + e I)^-1 and b = -diag(W mu^T) / 2: linear discriminant analysis of n examples."""
    shrunk = scatter * ((1 - e) / n)
    shrunk.diagonal().add_(e)
    lower, failed = torch.linalg.cholesky_ex(shrunk)
    if failed:
        raise UserError(
            "The covariance of the features cannot be inverted, as if some were copies: raise shrinkage."
        )
    weight = torch.cholesky_solve(mean.T, lower).T
    return weight, -(mean * weight).sum(1) / 2
