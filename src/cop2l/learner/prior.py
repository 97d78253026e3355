"""Sets the scale of the inputs from the prior part of the first task, before learning begins.

The rows of the prior part P_1 depend only on the seed and on the number of rows, and certify nothing. A function of (seed, P_1)
is therefore fixed, given the prior parts, before the certified examples S_1, ..., S_T are seen: initial parameters and options
may depend on it, and every bound holds unchanged (docs/theory.md, section 5, Prior split).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cop2l.errors import UserError
from cop2l.kernel.building import scalable
from cop2l.kernel.exact import Examples, sample
from cop2l.kernel.scale import MIN_ROWS, Scale, fit_scale, scale_rows
from cop2l.learner import advice
from cop2l.learner.inputs import inputs, labels
from cop2l.learner.state import use_model
from cop2l.models import MODELS

if TYPE_CHECKING:
    from cop2l.learner.cop2l import CoP2L


def prior_part(x: Any, y: Any, share: float, seed: int) -> Examples:
    """The prior examples of the first task that set the scale, in the order of their second marks."""
    return sample(inputs(x), labels(y), 1, seed).take(scale_rows(len(y), share, seed))


def prior_scale(part: Examples, warn: Callable[[str], None]) -> dict[str, list[float]] | None:
    """The scale of a prior part; None, with a warning, if it has too few examples."""
    scale = fit_scale(part)
    if scale is None:
        warn(
            f"The inputs stay as they are: the first task has {len(part)} prior examples, and {MIN_ROWS} are needed;"
            " scale them by constants."
        )
    return scale


def scale_inputs(learner: "CoP2L", x: Any, y: Tensor) -> None:
    """Scale the inputs of a learner by the prior examples of (x, y), its first task."""
    model, options = learner.model, learner.options
    part = prior_part(x, y, options.prior, options.seed)
    has_ids = not part.x.is_floating_point() and type(model) not in MODELS.values()  # token ids
    current: Any = getattr(model, "scale", None)
    has_constants = isinstance(current, Scale) and not current.limited
    if has_ids or has_constants:
        return
    scale = prior_scale(part, lambda sentence: advice.warn_user([sentence]))
    if scale is None and isinstance(current, Scale):
        raise UserError(
            "A task that failed has scaled the inputs by its own examples; make the learner again."
        )
    if scale is not None:
        model = scalable(model, list(part.x.shape[1:]))
        model.scale.set_constants(**scale)
        use_model(learner, model)
