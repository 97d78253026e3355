"""Continual-learning methods, one file each, and their names."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from cop2l.errors import UserError, unknown
from cop2l.plugins import imported, installed_names

if TYPE_CHECKING:
    from cop2l.methods.base import Method

SHARED = ("base", "buffer", "frozen", "representation", "sgd")
"""The files of this folder that are not methods; every other file is a method of that name."""
BUILTIN = {"cop2l": "cop2l.learner.cop2l"} | {
    file.name.replace("_", "-"): f"cop2l.methods.{file.name}"
    for file in iter_modules(__path__)
    if file.name not in SHARED
}
BUILTIN["der++"] = BUILTIN.pop("der")  # Python does not allow ++ in the name of a module
METHODS = BUILTIN | {name: path for name, path in installed_names("methods").items() if name not in BUILTIN}
"""The module of each method (of an installed package: module:Class), imported when the method is asked for."""

_ICARL_LINEAR = (
    "On a linear head iCaRL is herded nearest-mean: nothing below the head learns, so its training changes no "
    "prediction; choose model=mlp-head where it should matter."
)
REMARKS = {("icarl", "linear"): _ICARL_LINEAR}
"""Sentences about a method on a model, shown with the results of a run."""


def method(name: str) -> "type[Method]":
    """The class of a method by its name, or any class by its path, package.module:Class.

    >>> method("lamaml").__name__, method("cop2l.methods.replay:Replay").__name__
    ('LaMAML', 'Replay')
    """
    if name not in METHODS and ":" not in name:
        raise unknown("method", name, METHODS)
    path = METHODS.get(name, name)
    cls: type[Method]
    if ":" in path:
        cls = imported(path)
        if not hasattr(cls, "learn") or not hasattr(cls, "Options"):
            raise UserError(f"{path} is no method: derive the class from cop2l.methods.base.Learner.")
        return cls
    values = vars(import_module(path)).values()
    (cls,) = (v for v in values if hasattr(v, "learn") and getattr(v, "__module__", None) == path)
    return cls


def predicts_with_its_model(name: str) -> bool:
    """Whether the method predicts the class with the largest logit of its model, so that the model alone is the predictor.

    >>> predicts_with_its_model("cop2l"), predicts_with_its_model("replay"), predicts_with_its_model("ncm")
    (True, True, False)
    """
    from cop2l.methods.base import Learner

    if name not in METHODS:
        return False
    cls = method(name)
    inherits = issubclass(cls, Learner) and (cls.predict, cls.logits) == (Learner.predict, Learner.logits)
    return name == "cop2l" or inherits
