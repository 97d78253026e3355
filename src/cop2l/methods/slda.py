"""SLDA (Hayes and Kanan, 2020): streaming linear discriminant analysis on frozen features."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from cop2l.errors import UserError
from cop2l.kernel.learning import discriminant
from cop2l.methods.base import MethodOptions
from cop2l.methods.frozen import FrozenFeatures


@dataclass(frozen=True)
class SLDAOptions(MethodOptions):
    """Nothing is trained: there is no learning rate."""

    shrinkage: float = 1e-4
    """The weight of the identity beside the covariance."""

    positive: ClassVar = ("shrinkage",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrinkage > 1:
            raise UserError(f"The option shrinkage is {self.shrinkage}; give a share of at most 1.")


class SLDA(FrozenFeatures):
    """Streaming LDA: one mean per class and one shared covariance Sigma, for frozen features.

    Lambda = ((1 - shrinkage) Sigma + shrinkage I)^-1; W_c = Lambda mu_c, b_c = -mu_c Lambda mu_c / 2, in the model's head.
    Sigma is the scatter of all examples about the final means of their classes, over their number; the paper's update takes
    the means of the moment, so that its Sigma depends on the order of the examples.
    """

    Options = SLDAOptions

    def absorb(self, x: Any, y: Tensor, t: int) -> None:  # noqa: ARG002
        """Add task t to the means and the scatter."""
        head = self.linear_head(x)
        self.kept = self.moments(x, y, scatter=True)
        n, epsilon = self.kept["count"].sum(), self.options.shrinkage
        self.write(head, *discriminant(self.kept["mean"], self.kept["scatter"], n, epsilon))
