"""Backbones by name, and any module as a backbone: your own, or one that timm made."""

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

_USUAL = {"mean": Backbone.mean, "std": Backbone.std}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def named_backbone(name: str) -> Backbone:
    """The backbone of that name: one of ours or of an installed package, or the path package.module:Name of your own."""
    if name in BACKBONES:
        return BACKBONES[name]
    if name in (others := installed_names("backbones")):
        return from_path(others[name], name)
    if ":" not in name:
        raise unknown("backbone", name, [*BACKBONES, *others])
    return from_path(name)


def from_module(
    module: nn.Module,
    *,
    name: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained_on: Iterable[str] = (),
) -> Backbone:
    """A module as a backbone: it takes pictures (n, 3, side, side) and gives one row of features for each.

    Pictures in [0, 1] are shifted by `mean` and divided by `std`: those of timm's modules by default, else those
    usual for ImageNet. Without `pretrained_on`, certificates on its features are not valid.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"A backbone is a torch module or a name, not a {type(module).__name__}.")
    name = type(module).__name__ if name is None else name
    if not name or set(name) & set("@#"):
        raise UserError(f"A backbone cannot be called {name!r}; choose a name without @ and #.")
    if name in BACKBONES:
        raise UserError(f"{name} is a backbone of cop2l; give yours another name.")
    colours = getattr(module, "pretrained_cfg", None)
    usual = colours if isinstance(colours, dict) and {"mean", "std"} <= colours.keys() else _USUAL
    return Backbone(
        name,
        width=None,
        pretrained_on=(pretrained_on,) if isinstance(pretrained_on, str) else tuple(pretrained_on),
        licence="your own",
        make=lambda: copy.deepcopy(module),  # the module itself stays where it is, and as it is
        smallest=1,
        mean=_colours("mean", usual["mean"] if mean is None else mean),
        std=_colours("std", usual["std"] if std is None else std),
        code=code(module),
    )


def from_path(path: str, name: str | None = None) -> Backbone:
    """What package.module:Name names: a backbone, a module, or a function without arguments that makes one of them."""
    made = imported(path)
    if not isinstance(made, nn.Module | Backbone) and callable(made):
        # Random weights are the same every time.
        with private_randomness(torch.device("cpu"), 0, "backbone"):
            made = made()
    if isinstance(made, nn.Module):
        return from_module(made, name=name or path)
    if not isinstance(made, Backbone):
        raise UserError(
            f"{path} is no backbone: it gives a {type(made).__name__}, and must give a torch module or a"
            " cop2l.models.backbones.Backbone."
        )
    return made


def code(module: nn.Module) -> str:
    """The name of a module's class, and a hash of what its layers are and of the source of those that are not torch's."""
    classes = {
        f"{each.__module__}.{each.__qualname__}": each
        for part in module.modules()
        for each in type(part).__mro__
        if each.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    texts = [
        _ADDRESS.sub("", repr(module)),
        *(f"{name}\n{_source(classes[name])}" for name in sorted(classes)),
    ]
    found = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    return f"{type(module).__module__}.{type(module).__qualname__} {found}"


def _source(each: type) -> str:
    try:
        return inspect.getsource(each)
    except (OSError, TypeError):  # typed into an interpreter
        functions = {name: value for name, value in vars(each).items() if inspect.isfunction(value)}
        return repr([(name, f.__code__.co_code.hex(), f.__code__.co_names) for name, f in functions.items()])


def _colours(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in (1, 3) or (name == "std" and not min(numbers) > 0):
        above = " above 0" if name == "std" else ""
        raise UserError(
            f"{name} is one number{above} for each colour, such as (0.5, 0.5, 0.5), not {values!r}."
        )
    return numbers
