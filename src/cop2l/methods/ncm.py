"""NCM: the class with the nearest mean feature (Mensink et al., 2013; Rebuffi et al., 2017), on frozen features."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from cop2l.methods.base import MethodOptions
from cop2l.methods.frozen import FrozenFeatures


@dataclass(frozen=True)
class NCMOptions(MethodOptions):
    """Nothing is trained: there is no learning rate."""

    normalise: bool = True
    """Whether features are brought to length 1 first."""


class NCM(FrozenFeatures):
    """Nearest class mean: argmin_c |z - mu_c|^2 = argmax_c 2 mu_c z - |mu_c|^2, for frozen features.

    The head has 2 mu_c and -|mu_c|^2. It reads features of length 1, so that the model alone, which does not bring them to
    length 1, predicts the same only without `normalise`.
    """

    Options = NCMOptions

    def absorb(self, x: Any, y: Tensor, t: int) -> None:  # noqa: ARG002
        """Add task t to the means."""
        head = self.linear_head(x)
        self.kept = self.moments(x, y)
        mean = self.kept["mean"]
        self.write(head, 2 * mean, -mean.square().sum(1))

    def features(self, x: Any) -> Tensor:
        """Features, of length 1 if normalised."""
        z = super().features(x)
        return F.normalize(z, dim=1) if self.options.normalise else z

    def logits(self, x: Any) -> Tensor:
        """The head's outputs for these features."""
        head, like = self.parts(x).head, next(self.model.parameters())
        return self.evaluate(lambda block: head(self.features(block).to(like.dtype)), x)
