"""The model: built from its description or by the auditor's function, never larger than what is stored."""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from cop2l.certify.presets import PRIOR
from cop2l.certify.prior import scalable
from cop2l.errors import UserError
from cop2l.kernel.form import regular
from cop2l.kernel.options import require
from cop2l.models import MODELS, rebuild

Builder = Callable[[int], nn.Module]
KINDS = ("float32", "float64", "float16", "bfloat16")


def model_for(
    certificate: Mapping[str, Any], given: str | Builder | None, stored: Path, prefix: str = ""
) -> nn.Module | None:
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
        require(
            shapes_of(model) == stored_shapes(stored, prefix),
            f"The model that {given} builds has other tensors than {stored.name}.",
        )
    elif described.get("name") in [*MODELS]:  # it may be anything
        found = stored_shapes(stored, prefix)
        numbers = sum(math.prod(shape) for shape in found.values())
        widths = [described.get(key) for key in ("hidden", "classes")]
        small = all(
            type(width) is not int or width <= numbers for width in widths
        )  # to draw weights takes memory
        require(
            small and described_shapes(described) == found,
            f"The model described has other tensors than {stored.name}.",
        )
        model = rebuild(described)
    else:
        return None
    return model.to(device=device_of(certificate), dtype=dtype_of(certificate))


def own_model(given: str | Builder, seed: int) -> nn.Module:
    """The model that a function of the auditor's builds from a seed; it may be named as package.module:function."""
    build = named(given) if isinstance(given, str) else given
    if isinstance(build, nn.Module):
        raise UserError(
            "A model is no function; give build(seed), returning the model with that seed's weights."
        )
    try:
        inspect.signature(build).bind(seed)
    except TypeError:
        raise UserError(
            f"{given} cannot be called with the seed; write it as build(seed), returning the model with that seed's weights."
        ) from None
    except ValueError:  # it has no signature to look at
        pass
    model = build(seed)
    if not isinstance(model, nn.Module):
        raise UserError(f"{given} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def named(name: str) -> Builder:
    """The function that a text such as package.module:function names."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"--model must name a function as package.module:function; {name!r} does not ({error})."
        ) from None
    if not callable(found):
        raise UserError(f"--model must name a function, and {name} is none.")
    return found  # type: ignore[no-any-return]


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
        sentence = (
            str(error)
            if isinstance(error, UserError)
            else f"no such model can be built ({type(error).__name__})."
        )
        require(False, f"The model is not described correctly: {sentence}")
        raise


def stored_shapes(path: Path, prefix: str) -> Shapes:
    """The names and shapes of the tensors in a file that begin so; none is read."""
    with regular(path), safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}


def device_of(certificate: Mapping[str, Any]) -> torch.device:
    """Where the certificate says that it was made: a processor, or a GPU if there is one here."""
    elsewhere = f", {certificate['machine']}".rsplit(", ", 2)[1] != "cpu"
    return torch.device("cuda" if elsewhere and torch.cuda.is_available() else "cpu")


def dtype_of(certificate: Mapping[str, Any]) -> torch.dtype | None:
    """In which precision; None: as it is built."""
    name = certificate["machine"].rpartition(", ")[2]
    return getattr(torch, name) if name in KINDS else None
