"""Backbones by name, and a torch module as a backbone: a user's own, or one that timm made."""

import copy
import hashlib
import inspect
import re
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from cop2l.errors import UserError, unknown
from cop2l.models.backbones import BACKBONES, Backbone
from cop2l.plugins import imported, installed_names
from cop2l.randomness import private_randomness

_IMAGENET_COLOURS = {"mean": Backbone.mean, "std": Backbone.std}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def named_backbone(name: str) -> Backbone:
    """The backbone of cop2l or of an installed package with this name, or at the path package.module:Name."""
    if name in BACKBONES:
        return BACKBONES[name]
    plugins = installed_names("backbones")
    if name in plugins:
        return from_path(plugins[name], name)
    if ":" not in name:
        raise unknown("backbone", name, [*BACKBONES, *plugins])
    return from_path(name)


def from_module(
    module: nn.Module,
    *,
    name: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained_on: Iterable[str] = (),
) -> Backbone:
    """A backbone made of a module that takes pictures (n, 3, side, side) and gives one row of features for each.

    `mean` and `std` normalise pictures in [0, 1]. Their defaults are those of a module of timm, else those usual for
    ImageNet. Without `pretrained_on`, certificates on the features are not valid.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"A backbone is a torch module or a name, not a {type(module).__name__}.")
    name = type(module).__name__ if name is None else name
    if not name or set(name) & set("@#"):
        raise UserError(f"A backbone cannot be called {name!r}; choose a name without @ and #.")
    if name in BACKBONES:
        raise UserError(f"{name} is a backbone of cop2l; give yours another name.")
    colours = getattr(module, "pretrained_cfg", None)
    if not isinstance(colours, dict) or not {"mean", "std"} <= colours.keys():
        colours = _IMAGENET_COLOURS
    return Backbone(
        name,
        width=None,
        pretrained_on=(pretrained_on,) if isinstance(pretrained_on, str) else tuple(pretrained_on),
        licence="your own",
        make=lambda: copy.deepcopy(module),  # loading freezes the copy, not the user's module
        smallest=1,
        mean=_colours("mean", colours["mean"] if mean is None else mean),
        std=_colours("std", colours["std"] if std is None else std),
        code=describe_code(module),
    )


def from_path(path: str, name: str | None = None) -> Backbone:
    """The backbone at package.module:Name: a backbone, a module, or a function without arguments that makes one."""
    backbone = imported(path)
    if not isinstance(backbone, nn.Module | Backbone) and callable(backbone):
        # Random weights are the same in every process.
        with private_randomness(torch.device("cpu"), 0, "backbone"):
            backbone = backbone()
    if isinstance(backbone, nn.Module):
        return from_module(backbone, name=name or path)
    if not isinstance(backbone, Backbone):
        raise UserError(
            f"{path} is no backbone but a {type(backbone).__name__}; let it be or return a torch module or a"
            " cop2l.models.backbones.Backbone."
        )
    return backbone


def describe_code(module: nn.Module) -> str:
    """The name of a module's class, and a hash of its layers and of the source of all classes that are not torch's."""
    classes = {
        f"{cls.__module__}.{cls.__qualname__}": cls
        for part in module.modules()
        for cls in type(part).__mro__
        if cls.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    texts = [
        _ADDRESS.sub("", repr(module)),
        *(f"{name}\n{_source(classes[name])}" for name in sorted(classes)),
    ]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    return f"{type(module).__module__}.{type(module).__qualname__} {digest}"


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # typed into an interpreter
        functions = {name: value for name, value in vars(cls).items() if inspect.isfunction(value)}
        return repr([(name, f.__code__.co_code.hex(), f.__code__.co_names) for name, f in functions.items()])


def _colours(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in (1, 3) or (name == "std" and not min(numbers) > 0):
        above = " above 0" if name == "std" else ""
        raise UserError(
            f"{name} is {values!r}; give one number{above} for each colour, such as (0.5, 0.5, 0.5)."
        )
    return numbers
