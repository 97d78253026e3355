"""Any module as a frozen backbone: your own, or one that timm or transformers made."""

import copy
import hashlib
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cop2l.errors import UserError
from cop2l.models.backbones import BACKBONES, Backbone
from cop2l.plugins import imported
from cop2l.randomness import private_randomness

_USUAL = {"mean": Backbone.mean, "std": Backbone.std}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def from_module(
    module: nn.Module,
    *,
    name: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained_on: Iterable[str] = (),
) -> Backbone:
    """A module as a backbone: it takes pictures (n, 3, side, side) and gives one row of features for each.

    Pictures in [0, 1] are shifted by `mean` and divided by `std`: those of timm's modules unless told otherwise, else those
    usual for ImageNet. Without `pretrained_on`, certificates on its features are not valid.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"A backbone is a torch module or a name, not {_what(module)}.")
    name = type(module).__name__ if name is None else name
    if not name or set(name) & set("@#"):
        raise UserError(f"A backbone cannot be called {name!r}; choose a name without @ and #.")
    if name in BACKBONES:
        raise UserError(f"{name} is a backbone of cop2l; give yours another name.")
    colours = getattr(module, "pretrained_cfg", None)
    usual = colours if isinstance(colours, dict) and {"mean", "std"} <= colours.keys() else _USUAL

    def frozen() -> nn.Module:
        try:
            copied = copy.deepcopy(module)  # the module itself stays where it is, and as it is
        except (RuntimeError, TypeError) as error:
            raise UserError(
                f"{name} cannot be copied ({_line(error)}); give a module that copy.deepcopy can copy."
            ) from None
        return ClassToken(copied) if _of_transformers(module) else copied

    def other_weights() -> nn.Module:
        raise UserError(f"{name} has its weights already; load others into it yourself, without --weights.")

    return Backbone(
        name,
        name,
        width=None,
        pretrained_on=(pretrained_on,) if isinstance(pretrained_on, str) else tuple(pretrained_on),
        licence="your own",
        make=other_weights,
        ready=frozen,
        smallest=1,
        mean=_colours("mean", usual["mean"] if mean is None else mean),
        std=_colours("std", usual["std"] if std is None else std),
        code=code(module),
    )


def from_path(path: str, name: str | None = None) -> Backbone:
    """What package.module:Name names: a backbone, a module, or a function without arguments that makes one of them."""
    made = imported(path)
    if not isinstance(made, nn.Module | Backbone) and callable(made):
        try:
            # Random weights are the same every time.
            with private_randomness(torch.device("cpu"), 0, "backbone"):
                made = made()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{path} cannot be called without arguments ({type(error).__name__}: {_line(error)}); mend it, or name a "
                "function that makes the backbone."
            ) from error
    if isinstance(made, nn.Module):
        return from_module(made, name=name or path)
    if not isinstance(made, Backbone):
        raise UserError(
            f"{path} is no backbone: it gives {_what(made)}, and must give a torch module or a"
            " cop2l.models.backbones.Backbone."
        )
    return made


class ClassToken(nn.Module):
    """The class token of a transformer, or the mean over the last feature maps of another network.

    Not the library's pooler: some checkpoints hold none, and then it is random.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        known = inspect.signature(network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}

    def forward(self, x: Tensor) -> Tensor:
        """Pictures to features."""
        last = getattr(self.network(pixel_values=x, **self.options), "last_hidden_state", None)
        if not isinstance(last, Tensor):
            raise UserError(
                f"{type(self.network).__name__} gives no last_hidden_state; take the model below its head, as AutoModel does."
            )
        return last[:, 0] if last.ndim == 3 else last.mean((2, 3))


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


def _of_transformers(module: nn.Module) -> bool:
    """Its models take pictures under this name, and answer with several outputs."""
    try:
        return "pixel_values" in inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # a program of torch.jit
        return False


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


def _what(value: Any) -> str:
    return f"a {type(value).__name__}"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:200].rstrip(".")
