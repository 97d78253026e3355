"""The scale of the inputs, set from the prior part of the first task before learning begins.

The prior part P_1 is a function of the seed and of the number of rows alone, and nothing is certified of it. Whatever is made of
(seed, P_1) is therefore fixed, given the prior parts, before the certified examples S_1, ..., S_T are looked at: initial
parameters and options may depend on it, and every bound holds as it is (docs/theory.md, section 5, Prior split).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cop2l.certify import advice
from cop2l.certify.inputs import inputs
from cop2l.certify.state import use_model
from cop2l.errors import UserError
from cop2l.kernel.building import scalable
from cop2l.kernel.exact import Examples, sample
from cop2l.kernel.samples import numbers
from cop2l.kernel.scale import LEAST_TO_SCALE, Scale, prior_rows, scale_from
from cop2l.models import MODELS

if TYPE_CHECKING:
    from cop2l.certify.learner import CoP2L


def prior_part(x: Any, y: Any, share: float, seed: int) -> Examples:
    """Examples of the first task's prior part, in the order of their second marks; not more than are looked at."""
    if len(x) != len(y):
        raise UserError(f"x has {len(x)} examples and y has {len(y)} labels; they must be as many.")
    labels = torch.as_tensor(numbers(y).astype(np.int64))
    return sample(inputs(x), labels, 1, seed).take(prior_rows(len(y), share, seed))


def prior_scale(part: Examples, say: Callable[[str], None] = lambda _: None) -> dict[str, list[float]] | None:
    """The scale that a prior part gives; `say` is told if it has too few examples for one."""
    found = scale_from(part)
    if found is None:
        say(
            f"The inputs stay as they are: the first task has {len(part)} prior examples, and {LEAST_TO_SCALE} are needed;"
            " scale them by constants."
        )
    return found


def scale_inputs(learner: "CoP2L", x: Any, y: Tensor) -> None:
    """Scale the inputs of a learner by the prior examples of (x, y), the task that it learns first."""
    model, chosen = learner.model, learner.options
    part = prior_part(x, y, chosen.prior, chosen.seed)
    ids = not part.x.is_floating_point() and type(model) not in MODELS.values()
    own: Any = getattr(model, "scale", None)
    if ids or (isinstance(own, Scale) and not own.limited):  # token ids, or constants that were given
        return
    constants = prior_scale(part, lambda sentence: advice.warn_user(iter([sentence])))
    if constants is not None:
        model = scalable(model, list(part.x.shape[1:]))
        model.scale.put(**constants)
        use_model(learner, model)
