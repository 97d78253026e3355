"""The model: built from its description or by the auditor's function, never larger than what is stored."""

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from cop2l.kernel.exact import Examples
from cop2l.kernel.form import HOLDOUT_FILES, open_regular
from cop2l.kernel.models import MODELS, rebuild
from cop2l.kernel.options import PRIOR, UserError, require
from cop2l.kernel.scale import Scale, prior_rows, scale_from, scale_of

KINDS = ("float32", "float64", "float16", "bfloat16")


def model_for(certificate: Mapping[str, Any], given: str | None, stored: Path, prefix: str = "") -> nn.Module | None:
    """The model with the initial weights of its seed; None if it is the issuer's own and nothing was given.

    `stored` is a file that holds its tensors, under `prefix`. Names and shapes are compared with it before anything is allocated.
    """
    described = {key: value for key, value in certificate["model"].items() if key != "parameters"}
    if given is not None:
        seed = described.get("seed")
        model = own_model(given, seed if type(seed) is int else certificate["options"].seed)
        if described.get("scale") == PRIOR:
            inputs, found = described.get("inputs"), stored_shapes(stored, prefix)
            numbers = sum(math.prod(shape) for shape in found.values())
            good = type(inputs) is list and all(type(size) is int and 0 < size <= numbers for size in inputs)
            require(good and inputs, f"The inputs of the model are described as {inputs!r:.40}.")
            model = scalable(model, inputs)  # type: ignore[arg-type]
        good = shapes_of(model) == stored_shapes(stored, prefix)
        require(good, f"The model that {given} builds has other tensors than {stored.name}.")
    elif described.get("name") in [*MODELS]:  # it may be anything
        found = stored_shapes(stored, prefix)
        numbers = sum(math.prod(shape) for shape in found.values())
        widths = [described.get(key) for key in ("hidden", "classes")]
        small = all(type(width) is not int or width <= numbers for width in widths)  # to draw weights takes memory
        require(small and described_shapes(described) == found, f"The model described has other tensors than {stored.name}.")
        model = rebuild(described)
    else:
        return None
    return model.to(device=device_of(certificate), dtype=dtype_of(certificate))


def own_model(name: str, seed: int) -> nn.Module:
    """The model that a function of the auditor's, named as package.module:function, builds from a seed."""
    module, _, function = name.partition(":")
    try:
        build = getattr(importlib.import_module(module), function)
        inspect.signature(build).bind(seed)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        said = "--model must name a function build(seed), as package.module:function, with the weights of that seed"
        raise UserError(f"{said}; {name!r}: {error}.") from None
    model = build(seed)
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


Shapes = dict[str, tuple[int, ...]]


def shapes_of(model: nn.Module) -> Shapes:
    """The names and shapes of a model's tensors."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def described_shapes(described: Mapping[str, Any]) -> Shapes:
    """The tensors of one of cop2l's own models, without allocating them."""
    try:
        with torch.device("meta"):
            return shapes_of(rebuild(described))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        sentence = str(error) if isinstance(error, UserError) else f"no such model can be built ({type(error).__name__})."
        require(False, f"The model is not described correctly: {sentence}")
        raise


def stored_shapes(path: Path, prefix: str) -> Shapes:
    """The names and shapes of the tensors in a file that begin so; none is read."""
    with open_regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}


def stored_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a file whose names begin so, by the rest of their names."""
    with open_regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def where(certificate: Mapping[str, Any]) -> tuple[Path, str]:
    """The file of a certificate that holds its parameters, and how their names begin there."""
    folder, own = certificate["folder"], certificate["method"] == "cop2l"
    if "theta" in certificate:
        return folder / "theta.safetensors", ""
    return folder / HOLDOUT_FILES[0], "theta/" if own else "model."


def device_of(certificate: Mapping[str, Any]) -> torch.device:
    """Where the certificate says that it was made: a processor, or a GPU if there is one here."""
    elsewhere = f", {certificate['machine']}".rsplit(", ", 2)[1] != "cpu"
    return torch.device("cuda" if elsewhere and torch.cuda.is_available() else "cpu")


def dtype_of(certificate: Mapping[str, Any]) -> torch.dtype | None:
    """In which precision; None: as it is built."""
    name = certificate["machine"].rpartition(", ")[2]
    return getattr(torch, name) if name in KINDS else None


class Scaled(nn.Module):
    """A module of one's own behind a scale of its inputs; integers, such as token ids, reach it as they are."""

    def __init__(self, model: nn.Module, inputs: Sequence[int]) -> None:
        super().__init__()
        self.model, self.scale = model, scale_of(PRIOR, inputs)
        kind = type(model)
        own = getattr(model, "description", None) or {"name": None, "class": f"{kind.__module__}.{kind.__qualname__}"}
        self.description = {**own, "inputs": list(inputs), "scale": PRIOR}

    def forward(self, x: Any) -> Any:
        """What the module gives."""
        return self.model(self.scale(x) if x.is_floating_point() else x)


def scalable(model: nn.Module, inputs: Sequence[int]) -> Any:
    """The model with a scale of its inputs, which has no effect yet."""
    if isinstance(getattr(model, "scale", None), Scale):
        return model
    like, found = next(model.parameters()), model
    if type(model) in MODELS.values() and hasattr(model, "description"):
        model.scale, model.description = scale_of(PRIOR, inputs), {**model.description, "scale": PRIOR}  # type: ignore[assignment,dict-item]
    else:
        found = Scaled(model, inputs)
    return found.to(like.device, like.dtype)


SHARE = 0.5
"""The prior part of methods that have none of their own: so all see the same examples."""
MOST_CHANNELS = 4
"""The constants of so many channels are believed like options."""


def put_scale(certificate: Mapping[str, Any], first: Examples, model: Any) -> None:
    """Give the model the scale that the prior part of the first task has, if it is said to: what is stored is not asked."""
    if certificate["model"].get("scale") != PRIOR:
        return
    settings, options = certificate["settings"], certificate["options"]
    share = options.prior if settings is None else settings.get("prior", SHARE)
    found = scale_from(first.take(prior_rows(len(first), share, options.seed)))
    if found is not None and len(found["shift"]) == model.scale.shift.numel():
        model.scale.put(**found)


def many_constants(certificate: Mapping[str, Any]) -> bool:
    """Whether the stated constants that scale inputs are so many that they could be fitted to the data."""
    claimed, inputs = certificate["model"].get("scale"), certificate["model"].get("inputs")
    most = max((len(part) for part in claimed if isinstance(part, list)), default=1) if isinstance(claimed, list) else 0
    return most > (MOST_CHANNELS if isinstance(inputs, list) and len(inputs) == 3 else 1)
