"""Nearest class mean, NCM (Mensink et al., 2013; Rebuffi et al., 2017), on frozen features."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from cop2l.methods.base import MethodOptions
from cop2l.methods.frozen import FrozenFeatures


@dataclass(frozen=True)
class NCMOptions(MethodOptions):
    """There is no learning rate, because nothing is trained by gradients."""

    normalise: bool = True
    """Whether features are scaled to length 1 first."""


class NCM(FrozenFeatures):
    """Nearest class mean: argmin_c |z - mu_c|^2 = argmax_c 2 mu_c z - |mu_c|^2, on frozen features z.

    The head stores 2 mu_c and -|mu_c|^2. With `normalise` it reads features of length 1, so that the model alone, which does
    not scale them, predicts otherwise.
    """

    Options = NCMOptions

    def add_task(self, x: Any, y: Tensor) -> None:
        """Add the next task to the means."""
        head = self.linear_head(x)
        self.tensors = self.updated_statistics(x, y)
        mean = self.tensors["mean"]
        self.write_head(head, 2 * mean, -mean.square().sum(1))

    def features(self, x: Any) -> Tensor:
        """Features, of length 1 with `normalise`."""
        z = super().features(x)
        return F.normalize(z, dim=1) if self.options.normalise else z

    def logits(self, x: Any) -> Tensor:
        """The head's outputs on these features."""
        head, parameter = self.representation(x).head, next(self.model.parameters())
        return self.evaluate(lambda block: head(self.features(block).to(parameter.dtype)), x)
