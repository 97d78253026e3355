"""Builds the model from its description or with the auditor's function, never larger than the stored tensors."""

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
from cop2l.kernel.options import Refusal, UserError, require
from cop2l.kernel.scale import FITTED, Scale, fit_scale, scale_layer

PRECISIONS = ("float32", "float64", "float16", "bfloat16")
Shapes = dict[str, tuple[int, ...]]


def model_for(certificate: Mapping[str, Any], function: str | None, file: Path, prefix: str = "") -> nn.Module | None:
    """The model with the initial weights of its seed; None if it is not one of cop2l's own and the auditor names no function.

    `file` holds its tensors, with names that begin with `prefix`. Names and shapes are compared before anything is allocated.
    """
    description = {key: value for key, value in certificate["model"].items() if key != "parameters"}
    name = description.get("name")
    if function is None and name not in [*MODELS]:  # a list, because the name may be of any type
        return None
    shapes = stored_shapes(file, prefix)
    if function is not None:
        seed = description.get("seed")
        model = auditors_model(function, seed if type(seed) is int else certificate["options"].seed)
        if description.get("scale") == FITTED:
            numbers, sizes = sum(math.prod(shape) for shape in shapes.values()), description.get("inputs")
            good = type(sizes) is list and sizes and all(type(size) is int and 0 < size <= numbers for size in sizes)
            require(good, f"The inputs of the model are described as {sizes!r:.40}.")
            model = scalable(model, sizes or [])
        require(shapes_of(model) == shapes, f"The model that {function} builds has other tensors than {file.name}.")
    else:
        require(described_shapes(description) == shapes, f"The model described has other tensors than {file.name}.")
        model = rebuild(description)
    return model.to(device=device_of(certificate), dtype=dtype_of(certificate))


def auditors_model(name: str, seed: int) -> nn.Module:
    """The model that the auditor's function, named as package.module:function, builds from a seed."""
    module, _, function = name.partition(":")
    try:
        build = getattr(importlib.import_module(module), function)
        inspect.signature(build).bind(seed)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        rule = "--model must name a function build(seed), as package.module:function, with the weights of that seed"
        raise UserError(f"{rule}; {name!r}: {error}.") from None
    model = build(seed)
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def described_shapes(description: Mapping[str, Any]) -> Shapes:
    """The names and shapes of the tensors of one of cop2l's own models; no weights are drawn."""
    try:
        with torch.device("meta"):
            return shapes_of(rebuild(description))
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        sentence = str(error) if isinstance(error, UserError) else f"no such model can be built ({type(error).__name__})."
        raise Refusal(f"The model is not described correctly: {sentence}") from None


def stored_shapes(path: Path, prefix: str) -> Shapes:
    """The names, without this prefix, and shapes of the tensors in a file whose names begin with it; none is read."""
    with open_regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}


def stored_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a file whose names begin with this prefix, by their names without it."""
    with open_regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}


def parameter_location(certificate: Mapping[str, Any]) -> tuple[Path, str]:
    """The file of a certificate that holds its parameters, and the prefix of their names in it."""
    if "theta" in certificate:
        return certificate["folder"] / "theta.safetensors", ""
    return certificate["folder"] / HOLDOUT_FILES[0], "model."


def device_of(certificate: Mapping[str, Any]) -> torch.device:
    """The device that the certificate names; the CPU if there is no GPU here."""
    on_gpu = f", {certificate['machine']}".rsplit(", ", 2)[1] != "cpu"
    return torch.device("cuda" if on_gpu and torch.cuda.is_available() else "cpu")


def dtype_of(certificate: Mapping[str, Any]) -> torch.dtype | None:
    """The precision that the certificate names; None: the precision in which the model is built."""
    name = certificate["machine"].rpartition(", ")[2]
    return getattr(torch, name) if name in PRECISIONS else None


def description_of(model: nn.Module) -> dict[str, Any]:
    """The description of a model of cop2l's own; the class of another."""
    class_name = f"{type(model).__module__}.{type(model).__qualname__}"
    return getattr(model, "description", None) or {"name": None, "class": class_name}


class Scaled(nn.Module):
    """A module of the user's with a scale for its inputs; integers, such as token ids, are not scaled."""

    def __init__(self, model: nn.Module, inputs: Sequence[int]) -> None:
        super().__init__()
        self.model, self.scale = model, scale_layer(FITTED, inputs)
        self.description = {**description_of(model), "inputs": list(inputs), "scale": FITTED}

    def forward(self, x: Any) -> Any:
        return self.model(self.scale(x) if x.is_floating_point() else x)


def scalable(model: nn.Module, inputs: Sequence[int]) -> Any:
    """The model with a scale for its inputs, which has no effect yet."""
    if isinstance(getattr(model, "scale", None), Scale):
        return model
    parameter, scaled = next(model.parameters()), model
    if type(model) in MODELS.values() and hasattr(model, "description"):
        model.scale = scale_layer(FITTED, inputs)
        model.description = {**model.description, "scale": FITTED}  # type: ignore[assignment,dict-item]
    else:
        scaled = Scaled(model, inputs)
    return scaled.to(parameter.device, parameter.dtype)


MAX_CHANNELS = 4
"""Constants for at most this many channels count as options, not as fitted to the data."""


def set_scale(certificate: Mapping[str, Any], first: Examples, model: Any) -> None:
    """Compute the model's scale again from the learned rows of the first task, if the certificate states such a scale."""
    if certificate["model"].get("scale") != FITTED:
        return
    constants = fit_scale(first, certificate["options"].seed)
    if constants is not None and len(constants["shift"]) == model.scale.shift.numel():
        model.scale.set_constants(**constants)


def many_constants(certificate: Mapping[str, Any]) -> bool:
    """Whether the stated scale has so many constants that they could be fitted to the data."""
    scale, inputs = certificate["model"].get("scale"), certificate["model"].get("inputs")
    number = max((len(part) for part in scale if isinstance(part, list)), default=1) if isinstance(scale, list) else 0
    return number > (MAX_CHANNELS if isinstance(inputs, list) and len(inputs) == 3 else 1)
